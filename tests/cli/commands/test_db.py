import pytest

from tests.cli.conftest import Onyx


def test_status_before_and_after_an_upgrade(onyx: Onyx) -> None:
    before = onyx("db", "status")
    assert before.status == 1
    assert "onyx db upgrade" in before.out
    assert onyx("db", "upgrade").status == 0
    assert onyx("db", "status", "--json").json["migrated"] is True


def test_an_unreachable_database(onyx: Onyx, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("ONYX_DATABASE_URL", "postgresql://onyx:hush@127.0.0.1:9/onyx")
    ran = onyx("db", "status")
    assert ran.status == 1
    assert "store" in ran.err
    assert "hush" not in ran.out + ran.err


def test_a_wrong_setting_is_named(onyx: Onyx, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("ONYX_CPU_DEVICES", "none")
    ran = onyx("db", "status")
    assert ran.status == 2
    assert "ONYX_CPU_DEVICES" in ran.err
