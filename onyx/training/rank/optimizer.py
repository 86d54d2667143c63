"""The optimizer that a job asks for."""

from torch import nn
from torch.optim import AdamW

from onyx.recipe.optimizer import make_optimizer
from onyx.training.contract.spec import TrainingSpec


def optimizer_for(model: nn.Module, spec: TrainingSpec) -> AdamW:
    """AdamW over what is trained of `model`, with the job's numbers."""
    return make_optimizer(
        model.parameters(),
        learning_rate=spec.learning_rate,
        weight_decay=spec.weight_decay,
        betas=(spec.beta1, spec.beta2),
        epsilon=spec.epsilon,
    )
