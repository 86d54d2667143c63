import contextlib
from collections.abc import Iterator
from pathlib import Path

from onyx.training.contract.attempt import attempt_dir
from onyx.training.state.events import Events
from onyx.training.state.journal import Journal, Place, dump_lines, load_lines, read_journal
from onyx.training.state.progress import Steering

STEERING = Steering(budgets=(100, 100), window=8, clipping=1.0)


@contextlib.contextmanager
def log(job_dir: Path, attempt: int) -> Iterator[Journal]:
    folder = attempt_dir(job_dir, attempt)
    folder.mkdir(parents=True)
    events = Events(folder / "events.jsonl")
    yield Journal(events)
    events.close()


def test_a_later_attempt_reads_what_former_ones_wrote(tmp_path: Path) -> None:
    with log(tmp_path, 1) as first:
        first.lower_budgets(Place(window=3), (100, 50), "short", {"retries": [0, 1]})
        first.events.emit("memory", "no line of the journal: it names no window")
    with log(tmp_path, 2) as second:
        second.change_config(5, 16, None, 1)
    with log(tmp_path, 3) as third:
        third.lower_budgets(Place(window=9), (1, 1), "of a later attempt")
    lines = read_journal(tmp_path, before=3)
    assert [line.window for line in lines] == [3, 5]
    assert load_lines(dump_lines(lines)) == lines


def test_a_window_is_steered_as_it_was(tmp_path: Path) -> None:
    with log(tmp_path, 1) as first:
        first.lower_budgets(Place(window=3), (100, 50), "short")
        first.change_config(4, 16, 0.5, 1)
    again = Journal(Events(None), read_journal(tmp_path, before=2))
    assert again.config == 1
    assert again.steering_for(STEERING, 2) == STEERING
    at_three = again.steering_for(STEERING, 3)
    assert at_three.budgets == (100, 50)
    at_four = again.steering_for(at_three, 4)
    assert at_four == Steering(budgets=(100, 50), window=16, clipping=0.5, config=1)


def test_budgets_only_fall_and_old_config_does_not_return() -> None:
    lines = Journal(Events(None))
    lines.lower_budgets(Place(window=0), (60, 200), "short")
    lines.change_config(0, 4, None, 2)
    newer = STEERING.model_copy(update={"config": 3})
    assert lines.steering_for(newer, 0) == newer.model_copy(update={"budgets": (60, 100)})


def test_a_line_holds_from_its_place_on() -> None:
    """What comes before the place is cut as before."""
    lines = Journal(Events(None))
    lines.lower_budgets(Place(window=3, evaluation=True), (80, 100), "in the evaluation before window 3")
    lines.lower_budgets(Place(window=3), (60, 100), "in window 3")
    assert lines.steering_for(STEERING, 3, evaluation=True).budgets == (80, 100)
    assert lines.steering_for(STEERING, 3).budgets == (60, 100)


def test_only_its_own_lines_lower_the_budgets_of_a_stretch() -> None:
    lines = Journal(Events(None))
    lines.lower_budgets(Place(window=0, stretch=2), (80, 100), "in stretch 2")
    lines.lower_budgets(Place(window=0, stretch=3), (70, 100), "in stretch 3")
    lines.lower_budgets(Place(window=0), (60, 60), "in window 0")
    found = [lines.budgets_of_stretch((100, 100), number) for number in range(5)]
    assert found == [(100, 100), (100, 100), (80, 100), (70, 100), (70, 100)]
    assert lines.steering_for(STEERING, 0).budgets == (60, 60)


def test_a_step_that_is_not_compiled_stays_so(tmp_path: Path) -> None:
    with log(tmp_path, 1) as first:
        first.stop_compiling(Place(window=3), "no compiler")
    again = Journal(Events(None), read_journal(tmp_path, before=2))
    assert not again.steering_for(STEERING, 2).eager
    assert again.steering_for(STEERING, 3) == STEERING.model_copy(update={"eager": True})


def test_another_number_of_ranks_has_budgets_of_its_own() -> None:
    lines = Journal(Events(None))
    lines.lower_budgets(Place(window=0), (60,), "short")
    assert lines.steering_for(STEERING, 0) == STEERING
