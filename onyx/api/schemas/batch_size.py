"""Bodies and answers of the batch size endpoints."""

from typing import Annotated, Literal

from pydantic import ConfigDict, Field

from onyx.api.schemas.common import Amount, Answer, Body, Fraction, GpuIds, Json, ModelName


class Card(Body):
    """A GPU to plan for; this host need not have it."""

    name: Annotated[str, Field(min_length=1, max_length=100)]
    memory_gb: Annotated[float, Field(gt=0, le=10_000)]


class BatchSizeBody(Body):
    model_name: ModelName
    target_effective_batch_size: Amount
    gpu_ids: GpuIds | None = None
    max_memory_usage: Fraction = 0.9
    max_length: Annotated[int, Field(ge=2, le=10_000_000)] | None = None
    method: Literal["full", "lora"] = "full"
    objective: Literal["sft", "dpo"] = "sft"
    """With "dpo" a sample is a pair of answers."""

    precision: Literal["auto", "float32", "bf16", "fp16"] = "auto"
    gpus: Annotated[list[Card], Field(min_length=1, max_length=1024)] | None = None
    """GPUs to plan for instead of this host's."""

    model_config = ConfigDict(
        json_schema_extra={"examples": [{"model_name": "onyx/tiny", "target_effective_batch_size": 64}]}
    )


class BatchSizeAnswer(Answer):
    success: bool = True
    target_effective_batch_size: int
    actual_batch_size_per_gpu: int
    total_gpus: int
    accumulation_steps: int
    effective_batch_size: int
    gpu_info: Json
    plan: Json


class BatchSizes(Answer):
    batch_size_per_gpu: int
    accumulation_steps: int
    effective_batch_size: int
    total_gpus: int


class BatchSizeRecommendation(Answer):
    model_name: str
    target_batch_size: int
    recommendations: BatchSizes
    gpu_info: Json


class EffectiveBatchSize(Answer):
    actual_batch_size: int
    accumulation_steps: int
    effective_batch_size: int
    calculation: str


class AccumulationSteps(Answer):
    target_batch_size: int
    actual_batch_size: int
    accumulation_steps: int
    calculation: str


class LearningRate(Answer):
    base_learning_rate: float
    accumulation_steps: int
    adjusted_learning_rate: float
    calculation: str


class OptimizeBody(Body):
    action: Literal["calculate", "optimize", "monitor"]
    model_name: ModelName | None = None
    target_batch_size: Amount = 32
    gpu_ids: GpuIds | None = None

    model_config = ConfigDict(
        json_schema_extra={"examples": [{"action": "monitor"}, {"action": "calculate", "model_name": "onyx/tiny"}]}
    )


class OptimizeAnswer(Answer):
    success: bool = True
    action: str
    details: Json
