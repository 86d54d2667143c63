"""Plan a batch size, and the documented batch size arithmetic."""

from typing import Annotated, Any

from fastapi import APIRouter, Query

from onyx.accumulation.rates import Rule, adjust_learning_rate
from onyx.api.deps import CallerDep, ContextDep
from onyx.api.http.errors import invalid
from onyx.api.onyx_route import OnyxRoute
from onyx.api.planning import plan_batch
from onyx.api.routes.stats import efficiency, running_jobs
from onyx.api.schemas.batch_size import (
    AccumulationSteps,
    BatchSizeAnswer,
    BatchSizeBody,
    BatchSizeRecommendation,
    BatchSizes,
    EffectiveBatchSize,
    LearningRate,
    OptimizeAnswer,
    OptimizeBody,
)
from onyx.api.schemas.common import MOST, WITH_BODY, GpuIds, ModelName, problems
from onyx.memory.devices.gpus import gpu_info

router = APIRouter(route_class=OnyxRoute, tags=["batch size"])

Number = Annotated[int, Query(ge=1, le=MOST)]


@router.post("/calculate-batch-size", responses=problems(*WITH_BODY))
async def calculate_batch_size(body: BatchSizeBody, context: ContextDep, caller: CallerDep) -> BatchSizeAnswer:
    """Plan micro-batch and accumulation steps for a model, on this host's GPUs or on others that the body names."""
    answer = await plan_batch(
        context,
        caller,
        body.model_name,
        body.target_effective_batch_size,
        body.gpu_ids,
        cards=[card.model_dump() for card in body.gpus or ()],
        max_memory_usage=body.max_memory_usage,
        max_length=body.max_length,
        method=body.method,
        objective=body.objective,
        precision=body.precision,
    )
    return BatchSizeAnswer.model_validate(answer)


@router.get("/calculate-batch-size", responses=problems(400, 422))
async def recommend_batch_size(
    context: ContextDep,
    caller: CallerDep,
    model_name: Annotated[ModelName, Query()],
    target_batch_size: Number = 32,
    gpu_ids: Annotated[GpuIds | None, Query()] = None,
) -> BatchSizeRecommendation:
    """The same plan in short."""
    answer = await plan_batch(context, caller, model_name, target_batch_size, gpu_ids)
    return BatchSizeRecommendation(
        model_name=model_name,
        target_batch_size=target_batch_size,
        recommendations=BatchSizes(
            batch_size_per_gpu=answer["actual_batch_size_per_gpu"],
            accumulation_steps=answer["accumulation_steps"],
            effective_batch_size=answer["effective_batch_size"],
            total_gpus=answer["total_gpus"],
        ),
        gpu_info=answer["gpu_info"],
    )


@router.post("/optimize", responses=problems(*WITH_BODY))
async def optimize(body: OptimizeBody, context: ContextDep, caller: CallerDep) -> OptimizeAnswer:
    """calculate: a plan; optimize: that plan and one with LoRA; monitor: running jobs and their GPUs."""
    if body.action == "monitor":
        jobs = await running_jobs(context, caller)
        details: dict[str, Any] = {
            "running": {job.id: job.progress.model_dump() if job.progress else None for job in jobs},
            "accumulation_efficiency": await efficiency(context, jobs),
            "gpu_info": gpu_info(await context.gpus()),
        }
        return OptimizeAnswer(action=body.action, details=details)
    if body.model_name is None:
        raise invalid(f"the action {body.action} needs model_name", param="model_name")
    details = await plan_batch(context, caller, body.model_name, body.target_batch_size, body.gpu_ids)
    if body.action == "optimize":
        lora = await plan_batch(context, caller, body.model_name, body.target_batch_size, body.gpu_ids, method="lora")
        details = {"full": details, "lora": lora}
    return OptimizeAnswer(action=body.action, details=details)


@router.post("/calculate-effective-batch-size", responses=problems(422))
async def calculate_effective_batch_size(actual_batch_size: Number, accumulation_steps: Number) -> EffectiveBatchSize:
    """Micro-batch times accumulation steps."""
    effective = actual_batch_size * accumulation_steps
    return EffectiveBatchSize(
        actual_batch_size=actual_batch_size,
        accumulation_steps=accumulation_steps,
        effective_batch_size=effective,
        calculation=f"{actual_batch_size} * {accumulation_steps} = {effective}",
    )


@router.post("/calculate-accumulation-steps", responses=problems(422))
async def calculate_accumulation_steps(target_batch_size: Number, actual_batch_size: Number) -> AccumulationSteps:
    """How many micro-batches reach a target, rounded up."""
    steps = -(-target_batch_size // actual_batch_size)
    return AccumulationSteps(
        target_batch_size=target_batch_size,
        actual_batch_size=actual_batch_size,
        accumulation_steps=steps,
        calculation=f"ceil({target_batch_size} / {actual_batch_size}) = {steps}",
    )


_CALCULATIONS = {
    "inverse": "{rate:g} / {steps}",
    "linear": "{rate:g} * {steps}",
    "sqrt": "{rate:g} * sqrt({steps})",
    "none": "{rate:g}",
}


@router.post("/adjust-learning-rate", responses=problems(422))
async def adjust_rate(
    base_lr: Annotated[float, Query(gt=0, le=1e6, allow_inf_nan=False)],
    accumulation_steps: Number,
    rule: Rule = "inverse",
) -> LearningRate:
    """Scale a learning rate; the documented rule divides. A job itself uses the learning rate of its request."""
    adjusted = adjust_learning_rate(base_lr, accumulation_steps, rule=rule)
    formula = _CALCULATIONS[rule].format(rate=base_lr, steps=accumulation_steps)
    return LearningRate(
        base_learning_rate=base_lr,
        accumulation_steps=accumulation_steps,
        adjusted_learning_rate=adjusted,
        calculation=f"{formula} = {adjusted:g}",
    )
