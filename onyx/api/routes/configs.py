"""Accumulation configs: stored ones, and those of jobs."""

from typing import Any

from fastapi import APIRouter

from onyx.api.deps import CallerDep, ContextDep, TrainingId
from onyx.api.http.errors import not_allowed, not_found
from onyx.api.onyx_route import OnyxRoute
from onyx.api.schemas.common import WITH_BODY, problems
from onyx.api.schemas.configs import ConfigAnswer, ConfigBody, ConfigMade, ConfigUpdated
from onyx.jobs.models import ConfigChange, Job

router = APIRouter(route_class=OnyxRoute, tags=["configuration"])

MICRO_BATCH = 8
"""The micro-batch that the documented answer assumes where there is no plan."""

CHANGEABLE = frozenset({"accumulation_steps", "gradient_clipping"})
"""Fields that may change while a job runs."""


@router.post("/config", responses=problems(*WITH_BODY))
async def create_config(body: ConfigBody, context: ContextDep, caller: CallerDep) -> ConfigMade:
    """Store a config for later jobs."""
    stored = await context.store.configs.put(caller.name, body.model_dump(), most=context.settings.configs_per_owner)
    return ConfigMade(
        training_id=stored.id,
        config=stored.config,
        effective_batch_size=body.target or MICRO_BATCH * body.accumulation_steps,
        accumulation_steps=body.accumulation_steps,
        learning_rate_scale=body.learning_rate_scale,
    )


@router.get("/config/{training_id}", responses=problems(404, 422))
async def get_config(training_id: TrainingId, context: ContextDep, caller: CallerDep) -> ConfigAnswer:
    """A stored config, or the config of a job."""
    stored = await context.store.configs.get(training_id, caller.sees)
    if stored is not None:
        return ConfigAnswer(training_id=stored.id, config=stored.config, timestamp=stored.updated_at)
    job = await context.store.jobs.get(training_id, caller.sees)
    if job is None:
        raise not_found("config or training", training_id)
    return ConfigAnswer(training_id=job.id, config=config_of(job), timestamp=job.created_at)


@router.put("/config/{training_id}", responses=problems(*WITH_BODY, 404))
async def update_config(
    training_id: TrainingId, body: ConfigBody, context: ContextDep, caller: CallerDep
) -> ConfigUpdated:
    """Replace a stored config, or change N and clipping of an unfinished job from its next window on."""
    stored = await context.store.configs.update(training_id, body.model_dump(), caller.sees)
    if stored is not None:
        return ConfigUpdated(training_id=stored.id, config=stored.config)
    if await context.store.jobs.get(training_id, caller.sees) is None:
        raise not_found("config or training", training_id)
    job = await context.home.reconfigure(training_id, _job_change(body), caller.sees)
    return ConfigUpdated(training_id=job.id, config=config_of(job))


def _job_change(body: ConfigBody) -> ConfigChange:
    fixed = body.model_fields_set - CHANGEABLE
    if fixed or not body.model_fields_set:
        names = f", not {', '.join(sorted(fixed))}" if fixed else ""
        raise not_allowed(f"of a job only {' and '.join(sorted(CHANGEABLE))} can change{names}: send just these")
    return ConfigChange.model_validate(body.model_dump(include=set(body.model_fields_set)))


def config_of(job: Job) -> dict[str, Any]:
    """How a job accumulates, as a config: from its spec and plan, with later changes."""
    spec = job.spec
    plan = (job.prepared or {}).get("planned") or {}
    steps = spec.accumulation_steps or plan.get("plan", {}).get("accumulation_steps")
    config = ConfigBody().model_dump() | {
        "accumulation_steps": steps,
        "target_effective_batch_size": spec.window,
        "max_memory_usage": spec.max_memory_usage,
        "memory_safety_margin": spec.memory_safety_margin,
        "gradient_clipping": spec.training.gradient_clipping,
        "mixed_precision": spec.training.precision != "float32",
        "warmup_steps": spec.training.accumulation_warmup,
        "accumulation_scheduler": spec.training.accumulation_scheduler,
    }
    return config | (job.config.change.given() if job.config else {})
