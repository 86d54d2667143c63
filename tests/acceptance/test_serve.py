"""`onyx serve`: starts quickly, is never open to other hosts by accident, and stops without losing anything."""

import json
import os
import signal
import socket
import subprocess
import threading
from pathlib import Path

import httpx
import psutil
import pytest

from onyx.cli.client import ServiceClient
from onyx.cli.commands.watch import observe
from onyx.jobs.process_identity import start_of
from onyx.jobs.runner.runner_lock import locked_by
from tests.acceptance.onyx_serve import API, COMMAND, environment, onyx_serve
from tests.acceptance.runner_home import fingerprint
from tests.waiting import PATIENCE, wait_for

EVERYWHERE = "0.0.0.0"  # noqa: S104 (that is what these tests are about)


def is_running(job: dict[str, object]) -> bool:
    assert job["status"] not in ("succeeded", "failed", "cancelled"), job
    return job["status"] == "running" and job["progress"] is not None


def run(home: Path, *arguments: str, **more: str) -> subprocess.CompletedProcess[str]:
    command = [*COMMAND, *arguments]
    return subprocess.run(command, env=environment(home, **more), capture_output=True, text=True, timeout=PATIENCE)


def test_it_says_where_it_is_and_imports_no_torch(tmp_path: Path) -> None:
    with onyx_serve(tmp_path) as service:
        assert service.ask("GET", "/healthz") == {"status": "alive"}
        assert httpx.get(f"{service.url}/docs").status_code == 200
        wait_for(lambda: httpx.get(f"{service.url}/readyz").status_code == 200, "it is ready")
        loaded = Path(f"/proc/{service.process.pid}/maps").read_text()
        assert "libtorch" not in loaded
        runner = service.runner()
        assert service.stop() == 0
    assert start_of(runner.pid) != runner.started, "the runner outlives a service that was told to stop"


def test_a_stopped_service_saves_requeues_and_the_next_goes_on(tmp_path: Path) -> None:
    with onyx_serve(tmp_path) as first:
        job_id = first.submit(epochs=300)
        first.until(job_id, is_running)
        runner = first.runner()
        ranks = [each for each in psutil.Process(runner.pid).children(recursive=True) if "rank" in each.name()]
        assert ranks
        begun, ended = threading.Event(), threading.Event()
        stream = threading.Thread(target=listen, args=(f"{first.url}{API}/training/{job_id}/events", begun, ended))
        stream.start()
        assert begun.wait(600)
        assert first.stop() == 0
        stream.join(10)
        assert ended.is_set(), "whoever listens hears of the end"
    assert locked_by(tmp_path / "run") is None
    assert not any(rank.is_running() for rank in ranks)
    with onyx_serve(tmp_path, ONYX_EMBEDDED_RUNNER="false") as second:
        job = second.job(job_id)
        assert job["status"] == "queued"
        assert locked_by(tmp_path / "run") is None, "no runner was asked for"
    kept = sorted((tmp_path / "jobs" / job_id / "checkpoints").iterdir())
    assert kept, "ranks saved before they left"
    with onyx_serve(tmp_path) as third:
        former = job["progress"]["update"]
        third.until(job_id, lambda job: is_running(job) and job["progress"]["update"] > former)
        events = third.ask("GET", f"{API}/training/{job_id}/events", params={"limit": 1000})["data"]
        said = [event["message"] for event in events]
        assert any(text.startswith("The attempt stopped after saving: queued") for text in said), said
        assert any(text.startswith("resumed from update") for text in said), said
        third.ask("POST", f"{API}/training/{job_id}/cancel")


def listen(url: str, begun: threading.Event, ended: threading.Event) -> None:
    with httpx.stream("GET", url, headers={"Accept": "text/event-stream"}, timeout=PATIENCE) as response:
        for _ in response.iter_lines():
            begun.set()
    ended.set()


class Heard:
    """A view that records what it is given."""

    def __init__(self) -> None:
        self.seen: list[int] = []
        self.away: list[str] = []
        self.further = threading.Event()

    def event(self, event: dict[str, object]) -> None:
        self.seen.append(int(str(event["seq"])))

    def progress(self, job: dict[str, object], losses: list[float]) -> None:
        if job["progress"] is not None:
            self.further.set()

    def note(self, text: str) -> None:
        self.away.append(text)


def test_a_killed_api_costs_nothing_and_the_next_adopts_the_runner(tmp_path: Path) -> None:
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        port = str(free.getsockname()[1])
    with onyx_serve(tmp_path, "--port", port) as first:
        job_id = first.submit(epochs=24)
        view, done = Heard(), list[dict[str, object]]()
        watcher = threading.Thread(target=lambda: done.append(observe(ServiceClient(first.url), job_id, view)))
        watcher.start()
        assert view.further.wait(PATIENCE)
        runner = first.runner()
        assert first.stop(signal.SIGKILL) == -signal.SIGKILL
        assert start_of(runner.pid) == runner.started, "the runner goes on"
    with onyx_serve(tmp_path, "--port", port) as second:
        watcher.join(PATIENCE)
        assert done[0]["status"] == "succeeded", done
        assert view.seen == sorted(set(view.seen)), "each event once"
        assert second.runner() == runner, "adopted, not replaced"
        assert fingerprint(tmp_path, job_id)
        wait_for(lambda: httpx.get(f"{second.url}/readyz").status_code == 200, "it stays ready")
        os.kill(runner.pid, signal.SIGKILL)
        wait_for(lambda: (locked_by(tmp_path / "run") or runner) != runner, "a killed runner is replaced unasked")
        assert second.stop() == 0
    assert locked_by(tmp_path / "run") is None


def test_it_is_never_open_to_others_by_accident(tmp_path: Path) -> None:
    refused = run(tmp_path, "serve", "--host", EVERYWHERE, "--port", "0")
    assert refused.returncode == 2
    assert "no API keys" in refused.stderr
    made = run(tmp_path, "keys", "create", "laptop", "--json")
    secret = json.loads(made.stdout)["secret"]
    with onyx_serve(tmp_path, "--host", EVERYWHERE, ONYX_EMBEDDED_RUNNER="false") as service:
        url = service.url.replace(EVERYWHERE, "127.0.0.1")
        assert httpx.get(f"{url}{API}/training").status_code == 401
        headers = {"Authorization": f"Bearer {secret}"}
        assert httpx.get(f"{url}{API}/training", headers=headers).status_code == 200


@pytest.mark.parametrize("how", [("--allow-anonymous",), ()])
def test_unless_it_is_told_so(tmp_path: Path, how: tuple[str, ...]) -> None:
    more = {} if how else {"ONYX_ALLOW_ANONYMOUS": "true"}
    with onyx_serve(tmp_path, "--host", EVERYWHERE, *how, ONYX_EMBEDDED_RUNNER="false", **more) as service:
        assert httpx.get(service.url.replace(EVERYWHERE, "127.0.0.1") + f"{API}/training").status_code == 200


def test_a_port_in_use_is_said_in_words(tmp_path: Path) -> None:
    with socket.socket() as taken:
        taken.bind(("127.0.0.1", 0))
        taken.listen()
        refused = run(tmp_path, "serve", "--port", str(taken.getsockname()[1]))
    assert refused.returncode == 1
    assert "in use" in refused.stderr
    assert "Traceback" not in refused.stderr


def test_a_runner_of_its_own_is_not_the_services_to_stop(tmp_path: Path) -> None:
    with onyx_serve(tmp_path, ONYX_EMBEDDED_RUNNER="false") as service:
        runner = subprocess.Popen([*COMMAND, "runner"], env=environment(tmp_path), stderr=subprocess.DEVNULL)
        try:
            assert service.runner().embedded is False
            assert run(tmp_path, "runner").returncode == 1, "one runner per home and host"
            with onyx_serve(tmp_path) as other:
                assert other.stop() == 0
            assert runner.poll() is None
        finally:
            runner.terminate()
            assert runner.wait(600) == 0
