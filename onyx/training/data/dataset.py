"""From a data spec to a prepared directory: read, check, render, encode, store."""

import hashlib
import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from onyx import fs
from onyx.training.contract.errors import DataError
from onyx.training.contract.spec import DataSpec, Objective
from onyx.training.data.encode import Encoded, Encoder, NumberedText, join_answers
from onyx.training.data.findings import Finding, Findings
from onyx.training.data.preference_lines import Preference, check_line
from onyx.training.data.render import Renderer
from onyx.training.data.sources import Source, evaluation_source, training_source
from onyx.training.data.token_store import FORMAT, ROWS_PER_PAIR, Meta, Writer, write_meta


def held_out(samples: int, fraction: float, seed: int) -> NDArray[np.bool_]:
    """A mask of the samples for evaluation: as many as the fraction says, rounded, at least one for each purpose.

    The samples with the smallest hashes of (seed, number) are chosen, so appended data moves few of the others.
    """
    count = min(max(1, round(samples * fraction)), samples - 1) if fraction > 0 else 0
    chosen = np.zeros(samples, dtype=np.bool_)
    if count > 0:
        chosen[np.argsort(_hashes(samples, seed), kind="stable")[:count]] = True
    return chosen


def _hashes(samples: int, seed: int) -> NDArray[np.uint64]:
    """splitmix64, which is the same on every host and with every version of NumPy."""
    with np.errstate(over="ignore"):
        value = np.arange(1, samples + 1, dtype=np.uint64) * np.uint64(0x9E3779B97F4A7C15)
        value += np.uint64(seed) * np.uint64(0xD1B54A32D192ED03)
        value = (value ^ (value >> np.uint64(30))) * np.uint64(0xBF58476D1CE4E5B9)
        value = (value ^ (value >> np.uint64(27))) * np.uint64(0x94D049BB133111EB)
    return value ^ (value >> np.uint64(31))


def prepare_data(
    spec: DataSpec,
    tokenizer: Any,
    out: Path,
    *,
    objective: Objective = "sft",
    seed: int = 0,
    roots: tuple[Path, ...] | None = None,
    hub_token: str | None = None,
    most_rows: int | None = None,
) -> Path:
    """The directory under `out` with this data for this tokenizer. Made if it does not exist.

    DataError, with the bad lines, when the data cannot be used.
    """
    training = training_source(spec, roots, hub_token)
    evaluation = evaluation_source(spec, roots)
    key = content_key(spec, training, evaluation, tokenizer, seed, objective)
    job = _Preparation(spec, tokenizer, training, evaluation, seed, key, objective, most_rows)
    return fs.make_once(out / key, job.write)


def refuse_too_many_rows(rows: int, most: int | None) -> None:
    """DataError when there are more than the operator allows."""
    if most is not None and rows > most:
        raise DataError(
            "too_many_rows", f"the data has more than {most:,} rows, the limit of this server: give fewer", param="data"
        )


def content_key(
    spec: DataSpec,
    training: Source,
    evaluation: Source | None,
    tokenizer: Any,
    seed: int,
    objective: Objective = "sft",
) -> str:
    """A hash of everything that decides the prepared data: content, tokenizer and options."""
    fraction = spec.evaluation_fraction if evaluation is None else 0.0
    options = {
        "format": FORMAT,
        "training": training.fingerprint,
        "evaluation": evaluation.fingerprint if evaluation else None,
        "fraction": fraction,
        "seed": seed if fraction else None,
        "max_length": spec.max_length,
        "overlong": spec.overlong,
        "tolerated_bad_lines": spec.tolerated_bad_lines,
        "tokenizer": tokenizer_fingerprint(tokenizer),
        "objective": objective,
    }
    return hashlib.sha256(json.dumps(options, sort_keys=True).encode()).hexdigest()[:40]


def tokenizer_fingerprint(tokenizer: Any) -> str:
    """A hash of what decides tokens: vocabulary, rules, special tokens and chat template."""
    backend = tokenizer.backend_tokenizer
    # The backend also holds the last caller's padding and truncation, which decide nothing here.
    backend.no_truncation()
    backend.no_padding()
    decides = [
        backend.to_str(),
        json.dumps(tokenizer.special_tokens_map, sort_keys=True, default=str),
        json.dumps(tokenizer.chat_template, sort_keys=True),
    ]
    return hashlib.sha256("\0".join(decides).encode()).hexdigest()


class _Preparation:
    """One pass over the data, into one directory."""

    def __init__(
        self,
        spec: DataSpec,
        tokenizer: Any,
        training: Source,
        evaluation: Source | None,
        seed: int,
        key: str,
        objective: Objective,
        most_rows: int | None,
    ) -> None:
        self._spec = spec
        self._objective: Objective = objective
        self._rows = ROWS_PER_PAIR if objective == "dpo" else 1
        self._training = training
        self._evaluation = evaluation
        self._seed = seed
        self._key = key
        self._renderer = Renderer(tokenizer)
        self._encoder = Encoder(tokenizer, spec.max_length, refuse_overlong=spec.overlong == "refuse")
        self._truncated = 0
        self._most_rows = most_rows
        self._seen = 0

    def write(self, out: Path) -> None:
        """Fill the directory."""
        found = [Findings("training")]
        with Writer(out) as writer:
            self._add(self._training, found[0], writer)
            evaluation = held_out(writer.samples // self._rows, self._spec.evaluation_fraction, self._seed)
            if self._evaluation is not None:
                given = writer.samples // self._rows
                found.append(Findings("evaluation"))
                self._add(self._evaluation, found[1], writer)
                evaluation = np.arange(writer.samples // self._rows) >= given
            writer.split(np.repeat(evaluation, self._rows))
        write_meta(out, self._meta(out, evaluation, found, writer.highest_token))

    def _add(self, source: Source, found: Findings, writer: Writer) -> None:
        for number, rows in self._encoded(source, found):
            good = [each for each in rows if isinstance(each, Encoded)]
            if not good:
                found.add(number, [each for each in rows if isinstance(each, Finding)])
                continue
            self._truncated += any(each.truncated for each in good)
            for each in good:
                writer.add(each)
        if not source.unchanged():
            raise DataError("file_changed", "the file changed while it was read: start the job again")
        found.raise_if_unusable(self._spec.tolerated_bad_lines)

    def _encoded(self, source: Source, found: Findings) -> Iterator[tuple[int, list[Encoded] | list[Finding]]]:
        """The rows of each line, or what is wrong with the line."""
        encoded = self._encoder.encode(self._rendered(source, found))
        if self._objective == "dpo":
            return join_answers(encoded)
        return ((number, [each] if isinstance(each, Encoded) else each) for number, each in encoded)

    def _rendered(self, source: Source, found: Findings) -> Iterator[NumberedText]:
        """A text for each row of each line. A bad line has its findings, then empty lists up to its number of rows."""
        for number, row in source.rows():
            found.lines += 1
            self._seen += 1
            refuse_too_many_rows(self._seen, self._most_rows)
            sample = check_line(row, self._objective)
            if isinstance(sample, list):
                yield number, sample
                yield from [(number, [])] * (self._rows - 1)
                continue
            for each in (sample.preferred, sample.rejected) if isinstance(sample, Preference) else (sample,):
                rendered = self._renderer.render(each)
                yield number, [rendered] if isinstance(rendered, Finding) else rendered

    def _meta(self, out: Path, evaluation: NDArray[np.bool_], found: list[Findings], highest: int) -> Meta:
        lengths = np.diff(np.load(out / "offsets.npy")).reshape(-1, self._rows)
        weights = np.load(out / "weights.npy").reshape(-1, self._rows)
        return Meta(
            key=self._key,
            samples=int((~evaluation).sum()),
            evaluation_samples=int(evaluation.sum()),
            tokens=int(lengths[~evaluation].sum()),
            label_tokens=int(weights[~evaluation].sum()),
            longest=int(lengths.max()),
            lengths=histogram(lengths[~evaluation].max(axis=1)),
            truncated=self._truncated,
            bad_lines=sum(each.bad for each in found),
            findings=[each for part in found for each in part.kept],
            highest_token=highest,
            rows=self._rows,
        )


def histogram(lengths: NDArray[np.int64]) -> list[tuple[int, int]]:
    """Pairs of a limit (2, 4, 8 …) and the samples with at most so many tokens, but more than half of it."""
    powers = np.ceil(np.log2(np.maximum(lengths, 2))).astype(np.int64)
    values, counts = np.unique(powers, return_counts=True)
    return [(int(2**value), int(count)) for value, count in zip(values, counts, strict=True)]
