import runpy
from pathlib import Path

EXAMPLE = Path(__file__).parents[3] / "docs" / "examples" / "system.py"


def test_the_documented_examples_run() -> None:
    runpy.run_path(str(EXAMPLE), run_name="__main__")
