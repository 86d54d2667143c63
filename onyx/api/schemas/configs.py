"""Bodies and answers of the config endpoints."""

from typing import Annotated, Literal

from pydantic import ConfigDict, Field

from onyx.api.schemas.common import Amount, Answer, Body, Fraction, Json


class ConfigBody(Body):
    """An accumulation config. Every field has the documented default."""

    accumulation_steps: Amount = 4
    target_effective_batch_size: Amount | None = None
    target_batch_size: Amount | None = None
    max_memory_usage: Fraction = 0.9
    memory_safety_margin: Fraction = 0.1
    auto_adjust_batch_size: bool = True
    sync_gradients: bool = True
    gradient_scaling: bool = True
    mixed_precision: bool = True
    log_accumulation: bool = True
    log_memory_usage: bool = True
    gradient_clipping: Annotated[float, Field(gt=0)] | None = 1.0
    warmup_steps: Annotated[int, Field(ge=0, le=1_000_000)] = 0
    accumulation_scheduler: Literal["linear", "cosine", "step"] | None = None

    model_config = ConfigDict(
        json_schema_extra={
            "examples": [
                {
                    "accumulation_steps": 4,
                    "target_effective_batch_size": 32,
                    "mixed_precision": True,
                    "gradient_clipping": 1.0,
                }
            ]
        }
    )

    @property
    def target(self) -> int | None:
        """The wanted effective batch size, under either of its documented names."""
        return self.target_effective_batch_size or self.target_batch_size

    @property
    def learning_rate_scale(self) -> float:
        return 1 / self.accumulation_steps if self.gradient_scaling else 1.0


class ConfigMade(Answer):
    success: bool = True
    training_id: str
    config: Json
    effective_batch_size: int
    accumulation_steps: int
    learning_rate_scale: float


class ConfigAnswer(Answer):
    training_id: str
    config: Json
    timestamp: float


class ConfigUpdated(Answer):
    success: bool = True
    training_id: str
    message: str = "Configuration updated successfully"
    config: Json


class Cleaned(Answer):
    success: bool = True
    message: str
    cleaned_sessions: int
