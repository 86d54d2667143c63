import json
from pathlib import Path

import pytest

from onyx.training.state.events import Events, read_events


def test_lines_are_numbered_and_whole(tmp_path: Path) -> None:
    events = Events(tmp_path / "events.jsonl")
    events.emit("message", "hello", {"a": (1, 2)})
    events.emit("skip", "no", {"loss": float("nan"), "deep": {"x": [float("inf"), 1.5]}}, level="warn", durable=True)
    events.close()
    lines = [json.loads(line) for line in (tmp_path / "events.jsonl").read_text().splitlines()]
    assert [line["line"] for line in lines] == [1, 2]
    assert lines[1]["data"] == {"loss": None, "deep": {"x": [None, 1.5]}}
    assert [event.kind for event in read_events(tmp_path / "events.jsonl")] == ["message", "skip"]
    assert [event.line for event in read_events(tmp_path / "events.jsonl", "skip", "memory")] == [2]


def test_a_torn_line_is_no_event(tmp_path: Path) -> None:
    path = tmp_path / "events.jsonl"
    events = Events(path)
    events.emit("message", "one")
    events.close()
    with path.open("a") as file:
        file.write('{"line": 2, "ti')
    assert [event.message for event in read_events(path)] == ["one"]


def test_metrics_come_once_a_second_and_at_the_end(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    now = 100.0
    monkeypatch.setattr("onyx.training.state.events.time.monotonic", lambda: now)
    events = Events(tmp_path / "events.jsonl")
    for update in range(25):
        now += 0.125
        events.metrics("m", {"update": update})
    events.metrics("m", {"update": 25}, last=True)
    events.close()
    assert [event.data["update"] for event in read_events(tmp_path / "events.jsonl")] == [0, 8, 16, 24, 25]


def test_other_ranks_are_silent() -> None:
    Events(None).emit("message", "not written")
