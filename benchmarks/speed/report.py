"""Training speed beside others' trainers.

One model, one set of samples in one order, one effective batch, the same threads; every contender is a process of its
own and runs at its own defaults otherwise. Timed from the end of the first updates to the end of the last one, so that
neither starting nor compiling counts. Utilisation: 6 × parameters × tokens (padding not counted) + attention, over the
rate of float32 products of 2048 × 2048, measured just before each contender's turn.
"""

import json
import statistics
import tempfile
from pathlib import Path

from benchmarks.measure import table
from benchmarks.speed.comparison import ContenderResult, compare, largest_difference, ranking
from benchmarks.speed.corpus import log_normal, real, texts, train_tokenizer
from benchmarks.speed.plots import bars
from benchmarks.speed.workload import Workload, make_llama

WIDTH, DEPTH = 512, 9
"""34.9 million parameters."""

THREADS = 2
UPDATES = 6
TURNS = 2
PLAIN = "HF Trainer as it comes"
HAND = "hand-written loop"
NAMES = [
    "Onyx",
    "Onyx, compiled",
    HAND,
    PLAIN,
    "HF Trainer by length",
    "HF Trainer by length, compiled",
    "TRL packed",
    "TRL packed, compiled",
    "Lightning",
]


def main() -> str:
    """The tables, as Markdown; pictures beside them."""
    with tempfile.TemporaryDirectory() as folder:
        return "\n\n".join([_full(Path(folder)), _adapters(Path(folder))])


def _full(folder: Path) -> str:
    lines = texts()
    tokenizer = train_tokenizer(lines)
    model = make_llama(folder / "llama", tokenizer, width=WIDTH, depth=DEPTH)
    sets = {"real text": real(tokenizer, lines, 32 * UPDATES), "log-normal lengths": log_normal(32 * UPDATES)}
    parts = []
    for name, samples in sets.items():
        names = NAMES if name == "real text" else ["Onyx, compiled", PLAIN, "HF Trainer by length"]
        workload = _workload(folder, model, samples)
        results = compare(workload, names, TURNS, folder)
        short = name.split()[0]
        bars(results, f"Full fine-tuning, 35 M parameters, {name}, 2 cores", f"speed-{short}")
        parts.append(f"### Full fine-tuning, {name}\n\n{ranking(results, PLAIN)}")
        parts.append(_utilisation(results, workload))
        if HAND in names:
            by_name = {each.name: each for each in results}
            apart = largest_difference(by_name["Onyx, compiled"], by_name[HAND])
            parts.append(f"Largest difference of the loss curves, Onyx compiled and the hand-written loop: {apart:.1e}")
    return "\n\n".join(parts)


def _adapters(folder: Path) -> str:
    """LoRA on SmolLM2-135M, where its wheel is installed."""
    from onyx.training.contract.model_names import SMOLLM2 as KNOWN
    from onyx.training.contract.model_names import smollm2_gguf
    from onyx.training.contract.prepared import Roots

    if smollm2_gguf() is None:
        return "SmolLM2-135M is not installed: LoRA was not measured."
    from tokenizers import Tokenizer

    from onyx.training.models.resolve import resolve

    model = resolve(next(iter(KNOWN)), Roots(home=folder / "home"))
    tokenizer = Tokenizer.from_file(str(model / "tokenizer.json"))
    workload = _workload(folder, model, real(tokenizer, texts(), 16 * UPDATES), window=16, method="lora")
    results = compare(workload, ["Onyx", PLAIN, "HF Trainer by length"], TURNS, folder)
    bars(results, "LoRA on SmolLM2-135M, real text, 2 cores", "speed-lora")
    return f"### LoRA on SmolLM2-135M, real text\n\n{ranking(results, PLAIN)}"


def _workload(
    folder: Path,
    model: Path,
    samples: list[list[int]],
    *,
    window: int = 32,
    method: str = "full",
    updates: int = UPDATES,
) -> Workload:
    data = folder / "samples.json"
    data.write_text(json.dumps(samples))
    return Workload(
        model=str(model),
        data=str(data),
        window=window,
        micro_batch=8,
        updates=updates,
        skipped=2,
        threads=THREADS,
        method=method,
    )


def _utilisation(results: list[ContenderResult], workload: Workload) -> str:
    samples = workload.samples()
    tokens = sum(map(len, samples))
    attention = sum(6 * DEPTH * WIDTH * len(each) ** 2 for each in samples) / tokens  # causal: half of all pairs
    work = 6 * _parameters(Path(workload.model)) + attention
    rows = []
    for each in results:
        parts = [work * rate / peak for rate, peak in zip(each.rates, each.peaks, strict=True)]
        rows.append([each.name, f"{statistics.median(parts):.0%}", f"{min(parts):.0%} … {max(parts):.0%}"])
    peaks = [peak / 1e9 for each in results for peak in each.peaks]
    return table(["contender", f"of the peak ({min(peaks):.0f} … {max(peaks):.0f} GFLOP/s)", "spread"], rows)


def _parameters(model: Path) -> int:
    from safetensors import safe_open

    with safe_open(model / "model.safetensors", "pt") as file:
        return sum(file.get_tensor(name).numel() for name in file.keys())  # noqa: SIM118 - not a dictionary
