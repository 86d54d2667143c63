"""Names of models, and the directories that they may lead to."""

import json
import shutil
from pathlib import Path
from typing import Any

import pytest

from onyx.training.contract import model_names
from onyx.training.contract.errors import ModelError
from onyx.training.contract.prepared import Roots
from onyx.training.contract.spec import LoraSpec
from onyx.training.models import hub
from onyx.training.models.load import load_model
from onyx.training.models.resolve import allows_remote_code, resolve, resolve_unmerged


@pytest.fixture(autouse=True)
def _no_hub(monkeypatch: pytest.MonkeyPatch) -> None:
    def fetch(name: str, *_: Any, **__: Any) -> Path:
        raise ModelError("sent_to_the_hub", name)

    monkeypatch.setattr(hub, "fetch", fetch)


def code(name: str, roots: Roots) -> str:
    with pytest.raises(ModelError) as error:
        resolve(name, roots)
    return error.value.code


def publish_adapter(path: Path, base: Path, *, base_name: str | None = None) -> Any:
    """Write what a job with LoRA publishes."""
    model: Any = load_model(base, method="lora", lora=LoraSpec(r=2), seed=3)
    for name, each in model.named_parameters():
        if "lora_B" in name:
            each.data.fill_(0.01)
    model.save_pretrained(path)
    config = json.loads((path / "adapter_config.json").read_text())
    config["base_model_name_or_path"] = base_name or str(base)
    (path / "adapter_config.json").write_text(json.dumps(config))
    return model


def test_tiny_is_made_in_the_home(tmp_path: Path) -> None:
    path = resolve("onyx/tiny", Roots(home=tmp_path))
    assert path.parent == tmp_path / "models"
    assert resolve("onyx/tiny", Roots(home=tmp_path)) == path


def test_the_operators_root_comes_before_the_wheel_and_the_hub(tmp_path: Path, tiny: Path) -> None:
    name = model_names.SMOLLM2[0]
    shutil.copytree(tiny, tmp_path / "root" / name)
    assert resolve(name, Roots(home=tmp_path / "h", models=tmp_path / "root")) == tmp_path / "root" / name


@pytest.mark.parametrize("name", ["../x", "/etc", "a/../../b", "./x", "~/x", "a\\b", ".."])
@pytest.mark.parametrize("with_root", [True, False])
def test_names_outside_the_roots_are_refused(tmp_path: Path, name: str, with_root: bool) -> None:
    (tmp_path / "root").mkdir()
    roots = Roots(home=tmp_path / "h", models=tmp_path / "root" if with_root else None)
    assert code(name, roots) in ("model_outside_root", "model_not_found")


def test_other_names_go_to_the_hub(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "root").mkdir()
    roots = Roots(home=tmp_path, models=tmp_path / "root")
    assert code("owner/name", roots) == "sent_to_the_hub"
    assert code("a/b/c", roots) == "model_not_found"
    monkeypatch.setattr(model_names, "smollm2_gguf", lambda: None)
    with pytest.raises(ModelError, match="HuggingFaceTB/SmolLM2-135M-Instruct"):
        resolve("smollm2", roots)


def test_an_earlier_jobs_model_is_found_only_if_the_request_allows_it(tmp_path: Path, tiny: Path) -> None:
    for path in ("model", "snapshots/epoch-2"):
        shutil.copytree(tiny, tmp_path / "jobs" / "ftjob-1" / path)
    mine = Roots(home=tmp_path, jobs=("ftjob-1", "ftjob-2"))
    assert resolve("ftjob-1", mine) == tmp_path / "jobs" / "ftjob-1" / "model"
    assert resolve("ftjob-1:epoch-2", mine) == tmp_path / "jobs" / "ftjob-1" / "snapshots" / "epoch-2"
    assert code("ftjob-1", Roots(home=tmp_path)) == "sent_to_the_hub"
    assert code("ftjob-2", mine) == "model_not_found"
    assert code("ftjob-1:epoch-9", mine) == "model_not_found"
    assert code("ftjob-1:../../x", mine) == "model_outside_root"


def test_an_adapter_is_merged_into_its_base(tmp_path: Path, tokenizer: Any) -> None:
    import torch

    base = resolve("onyx/tiny", Roots(home=tmp_path))
    adapted = publish_adapter(tmp_path / "jobs" / "ftjob-1" / "model", base)
    roots = Roots(home=tmp_path, jobs=("ftjob-1",))
    path = resolve("ftjob-1", roots)
    assert path.parent == tmp_path / "models"
    assert path == resolve("ftjob-1", roots)
    ids = torch.tensor([tokenizer("hello")["input_ids"]])
    merged: Any = load_model(path)
    torch.testing.assert_close(merged(input_ids=ids).logits, adapted(input_ids=ids).logits, rtol=1e-4, atol=1e-5)
    assert not torch.equal(merged(input_ids=ids).logits, load_model(base)(input_ids=ids).logits)


def test_an_adapter_and_its_base_apart(tmp_path: Path) -> None:
    base = resolve("onyx/tiny", Roots(home=tmp_path))
    adapter = tmp_path / "jobs" / "ftjob-1" / "model"
    publish_adapter(adapter, base)
    roots = Roots(home=tmp_path, jobs=("ftjob-1",))
    assert resolve_unmerged("ftjob-1", roots) == (base, adapter)
    assert resolve_unmerged("onyx/tiny", roots) == (base, None)
    assert not list((tmp_path / "models").glob("merged-*"))
    with pytest.raises(ModelError):
        resolve_unmerged("ftjob-1", Roots(home=tmp_path, models=tmp_path / "none"))


def test_an_adapters_base_is_resolved_like_any_name(tmp_path: Path) -> None:
    base = resolve("onyx/tiny", Roots(home=tmp_path / "h"))
    root = tmp_path / "root"
    publish_adapter(root / "good", base, base_name="onyx/tiny")
    publish_adapter(root / "out", base, base_name="/etc")
    publish_adapter(root / "circle", base, base_name="circle")
    roots = Roots(home=tmp_path / "h", models=root)
    assert resolve("good", roots).name.startswith("merged-")
    assert code("out", roots) == "model_outside_root"
    assert code("circle", roots) == "adapter_unsupported"


def test_remote_code_is_allowed_only_for_models_that_the_operator_names(tmp_path: Path) -> None:
    roots = Roots(home=tmp_path, remote_code=("a/b",))
    assert allows_remote_code("a/b", roots)
    assert not allows_remote_code("a/c", roots)
    assert not allows_remote_code("a/b", Roots(home=tmp_path))
