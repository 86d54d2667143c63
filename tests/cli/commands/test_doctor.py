from pathlib import Path

import pytest

from onyx.cli.commands import doctor
from onyx.settings import Settings
from tests.cli.conftest import Onyx


def test_a_healthy_host(onyx: Onyx) -> None:
    ran = onyx("doctor", "--json")
    found = {each["name"]: each for each in ran.json}
    assert list(found) == [
        "python", "packages", "gpus", "memory", "home", "disk", "store", "template", "runner",
    ]  # fmt: skip
    assert found["packages"]["level"] == "ok"
    assert found["home"]["level"] == "ok"
    assert found["template"]["level"] == "ok", found["template"]
    assert found["runner"]["level"] == "warn"
    assert "onyx serve" in found["runner"]["advice"]
    assert ran.status == int(any(each["level"] == "fail" for each in ran.json))


def test_a_home_that_is_not_writable(tmp_path: Path) -> None:
    (tmp_path / "file").touch()
    found = doctor.home(Settings(home=tmp_path / "file" / "home"))
    assert found.level == "fail"
    assert "ONYX_HOME" in str(found.advice)
    assert doctor.disk(Settings(home=tmp_path / "not" / "yet")).level in ("ok", "warn", "fail")


def test_too_little_memory_is_a_failure(tmp_path: Path) -> None:
    assert doctor.memory(Settings(home=tmp_path, cpu_memory="100MB")).level == "fail"
    assert "ONYX_CPU_MEMORY" in str(doctor.memory(Settings(home=tmp_path, cpu_memory="lots")).advice)


def test_old_and_missing_packages(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setattr(doctor, "PACKAGES", {"torch": (99, 0), "no-such-package": (1, 0)})
    found = doctor.packages(Settings(home=tmp_path))
    assert found.level == "fail"
    assert "no-such-package missing" in found.words


def test_an_unreachable_database(tmp_path: Path) -> None:
    settings = Settings(home=tmp_path, database_url="postgresql://onyx:hush@127.0.0.1:9/onyx")
    found = doctor.store(settings)
    assert found.level == "fail"
    assert "hush" not in found.words
    assert doctor.store(Settings(home=tmp_path)).level == "warn"
