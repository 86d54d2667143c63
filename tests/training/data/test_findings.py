"""All findings are counted, and a limited number is listed."""

import pytest

from onyx.training.contract.errors import DataError
from onyx.training.data.findings import Finding, Findings


def bad(lines: int, bad: int) -> Findings:
    found = Findings(cap=3, lines=lines)
    for number in range(bad):
        found.add(number + 1, [Finding("data_type", "wrong"), Finding("missing_content", "empty")])
    return found


def test_all_findings_are_counted_and_some_are_kept() -> None:
    found = bad(10, 4)
    assert (found.bad, len(found.kept)) == (4, 3)
    assert found.totals == {"data_type": 4, "missing_content": 4}
    assert found.kept[0] == {"line": 1, "code": "data_type", "message": "wrong", "part": "training"}
    assert found.summary() == (
        "4 of 10 lines of the training data cannot be used: 4 × data_type, 4 × missing_content. First: line 1: wrong."
    )


def test_a_share_of_bad_lines_may_be_tolerated() -> None:
    bad(10, 1).raise_if_unusable(0.1)
    with pytest.raises(DataError) as error:
        bad(10, 2).raise_if_unusable(0.1)
    assert error.value.code == "invalid_training_file"
    assert error.value.findings


def test_nothing_to_train_on_is_not_tolerated() -> None:
    for lines, tolerated, code in ((0, 0.5, "empty_file"), (0, 0.0, "empty_file")):
        with pytest.raises(DataError) as error:
            bad(lines, 0).raise_if_unusable(tolerated)
        assert error.value.code == code


def test_findings_of_evaluation_data_have_their_own_code_and_param() -> None:
    found = Findings("evaluation", lines=1)
    found.add(1, [Finding("data_type", "wrong")])
    with pytest.raises(DataError) as error:
        found.raise_if_unusable(0)
    assert (error.value.code, error.value.param) == ("invalid_validation_file", "data.evaluation")
