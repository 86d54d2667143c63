from pathlib import Path

import pytest
import torch
from safetensors.torch import load_file

from onyx.training.state.tensor_files import read_tensors, write_tensors

TENSORS = {
    "a": torch.arange(6.0).reshape(2, 3),
    "b.step": torch.tensor(7.0),
    "transposed": torch.arange(6.0).reshape(2, 3).t(),
    "half": torch.tensor([1.5, float("nan")], dtype=torch.bfloat16),
    "empty": torch.zeros(0, 4),
}


def test_the_library_reads_what_was_written(tmp_path: Path) -> None:
    write_tensors(tmp_path / "x.safetensors", TENSORS)
    found = load_file(tmp_path / "x.safetensors")
    assert found.keys() == TENSORS.keys()
    for name, tensor in TENSORS.items():
        assert torch.equal(found[name].nan_to_num(9), tensor.nan_to_num(9))
        assert found[name].dtype == tensor.dtype


def test_tensors_come_back_to_the_bit(tmp_path: Path) -> None:
    write_tensors(tmp_path / "x.safetensors", TENSORS)
    into = {name: torch.zeros_like(tensor) for name, tensor in TENSORS.items()}
    read_tensors(tmp_path / "x.safetensors", into)
    assert torch.equal(into["transposed"], TENSORS["transposed"])
    assert into["b.step"].item() == 7.0


@pytest.mark.parametrize("into", [{"a": torch.zeros(2, 3)}, {**TENSORS, "a": torch.zeros(3, 2)}])
def test_another_model_is_refused(tmp_path: Path, into: dict[str, torch.Tensor]) -> None:
    write_tensors(tmp_path / "x.safetensors", TENSORS)
    with pytest.raises(ValueError, match=r"x\.safetensors"):
        read_tensors(tmp_path / "x.safetensors", into)
