from pathlib import Path

import pytest

from onyx.cli.client import ServiceClient
from onyx.cli.output import CommandError
from onyx.demo import __main__ as demo
from onyx.demo.lesson import TINY


def files_below(folder: Path) -> set[str]:
    return {str(path.relative_to(folder)) for path in folder.rglob("*") if path.is_file()}


def test_a_directory_that_the_demo_did_not_make_is_kept_and_nothing_starts(tmp_path: Path) -> None:
    (tmp_path / "result").mkdir()
    (tmp_path / "result" / "thesis.txt").write_text("the user's own")
    with pytest.raises(CommandError, match="not made by the demo"):
        demo.run_demo(TINY, tmp_path)
    assert files_below(tmp_path) == {"result/thesis.txt"}


def test_the_result_of_an_earlier_demo_is_replaced(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def write_model(service: ServiceClient, job_id: str, folder: Path) -> None:
        folder.mkdir()
        (folder / job_id).touch()

    monkeypatch.setattr(demo, "download_model", write_model)
    service = ServiceClient("http://127.0.0.1:9")
    for job_id in ("first", "second"):
        demo.remove_result(tmp_path / "result")
        assert demo.download_result(service, job_id, tmp_path / "result") == tmp_path / "result" / "model"
        assert files_below(tmp_path) == {f"result/model/{job_id}", f"result/{demo.MARKER}"}


def test_a_failed_download_leaves_nothing(tmp_path: Path) -> None:
    with pytest.raises(CommandError):
        demo.download_result(ServiceClient("http://127.0.0.1:9"), "job", tmp_path / "result")
    assert list(tmp_path.iterdir()) == []
