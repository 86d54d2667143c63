"""Asking the planner: in a helper process, so that the service itself never loads a model or torch."""

from collections.abc import Sequence
from typing import Any

from onyx.api.app_context import AppContext
from onyx.api.http.caller import Caller
from onyx.api.http.errors import bad, cannot
from onyx.api.http.scrubbing import scrub
from onyx.jobs.batch_size import optimal_batch_size
from onyx.memory.devices.device import Device


async def plan_batch(
    context: AppContext,
    caller: Caller,
    model: str,
    target: int,
    gpu_ids: Sequence[int] | None,
    *,
    cards: Sequence[dict[str, Any]] = (),
    **options: Any,
) -> dict[str, Any]:
    """The documented answer; 400 with what would fit, or what to change; 429 for one plan too many."""
    given = {name: value for name, value in options.items() if value is not None}
    if given.get("max_length", 0) > context.settings.most_max_length:
        raise bad(f"max_length may be at most {context.settings.most_max_length} here", param="max_length")
    await context.plans.hit(caller.counted_as)
    try:
        imagined = [Device.imagined(card, place) for place, card in enumerate(cards)]
        return await optimal_batch_size(
            model, target, gpu_ids, context.settings, launcher=context.launcher, imagined=imagined, **given
        )
    except ValueError as error:
        raise cannot(scrub(str(error), context.settings), code="no_plan") from None
