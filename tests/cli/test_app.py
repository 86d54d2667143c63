import subprocess
import sys

from onyx import __version__
from tests.cli.conftest import Onyx


def test_version_help_and_usage(onyx: Onyx) -> None:
    assert onyx("--version").out == f"onyx {__version__}\n"
    assert "doctor" in onyx("--help").out
    assert onyx("jobs", "dance").status == 2
    assert onyx("jobs", "list", "--limit", "0").status == 2


def test_importing_the_command_line_imports_no_heavy_library() -> None:
    heavy = ("torch", "fastapi", "sqlalchemy", "httpx", "rich.progress", "uvicorn", "pydantic")
    code = f"import onyx.cli, sys; print([name for name in {heavy!r} if name in sys.modules])"
    child = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert child.stdout.strip() == "[]"


def test_an_unreachable_service_is_one_line_on_stderr(onyx: Onyx) -> None:
    ran = onyx("jobs", "list")
    assert ran.status == 1
    assert ran.out == ""
    assert "onyx serve" in ran.err
    assert ran.err.count("\n") == 1


def test_a_malformed_url_is_a_usage_error(onyx: Onyx) -> None:
    assert onyx("jobs", "list", "--url", "localhost:8000").status == 2
