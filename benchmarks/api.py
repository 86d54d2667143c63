"""What the service costs beside a training, and as its store grows.

Latency: a job of two ranks keeps both cores busy; `GET /stats/{id}` and a bare FastAPI "hello" in a process of its own
are requested in turn, each 100 times a second, and every answer is timed from the moment it was due. Start: from the
process's start to the first answer of /healthz and to /readyz, which also waits for the runner. Store: list, get and
stats with 10,000 finished jobs over the same with 20, which is a page: so both answer as much.
"""

import asyncio
import statistics
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import httpx
from sqlalchemy import insert, select

from benchmarks.measure import table
from onyx.jobs.store.store import Store
from onyx.jobs.store.tables import JobRow
from onyx.settings import Settings
from tests.acceptance.api_server import ApiServer, api_server, free_port
from tests.waiting import wait_for

RATE = 100
SECONDS = 1
ROUNDS = 30
MANY, FEW = 10_000, 20
REQUESTS = 200

HELLO = """
import sys, uvicorn
from fastapi import FastAPI
app = FastAPI()
@app.get("/")
async def hello() -> dict[str, str]:
    return {"hello": "world"}
uvicorn.run(app, host="127.0.0.1", port=int(sys.argv[1]), log_level="warning")
"""
PREFIX = "/gradient-accumulation"


def main() -> str:
    """Every table."""
    with tempfile.TemporaryDirectory() as folder:
        rows = [*start(Path(folder) / "start"), *asyncio.run(latency(Path(folder) / "busy"))]
        rows += asyncio.run(growth(Path(folder) / "grown"))
    return table(["what", "measured", "target"], rows)


def start(home: Path) -> list[list[str]]:
    """How long until it answers, and how much it holds."""
    server = ApiServer(Settings(home=home, cpu_memory="3GB"))
    began = time.perf_counter()
    seconds = {}
    try:
        server.start(until="/healthz")
        seconds["/healthz"] = time.perf_counter() - began
        wait_for(lambda: server.answers("/readyz"), "ready")
        seconds["/readyz"] = time.perf_counter() - began
        held = server.memory / 1e6
    finally:
        server.close()
    return [
        ["start → /healthz", f"{seconds['/healthz']:.2f} s", ""],
        ["start → /readyz (with its runner)", f"{seconds['/readyz']:.2f} s", "≤ 2 s"],
        ["memory of the API process", f"{held:.0f} MB", "≤ 150 MB"],
    ]


async def latency(home: Path) -> list[list[str]]:
    """p50 and p99 beside a training, against hello."""
    texts = [f"the square of {n} is {n * n}, " * 12 for n in range(512)]
    request = {
        "model_name": "onyx/tiny",
        "dataset_config": {"texts": texts, "max_length": 512},
        "training_config": {"epochs": 1000},
        "user_id": 1,
        "distributed": True,
        "world_size": 2,
    }
    with api_server(home, cpu_devices=2) as server, _hello() as hello:
        async with httpx.AsyncClient(timeout=30) as client:
            made = (await client.post(f"{server.api}/training/with-accumulation", json=request)).json()
            url = f"{server.api}/stats/{made['training_id']}"
            await _until_it_trains(client, f"{server.api}/training/{made['training_id']}/events")
            taken: dict[str, list[float]] = {url: [], hello: []}
            for _ in range(ROUNDS):
                for each in taken:
                    taken[each] += await _request_at_rate(client, each)
            await client.post(f"{server.api}/training/{made['training_id']}/cancel")
            held = server.memory / 1e6
    ours, theirs = (statistics.quantiles(times, n=100) for times in taken.values())
    return [
        ["p50 of /stats/{id} beside a training", f"{1000 * ours[49]:.1f} ms", f"hello {1000 * theirs[49]:.1f} ms"],
        [
            "p99",
            f"{1000 * ours[98]:.1f} ms = {ours[98] / theirs[98]:.2f} × hello's {1000 * theirs[98]:.1f} ms",
            "≤ 3 ×",
        ],
        ["answers", f"{len(taken[url])}, all 200", "no error"],
        ["memory of the API process afterwards", f"{held:.0f} MB", "≤ 150 MB"],
    ]


async def _request_at_rate(client: httpx.AsyncClient, url: str) -> list[float]:
    """Send requests at a fixed rate, however long answers take; seconds from when each was due."""

    async def one(due: float) -> float:
        answer = await client.get(url)
        assert answer.status_code == 200, answer.text
        return time.perf_counter() - due

    began, requests = time.perf_counter(), []
    for number in range(RATE * SECONDS):
        due = began + number / RATE
        await asyncio.sleep(max(0.0, due - time.perf_counter()))
        requests.append(asyncio.create_task(one(due)))
    return await asyncio.gather(*requests)


async def _until_it_trains(client: httpx.AsyncClient, events: str) -> None:
    async with client.stream("GET", events, headers={"Accept": "text/event-stream"}) as stream:
        async for line in stream.aiter_lines():
            if '"kind":"metrics"' in line:
                return


@contextmanager
def _hello() -> Iterator[str]:
    port = free_port()
    process = subprocess.Popen([sys.executable, "-c", HELLO, str(port)])
    try:
        wait_for(lambda: _answers(f"http://127.0.0.1:{port}/"), "hello")
        yield f"http://127.0.0.1:{port}/"
    finally:
        process.terminate()
        process.wait()


def _answers(url: str) -> bool:
    try:
        return httpx.get(url).status_code == 200
    except httpx.HTTPError:
        return False


async def growth(home: Path) -> list[list[str]]:
    """The same requests to a small store and a large one."""
    with api_server(home) as server:
        async with httpx.AsyncClient(base_url=server.api, timeout=60) as client:
            request = {"model_name": "onyx/tiny", "dataset_config": {"texts": ["a b c"] * 8}, "user_id": 1}
            made = (await client.post("/training/with-accumulation?wait=60", json=request)).json()
            paths = {"list": "/training", "get": f"/training/{made['training_id']}", "stats": "/stats"}
            seconds: dict[int, dict[str, float]] = {}
            for count in (FEW, MANY):
                await _fill(server.settings, count)
                seconds[count] = {name: await _median(client, path) for name, path in paths.items()}
    return [
        [
            f"{name}: {MANY} jobs over {FEW}",
            f"{seconds[MANY][name] / seconds[FEW][name]:.2f} × ({1000 * seconds[MANY][name]:.1f} ms)",
            "≤ 1.5 ×",
        ]
        for name in paths
    ]


async def _median(client: httpx.AsyncClient, path: str) -> float:
    times = []
    for _ in range(REQUESTS):
        began = time.perf_counter()
        assert (await client.get(path)).status_code == 200
        times.append(time.perf_counter() - began)
    return statistics.median(times)


async def _fill(settings: Settings, count: int) -> None:
    """Copies of the finished job until there are so many."""
    store = await Store.open(settings.store_url)
    try:
        async with store.database.writing() as tx:
            row = (await tx.session.execute(select(JobRow.__table__).limit(1))).mappings().one()
            there = await store.jobs.count()
            copies = [
                {**row, "id": f"accumulation_{n}_{n:010d}", "created_at": row["created_at"] - n}
                for n in range(there, count)
            ]
            if copies:
                await tx.session.execute(insert(JobRow), copies)
    finally:
        await store.close()
