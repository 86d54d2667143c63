"""The README's Python runs, every link in the docs leads somewhere, and the page of settings is what the code says."""

import os
import re
import subprocess
import sys
from pathlib import Path

import pytest

from tests.planner_cache import share_planner_cache

ROOT = Path(__file__).parent.parent
PAGES = [*sorted(ROOT.glob("*.md")), *sorted((ROOT / "docs").glob("*.md")), ROOT / "examples" / "README.md"]


@pytest.mark.parametrize("page", PAGES, ids=lambda path: str(path.relative_to(ROOT)))
def test_links_lead_somewhere(page: Path) -> None:
    for target in re.findall(r"\]\(([^)#:]+)(?:#[^)]*)?\)", page.read_text()):
        assert (page.parent / target).exists(), f"{page.name} links to {target}"


def test_python_in_the_readme_runs(tmp_path: Path) -> None:
    share_planner_cache(tmp_path)
    environment = os.environ | {"ONYX_HOME": str(tmp_path), "ONYX_CPU_MEMORY": "3GB"}
    blocks = re.findall(r"```python\n(.*?)```", (ROOT / "README.md").read_text(), flags=re.DOTALL)
    assert blocks
    for block in blocks:
        command = [sys.executable, "-c", block]
        child = subprocess.run(command, cwd=ROOT, env=environment, capture_output=True, text=True)
        assert child.returncode == 0, child.stderr


def test_the_page_of_settings_is_up_to_date() -> None:
    written = subprocess.run(
        [sys.executable, "-c", "import configuration; print(configuration.page(), end='')"],
        cwd=ROOT / "docs",
        env=os.environ | {"PYTHONPATH": str(ROOT)},
        capture_output=True,
        text=True,
        check=True,
    )
    assert written.stdout == (ROOT / "docs" / "configuration.md").read_text(), "run python docs/configuration.py"


def test_files_that_architecture_names_exist() -> None:
    """A path with a folder is given from the package, or from the top; a bare name is somewhere in the package."""
    named = set(re.findall(r"`((?:[a-z_0-9]+/)*[a-z_0-9]+\.py)`", (ROOT / "docs" / "architecture.md").read_text()))
    assert len(named) > 40
    bare = {path.name for path in (ROOT / "onyx").rglob("*.py")}
    there = bare | {path for path in named if (ROOT / path).is_file() or (ROOT / "onyx" / path).is_file()}
    assert named - there == set()
