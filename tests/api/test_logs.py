from pathlib import Path

import pytest

from onyx.api import logs
from onyx.api.scrubbing import MOST_CHARACTERS
from onyx.settings import Settings
from tests.api.service import settings

JOB = "accumulation_1_0123456789"


def write(at: Settings, attempt: int, name: str, text: str) -> None:
    path = at.job_dir(JOB) / "attempts" / str(attempt) / name
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text(text)


def texts(at: Settings, after: int = 0, limit: int = 100) -> list[str]:
    return [line.text for line in logs.page(at, JOB, after, limit).data]


def test_lines_come_in_the_order_of_attempts(here: Settings) -> None:
    write(here, 10, "rank-0.log", "last\n")
    write(here, 2, "rank-1.log", "third\n")
    write(here, 2, "rank-0.log", "first\nsecond\n")
    assert texts(here) == ["first", "second", "third", "last"]
    page = logs.page(here, JOB, after=1, limit=2)
    assert [(line.line, line.text) for line in page.data] == [(2, "second"), (3, "third")]
    assert page.has_more
    assert not logs.page(here, JOB, after=3, limit=2).has_more
    assert logs.page(here, JOB, after=99, limit=2).data == []
    assert logs.page(here, "accumulation_1_nothere000", 0, 2).data == []


def test_tracebacks_paths_and_tokens_stay_with_the_operator(tmp_path: Path) -> None:
    at = settings(tmp_path / "home", hub_token="hf_topsecret")  # noqa: S106
    trace = 'Traceback (most recent call last):\n  File "/opt/onyx/x.py", line 1, in f\n    code()\n'
    write(at, 1, "rank-0.log", f"{trace}ValueError: /opt/secret/place/model is gone, {at.home}/jobs, hf_topsecret\n")
    (line,) = texts(at)
    assert line == "ValueError: …/model is gone, ONYX_HOME/jobs, [hidden]"


def test_what_else_stands_among_the_attempts_is_not_shown(here: Settings) -> None:
    write(here, 1, "rank-0.log", "one\n")
    attempts = here.job_dir(JOB) / "attempts"
    for name in ("notes", "1 (copy)", "-1", "²", "1e3"):
        (attempts / name).mkdir()
        (attempts / name / "rank-0.log").write_text("stray\n")
    (attempts / "1" / "folder.log").mkdir()
    (attempts / "1" / "gone.log").symlink_to(attempts / "nowhere")
    assert texts(here) == ["one"]


def test_a_log_that_goes_while_it_is_read_is_no_error(here: Settings, monkeypatch: pytest.MonkeyPatch) -> None:
    write(here, 1, "rank-0.log", "one\n")
    write(here, 1, "rank-1.log", "two\n")

    def clean_up(line: str, _: Settings) -> str:
        (here.job_dir(JOB) / "attempts" / "1" / "rank-1.log").unlink()
        return line

    monkeypatch.setattr(logs, "scrub", clean_up)
    assert texts(here) == ["one"]


def test_a_line_without_end_is_cut(here: Settings) -> None:
    write(here, 1, "rank-0.log", "x" * (logs.LONGEST_LINE + 10) + "\nnext\n")
    assert [len(text) for text in texts(here)] == [MOST_CHARACTERS, 10, 4]
