from tests.cli.conftest import Onyx


def test_what_to_train_and_on_what_must_be_said(onyx: Onyx) -> None:
    assert "--model" in onyx("jobs", "submit", "x.jsonl").err
    ran = onyx("jobs", "submit", "--model", "onyx/tiny")
    assert ran.status == 2
    assert "--hub" in ran.err
    assert onyx("jobs", "submit", "x.jsonl", "--hub", "a/b", "--model", "onyx/tiny").status == 2
