from pathlib import Path

import pytest

from onyx.training.state.config_changes import ConfigChanges


def test_a_change_is_seen_once_per_number(tmp_path: Path) -> None:
    path = tmp_path / "control.json"
    control = ConfigChanges(path)
    assert control.change(after=0) is None
    path.write_text('{"seq": 2, "accumulation_steps": 4}')
    change = control.change(after=0)
    assert change is not None
    assert (change.seq, change.accumulation_steps, change.sets_clipping) == (2, 4, False)
    assert control.change(after=2) is None


def test_null_turns_clipping_off_and_its_absence_leaves_it(tmp_path: Path) -> None:
    path = tmp_path / "control.json"
    path.write_text('{"seq": 1, "gradient_clipping": null}')
    change = ConfigChanges(path).change(after=0)
    assert change is not None
    assert change.sets_clipping
    assert change.gradient_clipping is None


@pytest.mark.parametrize("text", ["", "{", '{"seq": 0}', '{"seq": 1, "accumulation_steps": -1}', '{"seq": 1, "lr": 2}'])
def test_an_invalid_file_changes_nothing(tmp_path: Path, text: str) -> None:
    path = tmp_path / "control.json"
    path.write_text(text)
    assert ConfigChanges(path).change(after=0) is None
