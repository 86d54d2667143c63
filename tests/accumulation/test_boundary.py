import math

import pytest
import torch
from torch import nn
from torch.optim import SGD, AdamW

from onyx.accumulation.boundary import Update, clear, close, parameters_of
from onyx.accumulation.loss_scaling import DynamicLossScaler, DynamicLossScalerConfig, DynamicScaling, TorchScaling
from onyx.accumulation.window import Window


def one_step(layer: nn.Linear, optimizer: torch.optim.Optimizer, value: float = 1.0, **options: object) -> Update:
    window = Window(length=1)
    window.take(layer(torch.full((1, 2), value)).sum()).backward()
    return close(window, optimizer, **options)  # type: ignore[arg-type]


def test_a_step_clears_gradients_to_none() -> None:
    layer = nn.Linear(2, 1)
    update = one_step(layer, SGD(layer.parameters(), lr=0.1))
    assert update.stepped
    assert update.skipped is None
    assert layer.weight.grad is None


def test_the_norm_is_that_before_clipping_over_all_groups() -> None:
    layer = nn.Linear(2, 1)
    optimizer = SGD([{"params": [layer.weight], "lr": 1.0}, {"params": [layer.bias], "lr": 1.0}])
    before = torch.cat([layer.weight.detach().reshape(-1), layer.bias.detach()])
    update = one_step(layer, optimizer, value=3.0, max_norm=1.0)
    after = torch.cat([layer.weight.detach().reshape(-1), layer.bias.detach()])
    assert update.norm == pytest.approx(math.sqrt(3**2 + 3**2 + 1))
    assert float((before - after).norm()) == pytest.approx(1.0, rel=1e-5)


@pytest.mark.parametrize("bad", [math.nan, math.inf])
@pytest.mark.parametrize("max_norm", [None, 1.0])
def test_what_is_not_finite_is_skipped(bad: float, max_norm: float | None) -> None:
    layer = nn.Linear(2, 1)
    optimizer = AdamW(layer.parameters())
    before = layer.weight.detach().clone()
    update = one_step(layer, optimizer, value=bad, max_norm=max_norm)
    assert not update.stepped
    assert update.skipped == "not finite"
    assert torch.equal(layer.weight, before)
    assert layer.weight.grad is None
    assert not optimizer.state


def test_a_window_without_weight_is_skipped() -> None:
    layer = nn.Linear(2, 1)
    window = Window(length=1)
    window.take(layer(torch.ones(1, 2)).sum(), weight=0).backward()
    update = close(window, SGD(layer.parameters(), lr=1.0))
    assert update.skipped == "no weight"
    assert layer.weight.grad is None


def test_a_torch_scaler_skips_exactly_the_window_with_an_inf() -> None:
    layer = nn.Linear(2, 1)
    optimizer = SGD(layer.parameters(), lr=0.01)
    scaling = TorchScaling(torch.amp.GradScaler("cpu", init_scale=1024.0))
    outcomes = []
    for update in range(5):
        window = Window(length=2)
        for micro in range(2):
            loss = layer(torch.ones(1, 2)).sum()
            if (update, micro) == (2, 0):
                loss = loss * math.inf
            scaling.scale(window.take(loss)).backward()
        outcomes.append(close(window, optimizer, scaling=scaling, max_norm=1.0))
    assert [outcome.stepped for outcome in outcomes] == [True, True, False, True, True]
    assert outcomes[0].norm == pytest.approx(math.sqrt(3))  # measured after unscaling
    assert scaling.factor() == 512.0


def test_the_documented_scaler_backs_off_and_steps_on() -> None:
    layer = nn.Linear(2, 1)
    optimizer = SGD(layer.parameters(), lr=0.01)
    scaler = DynamicLossScaler(DynamicLossScalerConfig(initial_scale=8.0))
    norms = []
    for value in (1.0, math.inf, 1.0):
        window = Window(length=1)
        DynamicScaling(scaler).scale(window.take(layer(torch.full((1, 2), value)).sum())).backward()
        norms.append(close(window, optimizer, scaling=DynamicScaling(scaler)).norm)
    assert norms[0] == norms[2] == pytest.approx(math.sqrt(3))
    assert scaler.scale == 4.0


def test_half_precision_stays_within_its_own_error() -> None:
    torch.manual_seed(1)
    layer = nn.Linear(4, 2)
    xs = torch.randn(6, 4)
    layer(xs).pow(2).mean().backward()
    assert layer.weight.grad is not None
    exact = layer.weight.grad.clone()
    clear(layer.parameters())
    scaling = TorchScaling(torch.amp.GradScaler("cpu", init_scale=256.0))
    window = Window(length=3)
    for part in xs.split(2):
        with torch.autocast("cpu", dtype=torch.float16):
            loss = layer(part).float().pow(2).mean()
        scaling.scale(window.take(loss)).backward()
    before = layer.weight.detach().clone()
    close(window, SGD(layer.parameters(), lr=1.0), scaling=scaling)
    error = float((before - layer.weight.detach() - exact).norm() / exact.norm())
    assert 0 < error < 2e-3  # float16 carries 11 bits


def test_gradients_live_in_grad_only() -> None:
    """Every contribution is added to the same storage, that of `.grad`; the window holds no tensor."""
    layer = nn.Linear(2, 1)
    window = Window(length=3)
    window.take(layer(torch.ones(1, 2)).sum()).backward()
    assert layer.weight.grad is not None
    place = layer.weight.grad.data_ptr()
    for _ in range(2):
        window.take(layer(torch.ones(1, 2)).sum()).backward()
        assert layer.weight.grad.data_ptr() == place
    assert not [value for value in vars(window).values() if isinstance(value, torch.Tensor)]


def test_a_parameter_without_gradient_stays_where_it_is() -> None:
    used, unused = nn.Linear(2, 1), nn.Linear(2, 1)
    optimizer = AdamW([*used.parameters(), *unused.parameters()], weight_decay=0.5)
    before = unused.weight.detach().clone()
    one_step(used, optimizer, max_norm=1.0)
    assert torch.equal(unused.weight, before)
    assert len(parameters_of(optimizer)) == 4
