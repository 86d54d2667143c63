"""Which batch fits: Onyx's plan beside finders by trial and error, all under the same rlimit.

Each runs in a process of its own that may grow by the same number of bytes: Lightning's batch-size finder (power and
binary search), Accelerate's find_executable_batch_size from 512 on, and Onyx's plan with nothing in its cache, the
calibration of the machine included. Timed from the call to the answer; imports do not count.
"""

import json
import os
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

from benchmarks.measure import table
from benchmarks.speed.corpus import VOCABULARY

LENGTH = 64
LIMIT = 1200 * 2**20
START = 512
STEPS = 3
"""Steps of each try, as Lightning has them."""


def config() -> Any:
    from transformers import LlamaConfig

    return LlamaConfig(
        hidden_size=384,
        intermediate_size=1152,
        num_hidden_layers=6,
        num_attention_heads=6,
        num_key_value_heads=6,
        vocab_size=VOCABULARY,
        tie_word_embeddings=True,
        use_cache=False,
    )


def onyx() -> tuple[int, int]:
    from onyx.memory.devices.device import Device
    from onyx.memory.planner import plan
    from onyx.memory.recipe import Recipe

    size = int(LIMIT / 0.81) + 1  # of which a plan uses 0.9 × 0.9
    device = Device(kind="cpu", index=0, name="CPU", memory_total=size, memory_free=size, cores=1)
    made = plan(Recipe(model=config(), max_length=LENGTH), effective_batch=4096, devices=[device])
    return made.micro_batch, 0


def accelerate() -> tuple[int, int]:
    from accelerate.utils import find_executable_batch_size

    model, optimizer = _model()
    tries = 0

    @find_executable_batch_size(starting_batch_size=START)  # type: ignore[untyped-decorator]
    def train(batch_size: int) -> int:
        nonlocal tries
        tries += 1
        for _ in range(STEPS):
            _step(model, optimizer, batch_size)
        return batch_size

    found: int = train()
    return found, tries - 1


def lightning(mode: str) -> tuple[int, int]:
    import lightning as pl
    import torch
    from lightning.pytorch.tuner import Tuner

    failed = 0

    class Module(pl.LightningModule):  # type: ignore[misc]
        def __init__(self) -> None:
            super().__init__()
            self.batch_size = 2
            self.model = _model()[0]

        def training_step(self, batch: Any, _: int) -> Any:
            nonlocal failed
            try:
                return self.model(input_ids=batch, labels=batch).loss
            except RuntimeError:
                failed += 1
                raise

        def configure_optimizers(self) -> Any:
            return torch.optim.AdamW(self.parameters())

        def train_dataloader(self) -> Any:
            return torch.utils.data.DataLoader(torch.zeros(8192, LENGTH, dtype=torch.long), batch_size=self.batch_size)  # type: ignore[arg-type]

    module = Module()
    trainer = pl.Trainer(
        accelerator="cpu", logger=False, enable_progress_bar=False, enable_model_summary=False, max_epochs=1
    )
    found = Tuner(trainer).scale_batch_size(module, mode=mode, steps_per_trial=STEPS)
    return int(found or 0), failed


def _model() -> tuple[Any, Any]:
    import torch
    from transformers import LlamaForCausalLM

    model: Any = LlamaForCausalLM(config())  # type: ignore[no-untyped-call]
    return model.train(), torch.optim.AdamW(model.parameters())


def _step(model: Any, optimizer: Any, batch_size: int) -> None:
    import torch

    ids = torch.zeros((batch_size, LENGTH), dtype=torch.long)
    model(input_ids=ids, labels=ids).loss.backward()
    optimizer.step()
    optimizer.zero_grad()


FINDERS: dict[str, Callable[[], tuple[int, int]]] = {
    "Onyx's plan, uncached": onyx,
    "Lightning, power": lambda: lightning("power"),
    "Lightning, binary search": lambda: lightning("binsearch"),
    "Accelerate": accelerate,
}


def find(name: str) -> None:
    """Limit this process, find the batch and print it."""
    import torch
    import transformers.models.llama.modeling_llama  # noqa: F401 - others import it when they are timed

    from onyx.memory.devices.cpu import limit_memory

    torch.set_num_threads(1)
    if not name.startswith("Onyx"):
        import lightning.pytorch.tuner  # noqa: F401

        limit_memory(LIMIT)
    began = time.perf_counter()
    batch, failed = FINDERS[name]()
    seconds = time.perf_counter() - began
    sys.stdout.write("\n" + json.dumps({"seconds": seconds, "batch": batch, "failed": failed}) + "\n")


def main() -> str:
    """The table, as Markdown."""
    rows = []
    first = None
    for name in FINDERS:
        with tempfile.TemporaryDirectory() as home:
            environment = os.environ | {"ONYX_HOME": home, "OMP_NUM_THREADS": "1", "OPENBLAS_NUM_THREADS": "1"}
            command = [sys.executable, "-m", "benchmarks.speed.finders", name]
            done = subprocess.run(command, env=environment, capture_output=True, text=True, cwd=Path.cwd())
        if done.returncode:
            reason = (done.stderr.strip().splitlines() or ["?"])[-1][:120]
            rows.append([name, f"ended with {done.returncode}: {reason}", "", "", ""])
            continue
        answer = json.loads(done.stdout.strip().splitlines()[-1])
        first = first or answer["seconds"]
        ratio = f"{answer['seconds'] / first:.1f}"
        rows.append([name, str(answer["batch"]), f"{answer['seconds']:.1f} s", ratio, str(answer["failed"])])
    return table(["finder", "batch", "time to the answer", "× Onyx", "out of memory on the way"], rows)


if __name__ == "__main__":
    find(sys.argv[1]) if len(sys.argv) > 1 else print(main())
