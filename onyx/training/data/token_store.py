"""Prepared data: an immutable directory of arrays, memory-mapped. Readable without torch, datasets or pyarrow.

tokens.npy      int32, all samples one after the other; a pair is two: first the preferred answer, then the other
mask.npy        bool, for each token whether it is trained on
offsets.npy     int64, where each sample begins, and the end of the last
weights.npy     int32, label tokens of each sample after the causal shift
train.npy       int64, indices of the samples to train on
evaluation.npy  int64, indices of the samples to evaluate on; the answers of a pair are never separated
meta.json       Meta
"""

from pathlib import Path
from types import TracebackType
from typing import Any, Self

import numpy as np
from numpy.typing import NDArray

from onyx import fs
from onyx.training.contract.spec import Frozen
from onyx.training.data.encode import Encoded

FORMAT = 1
IGNORED = -100
"""The label of a token that is not trained on, as in torch and transformers."""


class Meta(Frozen):
    """meta.json: what is in the directory, and what was wrong with the data."""

    format: int = FORMAT
    key: str
    samples: int
    evaluation_samples: int
    tokens: int
    label_tokens: int
    longest: int
    lengths: list[tuple[int, int]]
    truncated: int
    bad_lines: int
    findings: list[dict[str, Any]]
    highest_token: int
    rows: int = 1
    """Stored samples per sample: 2 for pairs. All counts above are of pairs then."""


class Column:
    """A .npy file that grows. NumPy's header has room for a length that is known only at the end."""

    def __init__(self, path: Path, dtype: str) -> None:
        self._file = path.open("w+b")
        self._dtype = np.dtype(dtype)
        self._size = 0
        self._header()

    def extend(self, values: NDArray[Any]) -> None:
        """Add numbers at the end."""
        self._file.write(values.astype(self._dtype, copy=False).tobytes())
        self._size += len(values)

    def close(self) -> None:
        """Write the length and sync the file."""
        self._file.seek(0)
        self._header()
        fs.sync_file(self._file)
        self._file.close()

    def _header(self) -> None:
        description = {
            "descr": np.lib.format.dtype_to_descr(self._dtype),
            "fortran_order": False,
            "shape": (self._size,),
        }
        np.lib.format.write_array_header_1_0(self._file, description)


class Writer:
    """A context manager that appends samples one by one, and closes the files at its end."""

    def __init__(self, out: Path) -> None:
        self._out = out
        self._columns = {
            name: Column(out / f"{name}.npy", dtype)
            for name, dtype in (("tokens", "<i4"), ("mask", "|b1"), ("offsets", "<i8"), ("weights", "<i4"))
        }
        self._columns["offsets"].extend(np.zeros(1, dtype=np.int64))
        self.samples = 0
        self.tokens = 0
        self.highest_token = 0

    def __enter__(self) -> Self:
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, at: TracebackType | None) -> None:
        for column in self._columns.values():
            column.close()

    def add(self, sample: Encoded) -> None:
        """Append a sample."""
        self.samples += 1
        self.tokens += len(sample.tokens)
        self.highest_token = max(self.highest_token, int(sample.tokens.max()))
        self._columns["tokens"].extend(sample.tokens)
        self._columns["mask"].extend(sample.mask)
        self._columns["offsets"].extend(np.array([self.tokens]))
        self._columns["weights"].extend(np.array([sample.weight]))

    def split(self, evaluation: NDArray[np.bool_]) -> None:
        """Store which samples are for evaluation."""
        np.save(self._out / "train.npy", np.flatnonzero(~evaluation).astype("<i8"))
        np.save(self._out / "evaluation.npy", np.flatnonzero(evaluation).astype("<i8"))


def write_meta(out: Path, meta: Meta) -> None:
    """Write meta.json, the last file."""
    fs.write_text(out / "meta.json", meta.model_dump_json(indent=2) + "\n")


class PreparedSamples:
    """The samples of a prepared directory to train on. Its `evaluation` has those to evaluate on."""

    rows = 1

    def __init__(self, directory: Path, part: str = "train") -> None:
        self.directory = directory
        self._part = part
        self._tokens = np.load(directory / "tokens.npy", mmap_mode="r")
        self._mask = np.load(directory / "mask.npy", mmap_mode="r")
        offsets = np.load(directory / "offsets.npy")
        indices = np.load(directory / f"{part}.npy")
        self._starts = offsets[indices]
        self.lengths: NDArray[np.int64] = offsets[indices + 1] - self._starts
        """Tokens per sample."""

        self.tokens = self.lengths
        self.weights: NDArray[np.int64] = np.load(directory / "weights.npy")[indices].astype(np.int64)
        """Label tokens per sample, after the causal shift."""

    @classmethod
    def open(cls, directory: Path | str) -> Self:
        """The samples to train on."""
        meta = cls.read_meta(Path(directory))
        if meta.format != FORMAT:
            raise ValueError(f"the data has format {meta.format}, but this Onyx reads {FORMAT}: prepare it again")
        return cls(Path(directory))

    @staticmethod
    def read_meta(directory: Path) -> Meta:
        """What is in the directory."""
        return Meta.model_validate_json((directory / "meta.json").read_bytes())

    @property
    def meta(self) -> Meta:
        """What is in the directory, and what was wrong with the data."""
        return self.read_meta(self.directory)

    @property
    def evaluation(self) -> Self | None:
        """The samples to evaluate on, if there are any."""
        held = type(self)(self.directory, "evaluation")
        return held if len(held) else None

    def __len__(self) -> int:
        return len(self._starts)

    def sample(self, index: int) -> tuple[NDArray[np.int64], NDArray[np.int64]]:
        """Tokens, and labels that are not shifted: IGNORED for tokens that are not trained on."""
        start = int(self._starts[index])
        stop = start + int(self.lengths[index])
        tokens = self._tokens[start:stop].astype(np.int64)
        return tokens, np.where(self._mask[start:stop], tokens, IGNORED)


ROWS_PER_PAIR = 2


class PreferencePairs:
    """The pairs of a prepared directory."""

    rows = ROWS_PER_PAIR

    def __init__(self, answers: PreparedSamples) -> None:
        lengths = answers.lengths.reshape(-1, ROWS_PER_PAIR)
        self.answers = answers
        """The answers as samples: pair i has samples 2i (the preferred one) and 2i + 1."""

        self.lengths: NDArray[np.int64] = ROWS_PER_PAIR * lengths.max(axis=1)
        """Padded tokens of a pair in a micro-batch: both answers are always in the same one."""

        self.tokens: NDArray[np.int64] = lengths.sum(axis=1)
        self.weights: NDArray[np.int64] = np.ones(len(lengths), dtype=np.int64)
        """Each pair counts one."""

        self.reference: NDArray[np.float32] = np.full((len(lengths), ROWS_PER_PAIR), np.nan, dtype=np.float32)
        """The log-probabilities of both answers under the original model. NaN until they are computed."""

    @property
    def evaluation(self) -> "PreferencePairs | None":
        """The pairs to evaluate on, if there are any."""
        held = self.answers.evaluation
        return PreferencePairs(held) if held else None

    def __len__(self) -> int:
        return len(self.lengths)


def open_data(directory: Path) -> PreparedSamples | PreferencePairs:
    """The samples or pairs of a prepared directory."""
    samples = PreparedSamples.open(directory)
    return PreferencePairs(samples) if samples.meta.rows == ROWS_PER_PAIR else samples
