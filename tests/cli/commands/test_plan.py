import pytest

from onyx.cli.commands.plan import _cards
from onyx.cli.output import CommandFailure
from tests.cli.conftest import Onyx


def test_will_it_fit_here(remote: Onyx) -> None:
    ran = remote("plan", "onyx/tiny", "--target", "64", "--max-length", "64")
    assert ran.status == 0, ran.err
    assert "onyx/tiny fits" in ran.out
    assert "cpu:0" in ran.out
    assert "GiB" in ran.out


def test_will_it_fit_on_cards_one_does_not_have(remote: Onyx) -> None:
    ran = remote("plan", "onyx/tiny", "--target", "64", "--gpu", "2xA100:40", "--json")
    assert ran.status == 0, ran.err
    assert ran.json["total_gpus"] == 2
    assert [device["name"] for device in ran.json["plan"]["devices"]] == ["A100", "A100"]


def test_will_pairs_fit(remote: Onyx) -> None:
    ran = remote("plan", "onyx/tiny", "--objective", "dpo", "--max-length", "64")
    assert ran.status == 0, ran.err
    assert "pairs with answers of up to 64 tokens" in ran.out
    wrong = remote("plan", "onyx/tiny", "--objective", "grpo")
    assert wrong.status != 0
    assert "objective" in wrong.err


def test_what_does_not_fit_is_the_services_sentence(remote: Onyx) -> None:
    ran = remote("plan", "onyx/tiny", "--gpu", "Thimble:0.0001")
    assert ran.status == 1
    assert ran.out == ""
    assert ran.err


def test_cards() -> None:
    assert _cards("A100:40") == [{"name": "A100", "memory_gb": 40.0}]
    assert len(_cards("3xRTX 4090:24GB")) == 3
    for wrong in ("A100", "A100:", ":40", "0xA100:40", "A100:-1"):
        with pytest.raises(CommandFailure, match="A100:40"):
            _cards(wrong)
