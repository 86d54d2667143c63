"""Others' trainers on a workload, each in its own process: `python -m benchmarks.speed.peers <name> <workload.json>`.

Each gets the same samples, in the same order where it allows that, the same window, AdamW, learning rate (constant),
clipping and threads, and is at its own defaults otherwise. It prints one line of JSON: see `RunLog`.
"""

import json
import sys
import tempfile
import time
from collections.abc import Callable, Iterator
from dataclasses import asdict, dataclass, field
from typing import Any

import torch
from torch.nn import functional

from benchmarks.speed.workload import Workload

IGNORED = -100


@dataclass(kw_only=True)
class RunLog:
    """When each update ended, what it had trained by then, and how well."""

    times: list[float] = field(default_factory=list)
    tokens: list[int] = field(default_factory=list)
    """Trained up to there, padding not counted."""

    losses: list[float] = field(default_factory=list)
    """Mean loss per label token of each update, where the contender reports it."""

    padded: int = 0

    def rate(self, skipped: int) -> float:
        """Tokens per second from the end of update `skipped` to the last one's."""
        return (self.tokens[-1] - self.tokens[skipped - 1]) / (self.times[-1] - self.times[skipped - 1])


def padded(rows: list[list[int]]) -> dict[str, torch.Tensor]:
    """As collators do it: padded to the longest, with a mask, and labels where there are tokens."""
    width = max(map(len, rows))
    ids = torch.tensor([row + [0] * (width - len(row)) for row in rows])
    mask = torch.tensor([[1] * len(row) + [0] * (width - len(row)) for row in rows])
    return {"input_ids": ids, "attention_mask": mask, "labels": ids.masked_fill(mask == 0, IGNORED)}


def load(workload: Workload) -> Any:
    from transformers import AutoModelForCausalLM

    model = AutoModelForCausalLM.from_pretrained(workload.model, dtype=torch.float32)
    model.config.use_cache = False
    if workload.method == "lora":
        from peft import LoraConfig, get_peft_model

        torch.manual_seed(0)
        model = get_peft_model(
            model, LoraConfig(r=8, lora_alpha=16, target_modules="all-linear", task_type="CAUSAL_LM")
        )
    return model.train()


def hand_written(workload: Workload, log: RunLog, *, compiled: bool = False) -> None:
    """A loop as users write it: pad, sum of losses over the window's label tokens, clip, step."""
    model = load(workload)
    samples = workload.samples()
    decay = [each for each in model.parameters() if each.requires_grad and each.ndim >= 2]
    still = [each for each in model.parameters() if each.requires_grad and each.ndim < 2]
    groups = [{"params": decay, "weight_decay": 0.01}, {"params": still, "weight_decay": 0.0}]
    optimizer = torch.optim.AdamW([each for each in groups if each["params"]], lr=workload.learning_rate)

    def loss_of(ids: torch.Tensor, mask: torch.Tensor, labels: torch.Tensor) -> torch.Tensor:
        logits = model(input_ids=ids, attention_mask=mask).logits
        return functional.cross_entropy(logits[:, :-1].flatten(0, 1), labels[:, 1:].flatten(), reduction="sum")

    run: Callable[..., torch.Tensor] = torch.compile(loss_of, dynamic=True) if compiled else loss_of
    for start in range(0, len(samples), workload.window):
        window = samples[start : start + workload.window]
        weight = sum(len(row) - 1 for row in window)
        total = 0.0
        for first in range(0, len(window), workload.micro_batch):
            batch = padded(window[first : first + workload.micro_batch])
            loss = run(batch["input_ids"], batch["attention_mask"], batch["labels"]) / weight
            loss.backward()
            total += loss.item()
        torch.nn.utils.clip_grad_norm_([*decay, *still], 1.0)
        optimizer.step()
        optimizer.zero_grad()
        _tick(log, sum(map(len, window)))
        log.losses.append(total)


def _tick(log: RunLog, tokens: int) -> None:
    log.times.append(time.perf_counter())
    log.tokens.append((log.tokens[-1] if log.tokens else 0) + tokens)


def trainer(workload: Workload, log: RunLog, **options: Any) -> None:
    """Hugging Face's Trainer."""
    from transformers import Trainer, TrainerCallback, TrainingArguments

    counts: list[int] = []
    rows = [{"input_ids": row, "length": len(row)} for row in workload.samples()]

    def collate(batch: list[dict[str, Any]]) -> dict[str, torch.Tensor]:
        counts.append(sum(len(each["input_ids"]) for each in batch))
        return padded([each["input_ids"] for each in batch])

    class Clock(TrainerCallback):
        def on_step_end(self, *_: Any, **__: Any) -> None:
            _tick(log, sum(counts))
            counts.clear()

        def on_log(self, *_: Any, **given: Any) -> None:
            if "loss" in given["logs"]:
                log.losses.append(float(given["logs"]["loss"]))

    with tempfile.TemporaryDirectory() as folder:
        arguments = TrainingArguments(**_arguments(workload, folder), **options)
        Trainer(
            model=load(workload), args=arguments, train_dataset=rows, data_collator=collate, callbacks=[Clock()]
        ).train()


def packed(workload: Workload, log: RunLog, **options: Any) -> None:
    """TRL's SFTTrainer with packing: rows of the greatest length, filled with whole samples and parts."""
    import datasets
    from transformers import AutoTokenizer, TrainerCallback
    from trl import SFTConfig, SFTTrainer

    counts: list[int] = []

    class Clock(TrainerCallback):
        def on_step_end(self, *_: Any, **__: Any) -> None:
            _tick(log, sum(counts))
            counts.clear()

    rows = datasets.Dataset.from_dict({"input_ids": workload.samples()})
    tokens = sum(map(len, workload.samples()))
    windows = workload.updates
    # As many tokens per update as the others have: rows are full, so there are fewer of them.
    rows_per_update = max(1, round(tokens / windows / workload.longest))
    micro = max(1, min(rows_per_update, workload.micro_batch // 2))
    arguments = _arguments(workload, tempfile.mkdtemp()) | {
        "per_device_train_batch_size": micro,
        "gradient_accumulation_steps": max(1, round(rows_per_update / micro)),
        # Its own defaults, bf16 and activations computed again, are for cards: here they take three times as long.
        "bf16": False,
        "gradient_checkpointing": False,
    }
    config = SFTConfig(**arguments, max_length=workload.longest, packing=True, **options)
    made = SFTTrainer(
        model=load(workload),
        args=config,
        train_dataset=rows,
        processing_class=AutoTokenizer.from_pretrained(workload.model),
        callbacks=[Clock()],
    )
    collate = made.data_collator

    def counted(batch: list[dict[str, Any]]) -> Any:
        found = collate(batch)
        counts.append(int((found["labels"] != IGNORED).sum()))
        return found

    made.data_collator = counted
    made.train()


def lightning(workload: Workload, log: RunLog) -> None:
    """Lightning's Trainer with a module as its pages show it."""
    import lightning as pl

    samples = workload.samples()

    class Module(pl.LightningModule):  # type: ignore[misc]
        def __init__(self) -> None:
            super().__init__()
            self.model = load(workload)
            self.count = 0

        def training_step(self, batch: dict[str, torch.Tensor], _: int) -> torch.Tensor:
            self.count += int(batch["attention_mask"].sum())
            loss: torch.Tensor = self.model(**batch).loss
            return loss

        def on_before_zero_grad(self, _: Any) -> None:
            if self.count:
                _tick(log, self.count)
                self.count = 0

        def configure_optimizers(self) -> Any:
            return torch.optim.AdamW(self.parameters(), lr=workload.learning_rate, weight_decay=0.01)

    made = pl.Trainer(
        max_epochs=1,
        accelerator="cpu",
        logger=False,
        enable_checkpointing=False,
        enable_progress_bar=False,
        enable_model_summary=False,
        accumulate_grad_batches=workload.window // workload.micro_batch,
        gradient_clip_val=1.0,
    )
    loader: Any = torch.utils.data.DataLoader(samples, batch_size=workload.micro_batch, collate_fn=padded)  # type: ignore[arg-type]
    made.fit(Module(), loader)


def _arguments(workload: Workload, folder: str) -> dict[str, Any]:
    return {
        "output_dir": folder,
        "per_device_train_batch_size": workload.micro_batch,
        "gradient_accumulation_steps": workload.window // workload.micro_batch,
        "num_train_epochs": 1,
        "learning_rate": workload.learning_rate,
        "lr_scheduler_type": "constant",
        "weight_decay": 0.01,
        "max_grad_norm": 1.0,
        "save_strategy": "no",
        "report_to": [],
        "disable_tqdm": True,
        "use_cpu": True,
        "logging_steps": 1,
        "remove_unused_columns": False,
    }


PEERS: dict[str, Callable[[Workload, RunLog], None]] = {
    "hand-written loop": hand_written,
    "hand-written loop, compiled": lambda workload, log: hand_written(workload, log, compiled=True),
    "HF Trainer as it comes": trainer,
    "HF Trainer by length": lambda workload, log: trainer(workload, log, train_sampling_strategy="group_by_length"),
    "HF Trainer by length, compiled": lambda workload, log: trainer(
        workload, log, train_sampling_strategy="group_by_length", torch_compile=True
    ),
    "TRL packed": packed,
    "TRL packed, compiled": lambda workload, log: packed(workload, log, torch_compile=True),
    "Lightning": lightning,
}


def main(name: str, path: str) -> None:
    workload = Workload.read(path)
    torch.set_num_threads(workload.threads)
    log = RunLog()
    PEERS[name](workload, log)
    sys.stdout.write("\n" + json.dumps(asdict(log)) + "\n")


def lines(text: str) -> Iterator[str]:
    """Lines of a contender's output, the last one first."""
    yield from reversed(text.strip().splitlines())


def parse_log(text: str) -> RunLog:
    """What a contender printed."""
    return RunLog(**json.loads(next(lines(text))))


if __name__ == "__main__":
    main(*sys.argv[1:])
