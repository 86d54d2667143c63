"""No name and no link leaves the operator's root, and only safetensors is read."""

import json
import shutil
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from safetensors.numpy import save_file

from onyx.training.contract.errors import ModelError
from onyx.training.models.directory import INDEX, check_directory, loaded_bytes, path_inside

ESCAPES = ["..", "../x", "a/../../x", "/etc", "/etc/passwd", ".", "", "a/..", "\0", "good\0/../..", "./../root2"]


@pytest.fixture
def root(tmp_path: Path, tiny: Path) -> Path:
    shutil.copytree(tiny, tmp_path / "root" / "good")
    (tmp_path / "root2").mkdir()
    return tmp_path / "root"


def code(path: Path, root: Path) -> str:
    with pytest.raises(ModelError) as error:
        check_directory(path, root)
    assert str(root) not in error.value.message
    return error.value.code


@pytest.mark.parametrize("name", ESCAPES)
def test_a_name_outside_the_root_is_refused(root: Path, name: str) -> None:
    with pytest.raises(ModelError) as error:
        path_inside(root, name)
    assert error.value.code == "model_outside_root"


def test_the_error_does_not_show_which_paths_exist(root: Path) -> None:
    messages = set()
    for name in ("/etc/passwd", "/no/such/thing"):
        with pytest.raises(ModelError) as error:
            path_inside(root, name)
        messages.add(error.value.message.replace(name, ""))
    assert len(messages) == 1


def test_names_inside_are_found(root: Path) -> None:
    assert path_inside(root, "good") == root / "good"
    assert path_inside(root, str(root / "good")) == root / "good"
    assert path_inside(root, "good/../good") == root / "good"
    assert path_inside(root, "nothing") is None
    check_directory(root / "good", root)


def test_links_out_of_the_root_are_refused(root: Path, tmp_path: Path) -> None:
    (root / "link").symlink_to(tmp_path / "root2")
    with pytest.raises(ModelError):
        path_inside(root, "link")
    secret = tmp_path / "secret.safetensors"
    secret.touch()
    (root / "good" / "model.safetensors").unlink()
    (root / "good" / "model.safetensors").symlink_to(secret)
    assert code(root / "good", root) == "model_outside_root"


def test_links_inside_the_root_are_allowed(root: Path) -> None:
    (root / "alias").symlink_to(root / "good")
    assert path_inside(root, "alias") == root / "good"
    (root / "good" / "model.safetensors").rename(root / "blob")
    (root / "good" / "model.safetensors").symlink_to(root / "blob")
    check_directory(root / "good", root)


@pytest.mark.parametrize("name", ["pytorch_model.bin", "model.pt", "pytorch_model.bin.index.json"])
def test_pickle_alone_is_refused(root: Path, name: str) -> None:
    (root / "good" / "model.safetensors").rename(root / "good" / name)
    assert code(root / "good", root) == "model_without_safetensors"


@pytest.mark.parametrize("missing", ["config.json", "tokenizer.json"])
def test_an_incomplete_directory_is_refused(root: Path, missing: str) -> None:
    (root / "good" / missing).unlink()
    assert code(root / "good", root) == "model_incomplete"


@pytest.mark.parametrize("text", ["{", "[]", "[" * 100_000, '"\xff'])
def test_a_broken_config_is_refused(root: Path, text: str) -> None:
    (root / "good" / "config.json").write_bytes(text.encode("latin-1"))
    assert code(root / "good", root) == "model_unreadable"


@pytest.mark.parametrize(
    ("weight_map", "expected"),
    [
        ({"a": "../secret.safetensors"}, "model_outside_root"),
        ({"a": "/etc/x.safetensors"}, "model_outside_root"),
        ({"a": "weights.bin"}, "model_outside_root"),
        ({"a": "model-00001.safetensors"}, "model_incomplete"),
        ({}, "model_unreadable"),
        ("x", "model_unreadable"),
    ],
)
def test_an_index_may_name_only_files_in_its_directory(root: Path, weight_map: Any, expected: str) -> None:
    (root / "good" / "model.safetensors").unlink()
    (root / "good" / INDEX).write_text(json.dumps({"weight_map": weight_map}))
    assert code(root / "good", root) == expected


def test_a_file_is_not_a_model(root: Path) -> None:
    (root / "file").touch()
    assert code(root / "file", root) == "model_not_found"


@pytest.mark.parametrize(
    ("config", "weights", "expected"),
    [
        ({"peft_type": "LORA"}, "adapter_model.bin", "model_without_safetensors"),
        ({"peft_type": "IA3"}, "adapter_model.safetensors", "adapter_unsupported"),
    ],
)
def test_bad_adapters_are_refused(root: Path, config: dict[str, str], weights: str, expected: str) -> None:
    adapter = root / "adapter"
    adapter.mkdir()
    (adapter / "adapter_config.json").write_text(json.dumps(config))
    (adapter / weights).touch()
    assert code(adapter, root) == expected


def test_loaded_bytes_are_float32_for_any_stored_dtype(tmp_path: Path) -> None:
    save_file({"a": np.zeros((3, 5), np.float16)}, tmp_path / "model-1.safetensors", metadata={"format": "pt"})
    save_file({"b": np.zeros(7, np.float32), "c": np.zeros((), np.float32)}, tmp_path / "model-2.safetensors")
    assert loaded_bytes(tmp_path) == (15 + 7 + 1) * 4


@pytest.mark.parametrize("content", [b"", b"\x10\0\0\0\0\0\0\0nonsense", b"\xff" * 64, b"\x02\0\0\0\0\0\0\0[]"])
def test_a_damaged_file_is_a_model_error(tmp_path: Path, content: bytes) -> None:
    (tmp_path / "model.safetensors").write_bytes(content)
    with pytest.raises(ModelError, match=r"model\.safetensors of the model is not a safetensors file"):
        loaded_bytes(tmp_path)
