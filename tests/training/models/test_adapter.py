"""Adapters that cannot be merged."""

import json
from pathlib import Path

import pytest

from onyx.training.contract.errors import ModelError
from onyx.training.contract.spec import LoraSpec
from onyx.training.models.adapter import base_model, merge_adapter
from onyx.training.models.load import load_model


@pytest.mark.parametrize("value", [None, "", 3, "x" * 5000])
def test_an_adapter_without_a_base_model_is_refused(tmp_path: Path, value: object) -> None:
    (tmp_path / "adapter_config.json").write_text(json.dumps({"base_model_name_or_path": value}))
    with pytest.raises(ModelError, match="does not name its base model"):
        base_model(tmp_path)


def test_an_adapter_of_another_shape_is_refused(tmp_path: Path, tiny: Path) -> None:
    from safetensors.torch import load_file, save_file

    load_model(tiny, method="lora", lora=LoraSpec(r=2)).save_pretrained(tmp_path / "a")  # type: ignore[operator]
    file = tmp_path / "a" / "adapter_model.safetensors"
    save_file({name: each[:1] for name, each in load_file(file).items()}, file)
    with pytest.raises(ModelError) as error:
        merge_adapter(tmp_path / "a", tiny, tmp_path / "models")
    assert error.value.code == "adapter_unsupported"
    assert not list((tmp_path / "models").glob("merged-*"))
