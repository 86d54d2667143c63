"""A user's mistakes become error.json."""

from onyx.training.contract.errors import DataError, ModelError, UserError


def test_each_kind_becomes_a_failure() -> None:
    findings = [{"line": 3, "code": "invalid_json", "message": "not JSON"}]
    error = DataError("invalid_training_file", "1 of 3 lines", findings=findings)
    assert isinstance(error, UserError)
    assert error.failure().model_dump() == {
        "code": "invalid_training_file",
        "message": "1 of 3 lines",
        "param": "data",
        "findings": findings,
    }
    assert ModelError("model_not_found", "no").failure().param == "model"
    assert str(UserError("a", "b")) == "b"
