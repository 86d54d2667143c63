"""Every file in examples/ runs, clients against a real service."""

import os
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import httpx
import pytest

from tests.acceptance.onyx_serve import onyx_serve
from tests.planner_cache import share_planner_cache
from tests.waiting import PATIENCE, wait_for

EXAMPLES = Path(__file__).parent.parent / "examples"
CLIENTS = {"curl.sh", "openai_client.py"}
APP = "embedded_app.py"
ALONE = sorted({*EXAMPLES.glob("*.py"), *EXAMPLES.glob("*/*.py")} - {EXAMPLES / name for name in (*CLIENTS, APP)})


@pytest.fixture(scope="module")
def url(tmp_path_factory: pytest.TempPathFactory) -> Iterator[str]:
    with onyx_serve(tmp_path_factory.mktemp("examples")) as service:
        yield service.url


def run(place: Path, *command: str | Path) -> str:
    environment = os.environ | {
        "PYTHONPATH": str(EXAMPLES.parent),
        "ONYX_HOME": str(place),
        "ONYX_CPU_MEMORY": "3GB",
    }
    words = [str(word) for word in command]
    done = subprocess.run(words, cwd=place, env=environment, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stdout + done.stderr
    return done.stdout


@pytest.mark.parametrize("example", ALONE, ids=lambda path: str(path.relative_to(EXAMPLES)))
def test_it_runs(example: Path, tmp_path: Path) -> None:
    share_planner_cache(tmp_path)
    run(tmp_path, sys.executable, "-W", "error", example)


def test_curl_fetches_a_model(url: str, tmp_path: Path) -> None:
    said = run(tmp_path, EXAMPLES / "curl.sh", url, tmp_path / "model")
    assert "event: done" in said
    assert (tmp_path / "model" / "model.safetensors").stat().st_size > 0


def test_openais_client_gets_a_model_that_answers(url: str, tmp_path: Path) -> None:
    said = run(tmp_path, sys.executable, "-W", "error", EXAMPLES / "openai_client.py", url)
    assert "squares" in said
    assert " says: " in said


def test_an_app_that_includes_the_router_serves_both(tmp_path: Path) -> None:
    share_planner_cache(tmp_path)
    socket = tmp_path / "app.sock"
    command = [sys.executable, "-m", "uvicorn", "--app-dir", EXAMPLES, "--uds", socket, "embedded_app:app"]
    environment = os.environ | {"PYTHONPATH": str(EXAMPLES.parent), "ONYX_HOME": str(tmp_path)}
    environment |= {"ONYX_EMBEDDED_RUNNER": "false", "ONYX_ALLOW_ANONYMOUS": "true"}  # a socket of files is no loopback
    app = subprocess.Popen([str(word) for word in command], cwd=tmp_path, env=environment)
    try:
        wait_for(socket.exists, "the app listens")
        transport = httpx.HTTPTransport(uds=str(socket))
        with httpx.Client(transport=transport, base_url="http://localhost", timeout=PATIENCE) as client:
            assert client.get("/hello").json() == {"hello": "world"}
            assert client.get("/tuning/gradient-accumulation/health").json()["status"] == "healthy"
            made = client.post("/tuning/gradient-accumulation/config", json={"accumulation_steps": 4})
            assert made.status_code == 200, made.text
    finally:
        app.terminate()
        app.wait(PATIENCE)


def test_the_list_of_examples_names_them_all() -> None:
    listed = (EXAMPLES / "README.md").read_text()
    files = [path for path in EXAMPLES.rglob("*") if path.suffix in (".py", ".sh")]
    assert all(f"({path.relative_to(EXAMPLES)})" in listed for path in files)
