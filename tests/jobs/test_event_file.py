"""events.jsonl is read line by line, while it is written."""

import json
from pathlib import Path

from onyx.jobs.event_file import EventFileReader


def line(number: int) -> str:
    return json.dumps({"line": number, "time": 1.0, "kind": "message", "message": f"event {number}"}) + "\n"


def test_lines_come_once_and_only_when_complete(tmp_path: Path) -> None:
    path = tmp_path / "events.jsonl"
    reader = EventFileReader(path)
    assert reader.read() == []
    path.write_text(line(1) + line(2)[:10])
    assert [event.line for event in reader.read()] == [1]
    assert reader.read() == []
    path.write_text(line(1) + line(2) + line(3))
    assert [event.line for event in reader.read()] == [2, 3]


def test_a_torn_line_does_not_hide_the_others(tmp_path: Path) -> None:
    path = tmp_path / "events.jsonl"
    path.write_text(line(1) + '{"line": 2, "ti\n' + "[]\n" + line(3))
    assert [event.line for event in EventFileReader(path).read()] == [1, 3]
