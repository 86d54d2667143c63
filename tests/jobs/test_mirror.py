import json
from pathlib import Path

from onyx.jobs.mirror import Tail


def line(number: int) -> str:
    return json.dumps({"line": number, "time": 1.0, "kind": "message", "message": f"event {number}"}) + "\n"


def test_lines_come_once_and_only_when_complete(tmp_path: Path) -> None:
    path = tmp_path / "events.jsonl"
    tail = Tail(path)
    assert tail.read() == []
    path.write_text(line(1) + line(2)[:10])
    assert [event.line for event in tail.read()] == [1]
    assert tail.read() == []
    path.write_text(line(1) + line(2) + line(3))
    assert [event.line for event in tail.read()] == [2, 3]


def test_a_torn_line_does_not_hide_the_others(tmp_path: Path) -> None:
    path = tmp_path / "events.jsonl"
    path.write_text(line(1) + '{"line": 2, "ti\n' + "[]\n" + line(3))
    assert [event.line for event in Tail(path).read()] == [1, 3]
