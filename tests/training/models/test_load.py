"""Loading the model that a rank trains."""

import json
import shutil
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
import torch
from safetensors.torch import load_file, save_file

from onyx.training.contract.errors import ModelError, UserError
from onyx.training.contract.spec import LoraSpec
from onyx.training.models.load import load_model


def state(model: torch.nn.Module) -> dict[str, torch.Tensor]:
    return {name: each.detach().clone() for name, each in model.named_parameters()}


def test_full_training_is_in_float32_whatever_the_precision(tiny: Path) -> None:
    model: Any = load_model(tiny, precision="bf16")
    assert {(each.dtype, each.requires_grad) for each in model.parameters()} == {(torch.float32, True)}
    assert model.training
    assert model.config.use_cache is False


@pytest.mark.parametrize(
    ("precision", "dtype"), [("float32", torch.float32), ("bf16", torch.bfloat16), ("fp16", torch.float16)]
)
def test_frozen_weights_have_the_precisions_dtype(tiny: Path, precision: Any, dtype: torch.dtype) -> None:
    model = load_model(tiny, method="lora", precision=precision)
    assert {each.dtype for each in model.parameters() if each.requires_grad} == {torch.float32}
    assert {each.dtype for each in model.parameters() if not each.requires_grad} == {dtype}


def test_a_model_stored_in_half_precision_is_trained_in_float32(tiny: Path, tmp_path: Path) -> None:
    shutil.copytree(tiny, tmp_path / "half")
    file = tmp_path / "half" / "model.safetensors"
    save_file({name: each.bfloat16() for name, each in load_file(file).items()}, file, metadata={"format": "pt"})
    assert {each.dtype for each in load_model(tmp_path / "half").parameters()} == {torch.float32}


def test_weights_are_not_in_a_mapped_file(tiny: Path) -> None:
    model = load_model(tiny)
    mapped = [
        line.split()[0] for line in Path("/proc/self/maps").read_text().splitlines() if "model.safetensors" in line
    ]
    ranges = [tuple(int(each, 16) for each in line.split("-")) for line in mapped]
    for each in model.parameters():
        assert not any(first <= each.data_ptr() < last for first, last in ranges)


def test_tied_weights_stay_tied(tiny: Path) -> None:
    for method in ("full", "lora"):
        model: Any = load_model(tiny, method=method)
        assert model.get_output_embeddings().weight is model.get_input_embeddings().weight


def test_adapters_depend_on_the_seed_and_do_not_change_the_callers_random_numbers(tiny: Path) -> None:
    torch.manual_seed(5)
    expected = torch.rand(1)
    torch.manual_seed(5)
    first = state(load_model(tiny, method="lora", seed=1))
    assert torch.equal(torch.rand(1), expected)
    again, other = (state(load_model(tiny, method="lora", seed=seed)) for seed in (1, 2))
    assert all(torch.equal(first[name], again[name]) for name in first)
    assert any(not torch.equal(first[name], other[name]) for name in first)


@pytest.mark.slow
def test_adapters_are_the_same_bits_in_another_process(tiny: Path) -> None:
    code = (
        "import hashlib; from pathlib import Path; from onyx.training.models.load import load_model\n"
        f"model = load_model(Path({str(tiny)!r}), method='lora', seed=9)\n"
        "print(hashlib.sha256(b''.join(p.detach().numpy().tobytes() for p in model.parameters())).hexdigest())"
    )
    run = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    import hashlib

    here = load_model(tiny, method="lora", seed=9)
    assert (
        run.stdout.strip()
        == hashlib.sha256(b"".join(p.detach().numpy().tobytes() for p in here.parameters())).hexdigest()
    )


def test_lora_options_reach_peft(tiny: Path) -> None:
    lora = LoraSpec(r=3, alpha=7, dropout=0.5, target_modules=["q_proj"])
    config = load_model(tiny, method="lora", lora=lora).peft_config["default"]  # type: ignore[index]
    assert (config.r, config.lora_alpha, config.lora_dropout) == (3, 7, 0.5)  # type: ignore[union-attr]
    assert config.target_modules == {"q_proj"}  # type: ignore[union-attr]
    with pytest.raises(UserError, match="target_modules"):
        load_model(tiny, method="lora", lora=LoraSpec(target_modules=["nothing"]))


@pytest.mark.parametrize("method", ["full", "lora"])
def test_gradient_checkpointing_changes_no_gradient(tiny: Path, method: Any) -> None:
    ids = torch.arange(20).reshape(2, 10)
    gradients = []
    for checkpointing in (False, True):
        model: Any = load_model(tiny, method=method, gradient_checkpointing=checkpointing)
        model(input_ids=ids, labels=ids).loss.backward()
        gradients.append({name: each.grad for name, each in model.named_parameters() if each.grad is not None})
    assert gradients[0].keys() == gradients[1].keys()
    for name, each in gradients[0].items():
        torch.testing.assert_close(each, gradients[1][name])


def test_missing_weights_are_an_error(tiny: Path, tmp_path: Path) -> None:
    shutil.copytree(tiny, tmp_path / "less")
    file = tmp_path / "less" / "model.safetensors"
    weights = load_file(file)
    del weights["model.layers.1.mlp.up_proj.weight"]
    save_file(weights, file, metadata={"format": "pt"})
    with pytest.raises(ModelError) as error:
        load_model(tmp_path / "less")
    assert error.value.code == "model_incomplete"


def test_a_damaged_file_is_a_model_error(tiny: Path, tmp_path: Path) -> None:
    shutil.copytree(tiny, tmp_path / "bad")
    (tmp_path / "bad" / "model.safetensors").write_bytes(b"\x80\x04nonsense")
    with pytest.raises(ModelError) as error:
        load_model(tmp_path / "bad")
    assert error.value.code == "model_unreadable"


def test_a_models_own_code_does_not_run(tiny: Path, tmp_path: Path) -> None:
    shutil.copytree(tiny, tmp_path / "evil")
    config = json.loads((tmp_path / "evil" / "config.json").read_text())
    config |= {"model_type": "evil", "auto_map": {"AutoConfig": "evil.C", "AutoModelForCausalLM": "evil.M"}}
    (tmp_path / "evil" / "config.json").write_text(json.dumps(config))
    (tmp_path / "evil" / "evil.py").write_text("raise SystemExit('ran')")
    with pytest.raises(ModelError) as error:
        load_model(tmp_path / "evil")
    assert error.value.code == "remote_code_refused"
