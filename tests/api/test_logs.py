from pathlib import Path

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


def test_a_line_without_end_is_cut(here: Settings) -> None:
    write(here, 1, "rank-0.log", "x" * (logs.LONGEST_LINE + 10) + "\nnext\n")
    assert [len(text) for text in texts(here)] == [MOST_CHARACTERS, 10, 4]
