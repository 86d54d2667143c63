import io
from typing import Any

from rich.console import Console

from onyx.cli.commands.watch import bar, event_line


def test_the_bar_shows_status_losses_and_figures() -> None:
    job: dict[str, Any] = {"status": "running", "progress": {"update": 5, "total_updates": 20, "loss": 1.5}}
    out = io.StringIO()
    Console(file=out, width=100, force_terminal=False).print(bar(job, [3.0, 2.0, 1.0]))
    assert "running" in out.getvalue()
    assert "█▅▁" in out.getvalue()
    assert "update 5/20" in out.getvalue()


def test_an_event_line_names_a_level_other_than_info() -> None:
    event = {"time": 0.0, "level": "warning", "message": "the budget was halved"}
    assert event_line(event).endswith("warning: the budget was halved")
    assert event_line(event | {"level": "info"}).endswith("  the budget was halved")
