import pytest
import torch
from torch import nn
from torch.optim import SGD

from onyx.server.features.ads.gradient_accumulation import GradientAccumulationAPI, GradientAccumulationConfig


def test_create_read_update_and_clean_up_a_training() -> None:
    api = GradientAccumulationAPI()
    assert api.create_accumulator(GradientAccumulationConfig(), "one") == "one"
    assert api.get_accumulation_stats("one")["accumulation_steps"] == 4
    api.update_config("one", GradientAccumulationConfig(accumulation_steps=8))
    assert api.get_accumulation_stats("one")["accumulation_steps"] == 8
    api.cleanup("one")
    api.cleanup("one")  # no error
    with pytest.raises(ValueError, match="Training ID one not found"):
        api.get_accumulation_stats("one")


def test_unknown_ids_are_refused() -> None:
    with pytest.raises(ValueError, match="Training ID unknown not found"):
        GradientAccumulationAPI().update_config("unknown", GradientAccumulationConfig())


def test_cleanup_drops_open_gradients() -> None:
    api = GradientAccumulationAPI()
    model = nn.Linear(1, 1)
    for name in ("a", "b"):
        api.create_accumulator(GradientAccumulationConfig(), name)
    api.get_accumulator("a").accumulate_gradients(model(torch.ones(1, 1)).sum(), model, SGD(model.parameters()))
    api.cleanup_all()
    assert model.weight.grad is None
    with pytest.raises(ValueError, match="not found"):
        api.get_accumulator("b")


def test_an_id_is_a_string_and_used_once() -> None:
    api = GradientAccumulationAPI()
    api.create_accumulator(GradientAccumulationConfig(), "a")
    with pytest.raises(ValueError, match="exists already"):
        api.create_accumulator(GradientAccumulationConfig(), "a")
    for bad in ("", None, 3):
        with pytest.raises(ValueError, match="training_id must be a name"):
            api.create_accumulator(GradientAccumulationConfig(), bad)  # type: ignore[arg-type]
