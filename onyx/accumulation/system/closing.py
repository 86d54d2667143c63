"""The end of a window: what is around the core's boundary here."""

import logging
import math
from typing import Any

from onyx.accumulation.boundary import Update, close
from onyx.accumulation.ddp import exchange_now
from onyx.accumulation.number import read
from onyx.accumulation.scaling import Scaling, Unscaled
from onyx.accumulation.strategy import Chain
from onyx.accumulation.system.config import GradientAccumulationConfig
from onyx.accumulation.system.noise_meter import NoiseMeter
from onyx.accumulation.system.setup import Setup
from onyx.accumulation.system.state import AccumulationState

logger = logging.getLogger(__name__)


def close_window(
    setup: Setup,
    config: GradientAccumulationConfig,
    state: AccumulationState,
    scaling: Scaling,
    meter: NoiseMeter | None,
    *,
    exchange: bool,
) -> Update:
    """Turn the open window into an update or a skip, and count it. `exchange`: DDP has not done so yet."""
    window, state.window = state.window, None
    assert window is not None  # noqa: S101
    if exchange:
        exchange_now(setup.model)
    if setup.left_out is not None:
        setup.left_out.reshape(setup.optimizer)  # before unscaling: what is left out cannot overflow either
    if not config.loss_scaling and window.weighted and not read(window.taken):
        window.weight = 0.0  # a sum over nothing is no update
    scaling = Unscaled() if state.backward_by_caller else scaling
    stages = [stage for stage in (meter, setup.strategy) if stage is not None]
    update = close(
        window,
        setup.optimizer,
        max_norm=config.clipping_norm if config.gradient_clipping else None,
        scaling=scaling,
        strategy=Chain(*stages) if stages else None,
        skip_not_finite=config.nan_handling or _scales(scaling),
    )
    if meter is not None:
        meter.end_window(summed=not config.loss_scaling)
    state.record(update, scaled=_scales(scaling))
    if update.stepped and setup.scheduler is not None:
        setup.scheduler.step()
    if not update.stepped or not math.isfinite(update.norm):
        what = f"skipped ({update.skipped})" if update.skipped else "applied as it is (not finite)"
        logger.warning("the update after micro-batch %d was %s", state.total_steps, what)
    return update


def _scales(scaling: Scaling) -> bool:
    """Whether overflows are to be expected, and skipped. A disabled GradScaler scales nothing."""
    scaler: Any = getattr(scaling, "scaler", None)
    return scaler is not None and bool(getattr(scaler, "is_enabled", lambda: True)())
