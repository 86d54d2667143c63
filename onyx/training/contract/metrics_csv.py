"""metrics.csv: a row for every update of the job, over all attempts."""

import csv
import io
import math
from dataclasses import asdict, dataclass, fields
from pathlib import Path
from typing import TextIO

from onyx import fs


@dataclass(frozen=True, kw_only=True)
class Row:
    """One update."""

    update: int
    epoch: float
    """Epochs that are done after it, as a fraction."""

    samples: int
    trained_tokens: int
    loss: float
    """Mean over the window's label tokens, or its pairs."""

    gradient_norm: float
    learning_rate: float
    tokens_per_second: float


@dataclass(frozen=True, kw_only=True)
class TokenRow(Row):
    """One update of a supervised job."""

    token_accuracy: float
    """Fraction of the window's label tokens that the model predicted before the update."""


@dataclass(frozen=True, kw_only=True)
class PreferenceRow(Row):
    """One update of a dpo job."""

    reward_margin: float
    """Mean over the window's pairs, before the update."""

    preference_accuracy: float
    """Fraction of the window's pairs with a positive reward margin before the update."""


class Metrics:
    """Appends rows. Without a path (every rank but the first) it writes nothing."""

    def __init__(self, path: Path | None, after: int, kind: type[Row] = Row) -> None:
        """The attempt resumes from update `after`: later rows are dropped, because it trains those updates again."""
        self._file = None
        self._names = [field.name for field in fields(kind)]
        if path is None:
            return
        kept = [row for row in read_rows(path) if int(row["update"]) <= after]
        text = io.StringIO(newline="")
        self._writer(text).writeheader()
        self._writer(text).writerows(kept)
        fs.write_text(path, text.getvalue())
        self._file = path.open("a", newline="", buffering=1)

    def add(self, row: Row) -> None:
        if self._file is not None:
            self._writer(self._file).writerow(asdict(row))

    def sync(self) -> None:
        """Wait until the rows are on the disk: a checkpoint must not be newer than they are."""
        if self._file is not None:
            fs.sync_file(self._file)

    def close(self) -> None:
        if self._file is not None:
            self._file.close()

    def _writer(self, file: TextIO) -> "csv.DictWriter[str]":
        return csv.DictWriter(file, self._names, lineterminator="\n")


def read_rows(path: Path) -> list[dict[str, str]]:
    """The complete rows of a file. An incomplete last line is ignored."""
    if not path.exists():
        return []
    text = path.read_text()
    whole = text[: text.rfind("\n") + 1]
    return [row for row in csv.DictReader(whole.splitlines()) if None not in row.values()]


def curve(rows: list[dict[str, str]], points: int = 20) -> list[tuple[int, float]]:
    """(update, loss) of about `points` rows, the first and the last among them."""
    if not rows:
        return []
    step = max(1, math.ceil((len(rows) - 1) / (points - 1)))
    chosen = rows[::step] if (len(rows) - 1) % step == 0 else [*rows[::step], rows[-1]]
    return [(int(row["update"]), float(row["loss"])) for row in chosen]
