"""The names of base models."""

from pathlib import Path

import pytest

from onyx.training.contract import model_names
from onyx.training.contract.model_names import is_hub_name, smollm2_gguf


@pytest.mark.parametrize("name", ["owner/name", "gpt2", "a.b/c-d_e"])
def test_hub_names(name: str) -> None:
    assert is_hub_name(name)


@pytest.mark.parametrize(
    "name", ["", "a/b/c", "../a", "a/..", "/a", "a b", "a/", "-a/b", "a" * 97, "a\n/b", "~/a", "a..b"]
)
def test_other_names(name: str) -> None:
    assert not is_hub_name(name)


def test_without_the_wheel_there_is_no_file(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(model_names, "SMOLLM2_WHEEL", "no_such_wheel")
    assert smollm2_gguf() is None


def test_the_file_is_found_without_importing_the_package(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "a_wheel").mkdir()
    (tmp_path / "a_wheel" / "__init__.py").write_text("raise ImportError('imported')")
    (tmp_path / "a_wheel" / "m.gguf").touch()
    monkeypatch.syspath_prepend(str(tmp_path))
    monkeypatch.setattr(model_names, "SMOLLM2_WHEEL", "a_wheel")
    assert smollm2_gguf() == tmp_path / "a_wheel" / "m.gguf"
