"""Downloads from the hub, and errors when it refuses or is unreachable. No test uses the network."""

from pathlib import Path
from types import SimpleNamespace
from typing import Any

import huggingface_hub
import pytest

from onyx.training.contract.errors import ModelError
from onyx.training.models.hub import CODE_PATTERNS, fetch

TOKEN = "hf_secret"  # noqa: S105 - the tests search for it


class AnsweredError(Exception):
    def __init__(self, status: int) -> None:
        super().__init__(f"{status} for https://hub/?token={TOKEN}")
        self.response = SimpleNamespace(status_code=status)


class GatedRepoError(AnsweredError):
    pass


class Hub:
    """Replaces the hub's client."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch, files: list[str], error: Exception | None = None) -> None:
        self.calls: list[dict[str, Any]] = []
        self.credentials: list[object] = []
        hub = self

        class Api:
            def __init__(self, token: object) -> None:
                hub.credentials.append(token)

            def model_info(self, name: str) -> object:
                if error:
                    raise error
                return SimpleNamespace(sha="abc", siblings=[SimpleNamespace(rfilename=each) for each in files])

        def download(**options: Any) -> str:
            self.calls.append(options)
            if error:
                raise error
            return "/cache/snapshot"

        monkeypatch.setattr(huggingface_hub, "HfApi", Api)
        monkeypatch.setattr(huggingface_hub, "snapshot_download", download)


def test_only_safetensors_and_texts_are_downloaded(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    hub = Hub(monkeypatch, ["model.safetensors", "pytorch_model.bin"])
    assert fetch("a/b", tmp_path, token=TOKEN) == Path("/cache/snapshot")
    (call,) = hub.calls
    assert call["revision"] == "abc"
    assert not any(pattern.endswith((".bin", ".py", ".pt", "*")) for pattern in call["allow_patterns"])
    assert hub.credentials == [TOKEN]
    fetch("a/b", tmp_path, token=None, code=True)
    assert set(CODE_PATTERNS) <= set(hub.calls[1]["allow_patterns"])
    assert hub.credentials[1] is False  # not the login of a user of this host


def test_a_model_without_safetensors_is_not_downloaded(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    hub = Hub(monkeypatch, ["pytorch_model.bin", "config.json"])
    with pytest.raises(ModelError) as error:
        fetch("a/b", tmp_path, token=None)
    assert error.value.code == "model_without_safetensors"
    assert hub.calls == []


@pytest.mark.parametrize(
    ("problem", "code"),
    [
        (AnsweredError(404), "model_not_found"),
        (AnsweredError(401), "model_not_found"),
        (GatedRepoError(403), "model_gated"),
        (AnsweredError(503), "hub_unreachable"),
        (ConnectionError(TOKEN), "hub_unreachable"),
    ],
)
def test_errors_for_the_user(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, problem: Exception, code: str) -> None:
    Hub(monkeypatch, [], problem)
    with pytest.raises(ModelError) as error:
        fetch("a/b", tmp_path, token=TOKEN)
    assert error.value.code == code
    assert TOKEN not in error.value.message
    assert "a/b" in error.value.message
    assert error.value.__cause__ is None  # the token is not in the traceback either


def test_an_earlier_download_needs_no_hub(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    Hub(monkeypatch, [], ConnectionError())
    monkeypatch.setattr(
        huggingface_hub, "snapshot_download", lambda **options: "/cached" if options["local_files_only"] else 1 / 0
    )
    assert fetch("a/b", tmp_path, token=None) == Path("/cached")
