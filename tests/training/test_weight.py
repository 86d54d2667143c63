from pathlib import Path

import numpy as np
import pytest
from safetensors.numpy import save_file

from onyx.training.errors import ModelError
from onyx.training.weight import loaded_bytes


def test_float32_whatever_the_files_hold(tmp_path: Path) -> None:
    save_file({"a": np.zeros((3, 5), np.float16)}, tmp_path / "model-1.safetensors", metadata={"format": "pt"})
    save_file({"b": np.zeros(7, np.float32), "c": np.zeros((), np.float32)}, tmp_path / "model-2.safetensors")
    assert loaded_bytes(tmp_path) == (15 + 7 + 1) * 4


@pytest.mark.parametrize("content", [b"", b"\x10\0\0\0\0\0\0\0nonsense", b"\xff" * 64, b"\x02\0\0\0\0\0\0\0[]"])
def test_a_damaged_file_is_the_models_error(tmp_path: Path, content: bytes) -> None:
    (tmp_path / "model.safetensors").write_bytes(content)
    with pytest.raises(ModelError, match=r"model\.safetensors of the model is no safetensors file"):
        loaded_bytes(tmp_path)
