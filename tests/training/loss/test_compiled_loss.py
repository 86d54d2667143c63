"""The compiled step, with real compilers in ranks that are processes."""

import os
import shutil
import signal
import subprocess
import sys
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from torch._dynamo.testing import CompileCounterWithBackend
from transformers import AutoModelForCausalLM

from onyx.training.contract.attempt import Exit
from onyx.training.loss.objective import loss_and_correct
from onyx.training.packing.joined_attention import attend_joined
from onyx.training.packing.samples import blank_row, row_of
from tests.training.fork_server import ForkServer
from tests.training.job import Job, make_model, write_data

LENGTHS = [int(n) for n in np.random.default_rng(3).integers(4, 24, size=64)]

CPU = torch.device("cpu")

COMPILING = 300.0
"""Seconds: on a busy machine a compiler takes minutes."""

needs_compiler = pytest.mark.skipif(not shutil.which("c++") and not shutil.which("g++"), reason="no C++ compiler")


@pytest.fixture
def job(fork_server: ForkServer, tmp_path: Path) -> Job:
    data = write_data(tmp_path / "data", LENGTHS)
    model = make_model(tmp_path, num_hidden_layers=1)
    return Job(fork_server=fork_server, home=tmp_path, model=model, data=data, training={"epochs": 1}, budgets=[96])


@needs_compiler
@pytest.mark.slow
def test_it_trains_to_the_same_weights_within_float_error(job: Job, tmp_path: Path) -> None:
    plain = job.twin("plain").finish()
    compiled = job.twin("compiled", compile_dir=tmp_path / "compiled")
    assert compiled.wait(compiled.start(), COMPILING) == [Exit.DONE], compiled.log()
    assert any("compiled in" in event.message for event in compiled.events), compiled.log()
    assert (tmp_path / "compiled").stat().st_mode & 0o077 == 0  # graphs are pickle: no other user may write
    for name, weight in plain.weights().items():
        torch.testing.assert_close(compiled.weights()[name], weight, rtol=1e-4, atol=1e-6)


@needs_compiler
@pytest.mark.slow
def test_a_stopped_one_goes_on_to_the_same_bits(job: Job, tmp_path: Path) -> None:
    whole = job.twin("whole", compile_dir=tmp_path / "compiled", training={"epochs": 3}).finish()
    stopped = job.twin("stopped", compile_dir=tmp_path / "compiled", training={"epochs": 3})
    pids = stopped.start(hold=[7])
    stopped.until_held(7)
    stopped.signal(pids, signal.SIGTERM)
    stopped.release(7)
    assert stopped.wait(pids) == [Exit.SAVED]
    stopped.finish()
    assert stopped.number == 2
    for name, weight in whole.weights().items():
        assert torch.equal(stopped.weights()[name], weight)


@pytest.mark.slow
def test_without_a_compiler_it_trains_uncompiled_and_says_so(job: Job, tmp_path: Path) -> None:
    plain = job.twin("plain").finish()
    broken = job.twin("broken", compile_dir=tmp_path / "compiled")
    broken.number = 1
    path = broken.write_attempt()
    environment = os.environ | {"CXX": "/bin/false", "OMP_NUM_THREADS": "1"}
    command = [sys.executable, "-m", "onyx.training.rank.main", str(path), "0"]
    assert subprocess.run(command, env=environment, capture_output=True).returncode == Exit.DONE
    (event,) = [each for each in broken.events if "not compiled" in each.message]
    assert event.level == "warn"
    for name, weight in plain.weights().items():
        assert torch.equal(broken.weights()[name], weight)


@needs_compiler
@pytest.mark.slow
@pytest.mark.filterwarnings("ignore::DeprecationWarning")  # of torch's own parts
def test_joined_samples_never_need_another_graph(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """No number of samples, runs or tokens is compiled again, and the sums are those of the plain step."""
    monkeypatch.setenv("TORCHINDUCTOR_CACHE_DIR", str(tmp_path))
    model: Any = AutoModelForCausalLM.from_pretrained(make_model(tmp_path, num_hidden_layers=1))
    attend_joined(model)
    counter = CompileCounterWithBackend("inductor")
    compiled = torch.compile(loss_and_correct, dynamic=True, backend=counter)
    compiled(model, blank_row(4, 30, CPU))[0].backward()
    graphs = counter.frame_count
    for lengths in ([30, 20, 20, 5], [7], [9, 9, 9], [40, 40]):
        batch = row_of([(np.arange(n) + 3, np.arange(n) + 3) for n in lengths], CPU)
        loss, right = compiled(model, batch)
        loss.backward()
        plain, plain_right = loss_and_correct(model, batch)
        torch.testing.assert_close(loss, plain, rtol=1e-5, atol=1e-5)
        assert right == plain_right
    assert counter.frame_count == graphs
