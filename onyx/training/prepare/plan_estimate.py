"""A plan without a job, from the model's config alone. Runs in a helper process of `onyx/jobs/batch_size.py`."""

from pathlib import Path
from typing import Any

from onyx.training.contract import model_names
from onyx.training.contract.attempt import Exit, Failure
from onyx.training.contract.prepared import Estimate, EstimateRequest, Roots


def main(request_path: str) -> int:
    """Write plan.json, or error.json with what to change."""
    from onyx import fs
    from onyx.training.contract.errors import UserError

    request = EstimateRequest.model_validate_json(Path(request_path).read_bytes())
    try:
        estimate = Estimate(plan=_plan(request))
    except (UserError, ValueError) as error:
        failure = error.failure() if isinstance(error, UserError) else Failure(code="no_plan", message=str(error))
        fs.write_text(request.out / "error.json", failure.model_dump_json())
        return Exit.USER_ERROR
    fs.write_text(request.out / "plan.json", estimate.model_dump_json())
    return Exit.DONE


def _plan(request: EstimateRequest) -> dict[str, Any]:
    from onyx.memory.planner import plan
    from onyx.memory.recipe import Recipe
    from onyx.training.prepare.plan_job import choose_precision

    recipe = Recipe(
        model=_config_source(request.model, request.roots),
        method=request.method,
        precision=choose_precision(request.precision, request.devices),
        task="causal-lm" if request.objective == "dpo" else "auto",
        objective=request.objective,
        max_length=request.max_length or 512,
    )
    made = plan(
        recipe,
        effective_batch=request.window,
        devices=request.devices,
        max_memory_usage=request.max_memory_usage,
        memory_safety_margin=request.memory_safety_margin,
    )
    return {**made.to_dict(), "model": request.model}


def _config_source(name: str, roots: Roots) -> str:
    """A directory on this host, or a hub id: the planner reads nothing but the config."""
    from onyx.training.models.directory import path_inside
    from onyx.training.models.resolve import resolve

    made_here = name == model_names.TINY or (name in model_names.SMOLLM2 and model_names.smollm2_gguf() is not None)
    operators = roots.models is not None and path_inside(roots.models, name) is not None
    return str(resolve(name, roots)) if made_here or operators or not model_names.is_hub_name(name) else name
