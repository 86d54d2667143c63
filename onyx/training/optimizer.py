"""AdamW as a job asks for it."""

from torch import nn
from torch.optim import AdamW

from onyx.memory.step import allocate_state
from onyx.training.spec import TrainingSpec


def make_optimizer(model: nn.Module, spec: TrainingSpec) -> AdamW:
    """Fused AdamW over what is trained, its state allocated. Norms and biases do not decay: they have one dimension."""
    trained = [parameter for parameter in model.parameters() if parameter.requires_grad]
    groups = [
        {"params": [each for each in trained if each.ndim >= 2], "weight_decay": spec.weight_decay},
        {"params": [each for each in trained if each.ndim < 2], "weight_decay": 0.0},
    ]
    optimizer = AdamW(
        [group for group in groups if group["params"]],
        lr=spec.learning_rate,
        betas=(spec.beta1, spec.beta2),
        eps=spec.epsilon,
        fused=True,
    )
    allocate_state(optimizer)
    return optimizer
