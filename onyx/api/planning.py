"""Ask the planner for a batch size. It runs in a helper process: the service itself loads no model and no torch."""

from collections.abc import Sequence
from typing import Any

from onyx.api.app_context import AppContext
from onyx.api.http.caller import Caller
from onyx.api.http.errors import invalid, not_allowed
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
    """The planner's answer. 400 if nothing fits, with what would; 429 if the caller asks for too many plans.

    `cards` are GPUs to plan for instead of this host's; options that are None keep their default.
    """
    given = {name: value for name, value in options.items() if value is not None}
    if given.get("max_length", 0) > context.settings.most_max_length:
        raise invalid(f"max_length may be at most {context.settings.most_max_length} here", param="max_length")
    await context.plans.hit(caller.limit_key)
    try:
        imagined = [Device.imagined(card, index) for index, card in enumerate(cards)]
        return await optimal_batch_size(
            model, target, gpu_ids, context.settings, launcher=context.launcher, imagined=imagined, **given
        )
    except ValueError as error:
        raise not_allowed(scrub(str(error), context.settings), code="no_plan") from None
