"""Plans for jobs: what the planner gets, and what the ranks get."""

from pathlib import Path

import numpy as np
import pytest

from onyx.memory.devices.device import Device
from onyx.memory.errors import DoesNotFitError, PlanError
from onyx.memory.footprint.overhead import ASSUMED_CUDA
from onyx.memory.recipe import Lora, Recipe
from onyx.training.contract.errors import UserError
from onyx.training.contract.prepared import Planned
from onyx.training.contract.spec import DataSpec, JobSpec, LoraSpec, TrainingSpec
from onyx.training.models.load import build_empty, load_config
from onyx.training.models.tiny import make_tiny
from onyx.training.prepare.plan_job import (
    MOST_LENGTHS,
    _thin,
    choose_precision,
    plan_job,
    short_names,
    working_precision,
)

GB = 2**30


def cpu(index: int = 0, memory: int = 4 * GB) -> Device:
    return Device(kind="cpu", index=index, name="CPU", memory_total=memory, memory_free=memory, cores=1)


def card(name: str) -> Device:
    return Device.imagined({"name": name, "memory_gb": 16}, 0)


@pytest.fixture(scope="module")
def home(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return tmp_path_factory.mktemp("home")


@pytest.fixture(autouse=True)
def _known_host(home: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Without measuring the host, which takes seconds."""
    monkeypatch.setenv("ONYX_HOME", str(home))
    monkeypatch.setattr("onyx.memory.planning.device_fit.overhead_of", lambda _: ASSUMED_CUDA)


def make(home: Path, devices: list[Device], training: TrainingSpec | None = None, window: int = 32) -> Planned:
    config = load_config(make_tiny(home / "models"))
    spec = JobSpec(model="onyx/tiny", data=DataSpec(texts=["a"]), training=training or TrainingSpec(), window=window)
    lengths = np.arange(2, 66)
    return plan_job(spec, config, build_empty(config), lengths, len(lengths), devices)


def test_a_job_gets_a_share_per_device(home: Path) -> None:
    planned = make(home, [cpu(0), cpu(1)])
    assert [each.device for each in planned.shares] == ["cpu:0", "cpu:1"]
    assert sum(each.share for each in planned.shares) == pytest.approx(1)
    assert all(each.token_budget >= 65 and each.memory_bytes for each in planned.shares)
    assert planned.precision == "float32"
    assert planned.plan["model"] == "onyx/tiny"  # not a path of the host
    assert planned.plan["window"] == 32
    assert str(home) not in planned.model_dump_json()


def test_the_window_is_not_larger_than_the_samples_that_are_trained_on(home: Path) -> None:
    assert make(home, [cpu()], window=500).plan["window"] == 64


def test_adapters_are_planned_for_the_layers_they_adapt(home: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    recipes: list[Recipe] = []

    def note(recipe: Recipe, **_: object) -> None:
        recipes.append(recipe)
        raise PlanError("enough")

    monkeypatch.setattr("onyx.training.prepare.plan_job.plan", note)
    with pytest.raises(UserError, match="enough"):
        make(home, [cpu()], TrainingSpec(method="lora", lora=LoraSpec(r=4, alpha=3, dropout=0.5)))
    names = ("down_proj", "gate_proj", "k_proj", "o_proj", "q_proj", "up_proj", "v_proj")
    assert recipes[0].lora == Lora(r=4, alpha=3, dropout=0.5, target_modules=names)
    assert recipes[0].max_length == 65
    with pytest.raises(UserError) as error:
        make(home, [cpu()], TrainingSpec(method="lora", lora=LoraSpec(target_modules=["nothing_like_it"])))
    assert (error.value.code, error.value.param) == ("lora_target_modules", "training.lora.target_modules")


def test_short_names_must_match_the_same_modules() -> None:
    names = ["a.0.q", "a.1.q", "a.0.k", "a.1.k", "head"]
    assert short_names({"a.0.q", "a.1.q"}, names) == ("q",)
    assert short_names({"q", "a.0.k"}, names) == ("a.0.k", "q")
    assert short_names({"q", "k"}, names) == ("k", "q")


def test_a_job_that_does_not_fit_is_a_user_error(home: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def refuse(*_: object, **__: object) -> None:
        raise DoesNotFitError(needs=GB, length=9, shortages={"cpu:0": 5}, alternatives=[])

    monkeypatch.setattr("onyx.training.prepare.plan_job.plan", refuse)
    with pytest.raises(UserError, match=r"needs 1\.0 GB at micro-batch 1 × 9 tokens") as error:
        make(home, [cpu()])
    assert error.value.code == "does_not_fit"


@pytest.mark.parametrize(
    ("wanted", "names", "chosen"),
    [
        ("auto", ["NVIDIA A100-SXM4-40GB"], "bf16"),
        ("auto", ["NVIDIA GeForce RTX 3090", "NVIDIA H100"], "bf16"),
        ("auto", ["NVIDIA L4", "Tesla T4"], "float32"),
        ("auto", ["Tesla V100-SXM2-16GB"], "float32"),
        ("auto", ["Quadro RTX 6000"], "float32"),
        ("auto", ["NVIDIA RTX A6000"], "bf16"),
        ("fp16", ["Tesla T4"], "fp16"),
    ],
)
def test_auto_is_bf16_if_every_gpu_supports_it(wanted: str, names: list[str], chosen: str) -> None:
    assert choose_precision(wanted, [card(name) for name in names]) == chosen  # type: ignore[arg-type]


def test_auto_is_float32_on_the_cpu() -> None:
    assert choose_precision("auto", [cpu()]) == "float32"
    assert choose_precision("auto", []) == "float32"


def test_a_precision_that_crashes_this_cpu_becomes_float32_with_a_warning(
    home: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("onyx.training.prepare.plan_job.precision_trouble", lambda _: "it was killed by SIGILL")
    planned = make(home, [cpu()], TrainingSpec(precision="bf16"))
    assert planned.precision == "float32"
    assert planned.plan["precision"] == "float32"
    (warning,) = [each for each in planned.plan["warnings"] if "bf16" in each]
    assert "it was killed by SIGILL" in warning
    assert working_precision("bf16", [card("NVIDIA L4")]) == ("bf16", [])  # a GPU needs no trial


def test_a_precision_that_works_is_kept(home: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("onyx.training.prepare.plan_job.precision_trouble", lambda _: None)
    planned = make(home, [cpu()], TrainingSpec(precision="bf16"))
    assert planned.precision == "bf16"
    assert not [each for each in planned.plan["warnings"] if "bf16" in each]


def test_many_lengths_are_thinned_without_losing_the_ends() -> None:
    lengths = np.arange(2, 100_000)
    thin = _thin(lengths)
    assert len(thin) == MOST_LENGTHS
    assert (min(thin), max(thin)) == (2, 99_999)
