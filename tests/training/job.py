"""Small real jobs: a tiny Llama on disk, prepared data, and ranks that are real processes."""

import contextlib
import os
import shutil
import signal
import time
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Literal

import numpy as np
import torch
from numpy.typing import NDArray
from safetensors.torch import load_file

from onyx.training.contract.attempt import Attempt, Event, Exit, Result, Share, attempt_dir
from onyx.training.contract.child_process import StopFlag
from onyx.training.contract.spec import DataSpec, JobSpec, TrainingSpec
from onyx.training.data.encode import Encoded
from onyx.training.data.token_store import FORMAT, Meta, Writer, write_meta
from onyx.training.models.tiny import make_tiny
from onyx.training.rank.epoch import finish
from onyx.training.rank.loop import Ending, train
from onyx.training.rank.main import set_up
from onyx.training.rank.rank_group import Ranks
from onyx.training.rank.run import Run
from onyx.training.state.events import read_events
from tests.training.fork_server import SECONDS, ForkServer

VOCABULARY = 250
POISON = 255
"""A token that is in no other sample."""


def write_data(
    out: Path,
    lengths: list[int],
    *,
    evaluation: int = 0,
    seed: int = 0,
    masked: tuple[int, ...] = (),
    poisoned: tuple[int, ...] = (),
) -> Path:
    """Write prepared samples of these lengths that a model can learn. The last `evaluation` of them are held out.

    Every token follows from the one before it. `masked` samples have no label token, `poisoned` ones begin with POISON.
    """
    out.mkdir(parents=True)
    random = np.random.default_rng(seed)
    with Writer(out) as writer:
        for index, length in enumerate(lengths):
            tokens = (random.integers(VOCABULARY) + 7 * np.arange(length)) % VOCABULARY
            if index in poisoned:
                tokens[0] = POISON
            mask = np.full(length, index not in masked)
            writer.add(_encoded(tokens.astype(np.int32), mask))
        held = np.arange(len(lengths)) >= len(lengths) - evaluation
        writer.split(held)
    _seal(out, lengths, evaluation)
    return out


def write_pairs(out: Path, lengths: list[tuple[int, int, int]], *, evaluation: int = 0, seed: int = 0) -> Path:
    """Write prepared pairs. `lengths` are the tokens of the prompt, of the preferred answer and of the other.

    A prompt and its preferred answer count up by 7, the other answer by 3.
    """
    out.mkdir(parents=True)
    random = np.random.default_rng(seed)
    with Writer(out) as writer:
        for prompt, *answers in lengths:
            prompt_tokens = int(random.integers(VOCABULARY)) + 7 * np.arange(prompt)
            for step, length in zip((7, 3), answers, strict=True):
                tokens = np.append(prompt_tokens, prompt_tokens[-1] + step * np.arange(1, length + 1)) % VOCABULARY
                writer.add(_encoded(tokens.astype(np.int32), np.arange(len(tokens)) >= prompt))
        held = np.arange(len(lengths)) >= len(lengths) - evaluation
        writer.split(np.repeat(held, 2))
    _seal(out, [prompt + max(answers) for prompt, *answers in lengths], evaluation, rows=2)
    return out


def _seal(out: Path, lengths: list[int], evaluation: int, rows: int = 1) -> None:
    meta = Meta(
        format=FORMAT,
        key=out.name,
        samples=len(lengths) - evaluation,
        evaluation_samples=evaluation,
        tokens=sum(lengths),
        label_tokens=sum(lengths) - len(lengths),
        longest=max(lengths),
        lengths=[(max(lengths), len(lengths))],
        truncated=0,
        bad_lines=0,
        findings=[],
        highest_token=VOCABULARY,
        rows=rows,
    )
    write_meta(out, meta)


def _encoded(tokens: NDArray[np.int32], mask: NDArray[np.bool_]) -> Encoded:
    return Encoded(tokens=tokens, mask=mask, truncated=False)


def make_model(home: Path, **changes: Any) -> Path:
    """onyx/tiny, or with changes another Llama with onyx/tiny's tokenizer."""
    tiny = make_tiny(home / "models")
    if not changes:
        return tiny
    from transformers import AutoConfig, AutoModelForCausalLM

    out = home / "models" / "-".join(f"{key}={value}" for key, value in changes.items())
    if not out.exists():
        config = AutoConfig.from_pretrained(tiny)
        for name, value in changes.items():
            setattr(config, name, value)
        torch.manual_seed(0)
        AutoModelForCausalLM.from_config(config).save_pretrained(out)  # type: ignore[no-untyped-call]
        for name in ("tokenizer.json", "tokenizer_config.json", "chat_template.jinja"):
            shutil.copy(tiny / name, out / name)
    return out


@dataclass(kw_only=True)
class Job:
    """One job and its attempts."""

    fork_server: ForkServer
    home: Path
    model: Path
    data: Path
    name: str = "job"
    training: dict[str, Any] = field(default_factory=dict)
    window: int = 8
    accumulation_steps: int = 2
    """The plan's."""

    plan: dict[str, Any] = field(default_factory=dict)
    """Other entries of the plan."""

    budgets: list[int] = field(default_factory=lambda: [128])
    """One per rank."""

    parts: list[float] | None = None
    memory: list[int | None] | None = None
    limits: dict[str, int] = field(default_factory=dict)
    hook: str | None = None
    """What every rank calls first, as module:function."""

    memory_losses: int = 0
    """How many former attempts ended out of memory."""

    free_disk: int = 0
    """Bytes that the operator keeps free."""

    compile_dir: Path | None = None
    layout: Literal["padded", "joined"] = "padded"
    number: int = 0
    """Number of the last attempt."""

    @property
    def dir(self) -> Path:
        return self.home / "jobs" / self.name

    @property
    def attempt_dir(self) -> Path:
        return attempt_dir(self.dir, self.number)

    @property
    def events(self) -> list[Event]:
        """Of the last attempt."""
        return read_events(self.attempt_dir / "events.jsonl")

    def twin(self, name: str, **changes: Any) -> "Job":
        """The same job under another name."""
        values = vars(self) | {"name": name, "number": 0} | changes
        return Job(**values)

    def start(self, *, hold: Sequence[int] = ()) -> list[int]:
        """Start the next attempt's ranks as processes. They wait after each update of `hold`."""
        self.number += 1
        path = self.write_attempt()
        ranks = range(len(self.budgets))
        return [self.fork_server.start(path, rank, limits=self.limits, hold=hold, hook=self.hook) for rank in ranks]

    def wait(self, pids: list[int], seconds: float = SECONDS) -> list[int]:
        return [self.fork_server.wait(pid, seconds) for pid in pids]

    def run(self) -> list[int]:
        """Run one attempt to its end."""
        return self.wait(self.start())

    def finish(self) -> "Job":
        """Run one attempt that must succeed."""
        codes = self.run()
        assert codes == [Exit.DONE] * len(self.budgets), self.log()
        return self

    def write_attempt(self) -> Path:
        folder = self.attempt_dir
        folder.mkdir(parents=True)
        path = folder / "attempt.json"
        path.write_text(self.attempt().model_dump_json())
        return path

    def spec(self) -> JobSpec:
        training = {"epochs": 2, "learning_rate": 3e-3, "save_every_updates": 5, **self.training}
        return JobSpec(
            model="onyx/tiny", data=DataSpec(texts=["-"]), training=TrainingSpec(**training), window=self.window
        )

    def attempt(self) -> Attempt:
        parts = self.parts or [1 / len(self.budgets)] * len(self.budgets)
        memory = self.memory or [None] * len(self.budgets)
        return Attempt(
            job_id=self.name,
            number=self.number,
            spec=self.spec(),
            plan={"accumulation_steps": self.accumulation_steps, **self.plan},
            shares=[
                Share(device=f"cpu:{rank}", share=part, token_budget=budget, memory_bytes=most)
                for rank, (part, budget, most) in enumerate(zip(parts, self.budgets, memory, strict=True))
            ],
            memory_losses=self.memory_losses,
            precision="float32",
            model_dir=self.model,
            data_dir=self.data,
            job_dir=self.dir,
            attempt_dir=self.attempt_dir,
            rendezvous=self.attempt_dir / "rendezvous",
            free_disk_bytes=self.free_disk,
            compile_dir=self.compile_dir,
            layout=self.layout,
        )

    def log(self) -> str:
        return "\n".join(path.read_text()[-3000:] for path in sorted(self.attempt_dir.glob("rank-*.log")))

    def weights(self) -> dict[str, torch.Tensor]:
        """Of the published model."""
        (path,) = (self.dir / "model").glob("*model.safetensors")
        return load_file(path)

    def signal(self, pids: list[int], number: signal.Signals = signal.SIGTERM) -> None:
        for pid in pids:
            os.kill(pid, number)

    def until_held(self, update: int) -> None:
        """Wait until the attempt waits at an update of `hold`. On a busy machine, too, it gets no further."""
        ranks = range(len(self.budgets) if update == 0 else 1)
        self.until(lambda: all((self.attempt_dir / f"held-{update}-{rank}").exists() for rank in ranks))

    def release(self, update: int) -> None:
        """Let the attempt go on from that update, now or when it gets there."""
        (self.attempt_dir / f"release-{update}").touch()

    def until(self, condition: Callable[[], bool], seconds: float = SECONDS) -> None:
        end = time.monotonic() + seconds
        while not condition():
            assert time.monotonic() < end, self.log()
            time.sleep(0.002)

    def rows(self) -> list[str]:
        path = self.dir / "metrics.csv"
        return path.read_text().splitlines()[1:] if path.exists() else []


@contextlib.contextmanager
def inline(job: Job, stop: StopFlag | None = None) -> Iterator[Run]:
    """The next attempt, set up in this process with one rank."""
    job.number += 1
    if not job.attempt_dir.exists():
        job.write_attempt()
    attempt = job.attempt()
    run = set_up(attempt, Ranks(), attempt.shares[0], stop or StopFlag())
    try:
        yield run
    finally:
        run.recorder.close()


def run_inline(job: Job) -> Run:
    """Run the next attempt from its beginning to its end, in this process."""
    with inline(job) as run:
        assert train(run) is Ending.DONE
        finish(run)
    return run


def result_of(job: Job) -> Result:
    """The result.json of the last attempt."""
    return Result.model_validate_json((job.attempt_dir / "result.json").read_bytes())


def same(one: dict[str, torch.Tensor], other: dict[str, torch.Tensor]) -> bool:
    """Whether both are equal, bit for bit."""
    return one.keys() == other.keys() and all(torch.equal(one[name], other[name]) for name in one)


def distance(one: dict[str, torch.Tensor], other: dict[str, torch.Tensor]) -> float:
    """Relative to the weights' norm."""
    assert one.keys() == other.keys()
    a, b = (torch.cat([each[name].flatten().double() for name in sorted(each)]) for each in (one, other))
    return float((a - b).norm() / b.norm())
