import pytest

from onyx.cli.commands.plan import parse_gpus
from onyx.cli.output import CommandError
from tests.cli.conftest import Onyx


def test_plan_on_the_services_devices(remote: Onyx) -> None:
    ran = remote("plan", "onyx/tiny", "--target", "64", "--max-length", "64")
    assert ran.status == 0, ran.err
    assert "onyx/tiny fits" in ran.out
    assert "cpu:0" in ran.out
    assert "GiB" in ran.out


def test_plan_on_gpus_that_the_service_does_not_have(remote: Onyx) -> None:
    ran = remote("plan", "onyx/tiny", "--target", "64", "--gpu", "2xA100:40", "--json")
    assert ran.status == 0, ran.err
    assert ran.json["total_gpus"] == 2
    assert [device["name"] for device in ran.json["plan"]["devices"]] == ["A100", "A100"]


def test_plan_for_pairs(remote: Onyx) -> None:
    ran = remote("plan", "onyx/tiny", "--objective", "dpo", "--max-length", "64")
    assert ran.status == 0, ran.err
    assert "pairs with answers of up to 64 tokens" in ran.out
    wrong = remote("plan", "onyx/tiny", "--objective", "grpo")
    assert wrong.status != 0
    assert "objective" in wrong.err


def test_a_model_that_does_not_fit_is_the_services_message(remote: Onyx) -> None:
    ran = remote("plan", "onyx/tiny", "--gpu", "Thimble:0.0001")
    assert ran.status == 1
    assert ran.out == ""
    assert ran.err


def testparse_gpus() -> None:
    assert parse_gpus("A100:40") == [{"name": "A100", "memory_gb": 40.0}]
    assert len(parse_gpus("3xRTX 4090:24GB")) == 3
    for wrong in ("A100", "A100:", ":40", "0xA100:40", "A100:-1"):
        with pytest.raises(CommandError, match="A100:40"):
            parse_gpus(wrong)
