"""What "auto" means: numbers from the number of samples, by rules that anybody can check. Micro-batches are planned.

docs/openai.md tells the same rules to users.
"""

import asyncio
import math
from pathlib import Path

EPOCHS = 3
FEWEST_SEEN, MOST_SEEN = 100, 25_000
"""Samples that a job should see in all: few samples are seen more often, many less."""

MOST_EPOCHS = 25
UPDATES_PER_EPOCH = 100
"""Wanted: the batch is the power of two nearest to a hundredth of the samples."""

SMALLEST_BATCH, LARGEST_BATCH = 4, 64
LEARNING_RATE, LORA_LEARNING_RATE = 5e-5, 2e-4
"""What a multiplier of 1 means, for all weights and for adapters."""

DPO_SHARE = 0.1
"""Preferences are learnt from at a tenth of it."""

SAMPLES_OF_A_TABLE = 1000
"""What a Parquet file is taken to have: nobody counts its rows before it is prepared."""

CHUNK = 1 << 20


def epochs_for(samples: int) -> int:
    if samples * EPOCHS < FEWEST_SEEN:
        return min(MOST_EPOCHS, math.ceil(FEWEST_SEEN / max(1, samples)))
    return max(1, min(EPOCHS, MOST_SEEN // samples))


def batch_for(samples: int) -> int:
    wanted = 1 << round(math.log2(max(1.0, samples / UPDATES_PER_EPOCH)))
    return max(1, min(samples, max(SMALLEST_BATCH, min(LARGEST_BATCH, wanted))))


def learning_rate_for(*, lora: bool, dpo: bool) -> float:
    """The rate that a multiplier multiplies."""
    return (LORA_LEARNING_RATE if lora else LEARNING_RATE) * (DPO_SHARE if dpo else 1.0)


async def samples_in(path: Path) -> int:
    """About how many samples a file has: its lines. What is wrong with them, preparing the job finds out."""
    return SAMPLES_OF_A_TABLE if path.suffix == ".parquet" else await asyncio.to_thread(_lines, path)


def _lines(path: Path) -> int:
    count, last = 0, b"\n"
    with path.open("rb") as file:
        while chunk := file.read(CHUNK):
            count += chunk.count(b"\n")
            last = chunk[-1:]
    return max(1, count + (last != b"\n"))
