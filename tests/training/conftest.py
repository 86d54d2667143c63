from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from onyx.training.models.tiny import make_tiny
from onyx.training.models.tokenizer import load_tokenizer
from tests.planner_cache import share_planner_cache
from tests.training.fork_server import ForkServer
from tests.training.job import Job, make_model, write_data, write_pairs

LENGTHS = [5, 12, 3, 30, 8, 21, 16, 4, 9, 40, 6, 11, 2, 25, 7, 18] * 5

PAIRS = [(3, 5, 9), (8, 12, 4), (2, 3, 2), (10, 20, 25), (1, 7, 7), (6, 15, 2), (4, 9, 14), (12, 3, 30)] * 5
"""Tokens of the prompt, of the preferred answer and of the other."""


@pytest.fixture(scope="session")
def fork_server() -> Iterator[ForkServer]:
    server = ForkServer()
    yield server
    server.close()


@pytest.fixture(scope="session")
def home(tmp_path_factory: pytest.TempPathFactory) -> Path:
    home = tmp_path_factory.mktemp("onyx")
    share_planner_cache(home)
    return home


@pytest.fixture
def job(fork_server: ForkServer, home: Path, tmp_path: Path) -> Job:
    """80 samples of 2 to 40 tokens, in 10 windows an epoch, 2 epochs."""
    data = home / "data" / "plain"
    if not data.exists():
        write_data(data, LENGTHS)
    return Job(fork_server=fork_server, home=tmp_path, model=make_model(home), data=data)


@pytest.fixture
def preference_job(job: Job, home: Path) -> Job:
    """36 pairs, in 5 windows an epoch, and 4 to evaluate on; with dropout."""
    job.data = home / "data" / "pairs"
    if not job.data.exists():
        write_pairs(job.data, PAIRS, evaluation=4)
    job.model = make_model(home, attention_dropout=0.2)
    job.training = {"objective": "dpo", "epochs": 2}
    return job


@pytest.fixture(scope="session")
def tiny(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The directory of onyx/tiny. Tests that change files copy it."""
    return make_tiny(tmp_path_factory.mktemp("models"))


@pytest.fixture
def tokenizer(tiny: Path) -> Any:
    return load_tokenizer(tiny)
