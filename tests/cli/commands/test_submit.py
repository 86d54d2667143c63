from tests.cli.conftest import Onyx


def test_model_and_data_are_required(onyx: Onyx) -> None:
    assert "--model" in onyx("jobs", "submit", "x.jsonl").err
    ran = onyx("jobs", "submit", "--model", "onyx/tiny")
    assert ran.status == 2
    assert "--hub" in ran.err
    assert onyx("jobs", "submit", "x.jsonl", "--hub", "a/b", "--model", "onyx/tiny").status == 2
