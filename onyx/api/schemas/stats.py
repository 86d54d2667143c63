"""Answers about the service, its devices and the statistics of trainings."""

from onyx.api.schemas.common import Answer, Json


class Stats(Answer):
    training_id: str
    accumulation_steps: int | None
    current_step: int
    total_loss: float | None
    total_samples: int
    avg_gradient_norm: float
    avg_memory_usage_gb: float
    avg_accumulation_time: float
    gradient_norms: list[float]
    memory_usage: list[float]
    accumulation_times: list[float]


class Session(Answer):
    training_id: str
    model_name: str
    accumulation_steps: int | None
    effective_batch_size: int | None
    total_loss: float | None
    avg_gradient_norm: float
    avg_memory_usage_gb: float
    timestamp: float


class Sessions(Answer):
    """The newest first, at most twenty of them; `total_sessions` counts all."""

    total_sessions: int
    accumulation_stats: list[Session]


class Alive(Answer):
    status: str


class Ready(Answer):
    """Whether requests can be sent here: true if all of the others are."""

    ready: bool
    store: bool
    migrated: bool
    runner: bool


class Health(Answer):
    status: str
    timestamp: float
    pytorch_available: bool
    gpu_count: int
    available_gpus: list[int]
    gpu_info: Json


class Performance(Answer):
    timestamp: float
    gpu_count: int
    available_gpus: int
    gpu_utilization: dict[str, float | None]
    memory_utilization: dict[str, float | None]
    accumulation_efficiency: dict[str, float]
    """Per running job, the share of its micro-batches' token budgets that real tokens fill."""


class Recommendations(Answer):
    recommended_accumulation_steps: int
    max_batch_size_per_gpu: int
    memory_efficiency: str


class OptimalSettings(Answer):
    batch_size_per_gpu: int
    accumulation_steps: int
    effective_batch_size: int
    learning_rate_scale: float


class PerformanceAdvice(Answer):
    model_size: str
    target_batch_size: int
    recommendations: Recommendations
    optimal_settings: OptimalSettings
