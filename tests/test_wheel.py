"""What a user gets who installs Onyx: a wheel, outside of any checkout.

In the ordinary suite the wheel borrows the tests' dependencies. `make test-wheel` installs it into an empty environment
with its own, as `pip install` does, and runs the README's Python there.
"""

import json
import re
import shutil
import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from zipfile import ZipFile

import httpx
import pytest

from tests.waiting import PATIENCE, wait_for
from tests.wheel_environment import ROOT, Installed, build_wheel, install_alone, install_beside

README = re.findall(r"```python\n(.*?)```", (ROOT / "README.md").read_text(), flags=re.DOTALL)
TRAININGS = "/gradient-accumulation/training"


@pytest.fixture(scope="module")
def wheel(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return build_wheel(tmp_path_factory.mktemp("dist"))


@pytest.fixture(scope="module")
def beside(wheel: Path, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Installed]:
    yield from installed(wheel, tmp_path_factory.mktemp("beside"), alone=False)


@pytest.fixture(scope="module")
def alone(wheel: Path, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Installed]:
    yield from installed(wheel, tmp_path_factory.mktemp("alone"), alone=True)


def installed(wheel: Path, place: Path, *, alone: bool) -> Iterator[Installed]:
    """The environment, taken away at the end: with torch it has more than a gigabyte."""
    environment, work = place / "environment", place / "work"
    work.mkdir()
    (install_alone if alone else install_beside)(wheel, environment)
    yield Installed(environment, work)
    shutil.rmtree(environment)


@contextmanager
def serving(place: Installed) -> Iterator[str]:
    """`onyx serve` of that environment, at this address."""
    command = [str(place.environment / "bin" / "onyx"), "serve", "--port", "0", "--json"]
    with (place.work / "serve.log").open("ab") as log:
        process = subprocess.Popen(
            command, cwd=place.work, env=place.variables(), stdout=subprocess.PIPE, stderr=log, text=True
        )
    try:
        assert process.stdout is not None
        line = process.stdout.readline()
        assert line, (place.work / "serve.log").read_text()
        yield json.loads(line)["url"]
    finally:
        process.terminate()
        process.communicate(timeout=PATIENCE)


def test_the_wheel_has_every_file_of_the_package(wheel: Path) -> None:
    with ZipFile(wheel) as archive:
        held = {name for name in archive.namelist() if name.startswith("onyx/")}
    listed = {path for path in (ROOT / "onyx").rglob("*") if path.is_file() and "__pycache__" not in path.parts}
    assert held == {str(path.relative_to(ROOT)) for path in listed}
    assert "onyx/py.typed" in held
    assert wheel.name.startswith("onyx_finetune-")


def comes_from_the_wheel(place: Installed) -> None:
    done = place.run("python", "-W", "error", "-c", "import onyx; print(onyx.__file__)")
    assert done.returncode == 0, done.stderr
    assert Path(done.stdout.strip()).is_relative_to(place.environment)


def makes_its_tables(place: Installed) -> None:
    done = place.run("onyx", "db", "upgrade", "--json")
    assert json.loads(done.stdout)["migrated"] is True, done.stderr


def is_well(place: Installed) -> None:
    done = place.run("onyx", "doctor", "--json")
    found = {check["name"]: check for check in json.loads(done.stdout)}
    assert done.returncode == 0, done.stdout
    assert {found[name]["level"] for name in ("python", "packages", "home", "store", "template")} == {"ok"}, found


def test_it_answers_outside_of_the_checkout(beside: Installed) -> None:
    comes_from_the_wheel(beside)
    makes_its_tables(beside)


@pytest.mark.wheel
def test_in_an_empty_environment_doctor_finds_nothing_missing(alone: Installed) -> None:
    comes_from_the_wheel(alone)
    makes_its_tables(alone)
    is_well(alone)
    check = subprocess.run(
        [sys.executable, "-m", "pip", "--python", alone.environment / "bin" / "python", "check"],
        capture_output=True,
        text=True,
        check=False,
    )
    assert check.returncode == 0, check.stdout


@pytest.mark.wheel
def test_in_an_empty_environment_a_job_is_served(alone: Installed) -> None:
    with serving(alone) as url:
        body = {
            "model_name": "onyx/tiny",
            "dataset_config": {"texts": ["the sky is blue", "grass is green"]},
            "training_config": {"epochs": 1},
            "user_id": 1,
        }
        made = httpx.post(f"{url}{TRAININGS}/with-accumulation", json=body, timeout=PATIENCE)
        assert made.status_code == 202, made.text
        job = f"{url}{TRAININGS}/{made.json()['training_id']}"
        wait_for(lambda: httpx.get(job, timeout=PATIENCE).json()["success"] is not None, "the training ends")
        done = httpx.get(job, timeout=PATIENCE).json()
        assert done["success"] is True, done


@pytest.mark.wheel
@pytest.mark.parametrize("block", README, ids=range(len(README)))
def test_in_an_empty_environment_the_readme_runs(alone: Installed, block: str) -> None:
    done = alone.run("python", "-c", block)
    assert done.returncode == 0, done.stderr


@pytest.mark.wheel
def test_in_an_empty_environment_postgresql_names_its_extra(alone: Installed) -> None:
    done = alone.run("onyx", "db", "status", ONYX_DATABASE_URL="postgresql://onyx@127.0.0.1/onyx")
    assert done.returncode != 0
    assert "pip install 'onyx-finetune[postgres]'" in done.stderr
