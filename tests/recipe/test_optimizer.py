"""One AdamW for ranks and for the planner."""

from torch import nn

from onyx.memory.footprint import calibrate, probe
from onyx.recipe.optimizer import make_optimizer
from onyx.training.contract.spec import TrainingSpec
from onyx.training.rank import optimizer as training


def model() -> nn.Module:
    return nn.Sequential(nn.Embedding(5, 4), nn.LayerNorm(4), nn.Linear(4, 3))


def test_planner_and_ranks_use_the_same() -> None:
    assert {each.make_optimizer for each in (calibrate, probe, training)} == {make_optimizer}


def test_a_job_names_the_numbers() -> None:
    spec = TrainingSpec(learning_rate=0.1, weight_decay=0.2, beta1=0.3, beta2=0.4, epsilon=0.5)
    optimizer = training.optimizer_for(model(), spec)
    seen = [(group["lr"], group["betas"], group["eps"], group["fused"]) for group in optimizer.param_groups]
    assert seen == [(0.1, (0.3, 0.4), 0.5, True)] * 2
    assert [(group["weight_decay"], {each.ndim for each in group["params"]}) for group in optimizer.param_groups] == [
        (0.2, {2}),
        (0.0, {1}),
    ]


def test_what_is_frozen_has_no_state() -> None:
    subject = model()
    subject[0].weight.requires_grad_(False)  # type: ignore[index]
    optimizer = make_optimizer(subject.parameters())
    trained = [each for each in subject.parameters() if each.requires_grad]
    assert set(optimizer.state) == set(trained)
    assert all(set(state) == {"step", "exp_avg", "exp_avg_sq"} for state in optimizer.state.values())
