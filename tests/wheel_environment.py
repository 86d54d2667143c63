"""A wheel of this tree, and environments with it installed, which do not see the checkout."""

import os
import subprocess
import sys
import sysconfig
from dataclasses import dataclass
from pathlib import Path

ROOT = Path(__file__).parent.parent


@dataclass(frozen=True)
class Installed:
    """An environment with the wheel, and a directory outside of the checkout to work in."""

    environment: Path
    work: Path

    def run(self, *command: str | Path, **variables: str) -> "subprocess.CompletedProcess[str]":
        """One of the environment's commands. The first word is a name in its bin/."""
        words = [str(self.environment / "bin" / command[0]), *map(str, command[1:])]
        return subprocess.run(
            words, cwd=self.work, env=self.variables(**variables), capture_output=True, text=True, check=False
        )

    def variables(self, **more: str) -> dict[str, str]:
        """What a user's shell has: no path to the checkout."""
        kept = {name: value for name, value in os.environ.items() if not name.startswith(("ONYX_", "PYTHONPATH"))}
        return kept | {"ONYX_HOME": str(self.work / "home"), "ONYX_CPU_MEMORY": "3GB"} | more


def build_wheel(to: Path) -> Path:
    """By the build backend that the tests have: nothing is downloaded."""
    _run(sys.executable, "-m", "hatchling", "build", "--target", "wheel", "--directory", to, cwd=ROOT)
    (wheel,) = to.glob("*.whl")
    return wheel


def install_alone(wheel: Path, environment: Path) -> None:
    """With all its dependencies, at the pinned versions, in an environment that has nothing else."""
    _install(environment, "-c", ROOT / "constraints.txt", wheel)


def install_beside(wheel: Path, environment: Path) -> None:
    """Without dependencies; it sees those of the tests, but not the checkout that is installed there."""
    _install(environment, "--no-deps", "--no-index", wheel)
    (site,) = environment.glob("lib/python*/site-packages")
    (site / "tests.pth").write_text(sysconfig.get_path("purelib") + "\n")  # a path file there is not followed


def _install(environment: Path, *what: str | Path) -> None:
    """By the pip of the tests: making one in each environment takes seconds."""
    _run(sys.executable, "-m", "venv", "--without-pip", environment)
    _run(sys.executable, "-m", "pip", "--python", environment / "bin" / "python", "install", "--no-input", *what)


def _run(*command: str | Path, cwd: Path | None = None) -> None:
    done = subprocess.run([str(word) for word in command], cwd=cwd, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stdout + done.stderr
