import pytest
import torch
from torch import nn

from benchmarks.memory_cases import llama
from onyx.memory.devices.device import Device
from onyx.memory.errors import DoesNotFitError, PlanError, SampleShapeError
from onyx.memory.footprint.model_builder import build
from onyx.memory.footprint.probe import trace
from onyx.memory.planning.module_batch import Sample, infer_sample, module_footprint, plan_batch
from onyx.memory.recipe import Recipe

GB = 2**30


def card(size: int, index: int = 0) -> Device:
    return Device(kind="cuda", index=index, name="card", memory_total=size, memory_free=size)


def mlp() -> nn.Module:
    return nn.Sequential(nn.Linear(100, 512), nn.ReLU(), nn.Linear(512, 10))


def image() -> nn.Module:
    return nn.Sequential(
        nn.Conv2d(3, 8, 3), nn.BatchNorm2d(8), nn.ReLU(), nn.AdaptiveAvgPool2d(1), nn.Flatten(), nn.Linear(8, 4)
    )


@pytest.mark.parametrize(
    ("model", "sample"),
    [
        (mlp(), Sample(shape=(100,), is_ids=False)),
        (image(), Sample(shape=(3, 224, 224), is_ids=False)),
        (nn.LSTM(7, 5, batch_first=True), Sample(shape=(128, 7), is_ids=False)),
        (nn.Sequential(nn.Embedding(50, 8), nn.Linear(8, 50)), Sample(shape=(512,), is_ids=True)),
    ],
)
def test_the_first_layer_tells_what_a_sample_looks_like(model: nn.Module, sample: Sample) -> None:
    assert infer_sample(model) == sample
    assert plan_batch(model, card(8 * GB), target=64) == 64


def test_a_batch_is_what_fits_on_every_device() -> None:
    small = plan_batch(mlp(), card(GB))
    assert small == plan_batch(mlp(), [card(8 * GB, 1), card(GB)]) < plan_batch(mlp(), card(8 * GB))
    assert plan_batch(mlp(), card(GB), target=16) == 16


def test_the_footprint_is_that_of_real_training() -> None:
    model, sample = mlp(), Sample(shape=(100,), is_ids=False)
    found = module_footprint(model, sample)

    def loss(count: int) -> torch.Tensor:
        output = model(torch.zeros(count, 100))
        return nn.functional.cross_entropy(output, torch.zeros(count, dtype=torch.long), reduction="sum")

    for samples in (2, 64, 1000):
        assert found.peak(samples, 1) == pytest.approx(trace(model, loss, samples).peak, rel=0.005)


def test_the_module_is_not_touched() -> None:
    model = image().eval()
    before = {name: each.clone() for name, each in model.state_dict().items()}
    plan_batch(model, card(8 * GB))
    assert all(torch.equal(before[name], each) for name, each in model.state_dict().items())
    assert not model.training
    assert all(each.grad is None for each in model.parameters())


def test_a_transformers_model() -> None:
    model = build(llama(depth=2), Recipe(model=None), "cpu")
    assert plan_batch(model, card(4 * GB)) < plan_batch(model, card(4 * GB), sample_shape=(64,))


class Odd(nn.Module):
    def forward(self, given: torch.Tensor) -> torch.Tensor:
        return given


def test_what_cannot_be_inferred_must_be_given() -> None:
    with pytest.raises(SampleShapeError, match="Odd looks like cannot be inferred: give sample_shape"):
        plan_batch(Odd(), card(GB))
    with pytest.raises(SampleShapeError, match="cannot be run with samples of shape"):
        plan_batch(mlp(), card(GB), sample_shape=(99,))


def test_bad_input() -> None:
    with pytest.raises(PlanError, match="max_memory_usage"):
        plan_batch(mlp(), card(GB), max_memory_usage=1.5)
    with pytest.raises(ValueError, match="at least one device"):
        plan_batch(mlp(), [])
    with pytest.raises(ValueError, match="target"):
        plan_batch(mlp(), card(GB), target=0)
    with pytest.raises(DoesNotFitError, match="needs"):
        plan_batch(nn.Linear(20_000, 20_000, device="meta"), card(GB))
