"""Texts become tokens, in batches, with a mask of the tokens that are trained on."""

from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

from onyx.training.data.findings import Finding
from onyx.training.data.preference_lines import identical_answers
from onyx.training.data.render import Rendered

BATCH_SAMPLES = 256
BATCH_CHARACTERS = 2**21
"""A batch is never larger than these, so memory does not grow with the data."""

NumberedText = tuple[int, Rendered | list[Finding]]
"""A line's number, counted from 1, with its text or what is wrong with it."""


@dataclass(frozen=True, slots=True)
class Encoded:
    """A sample as tokens."""

    tokens: NDArray[np.int32]
    mask: NDArray[np.bool_]
    """Which tokens are trained on. The first never counts, because nothing comes before it to predict it from."""

    truncated: bool

    @property
    def weight(self) -> int:
        """Label tokens, after the causal shift."""
        return int(self.mask[1:].sum())


class Encoder:
    """Encodes texts with one tokenizer."""

    def __init__(self, tokenizer: Any, max_length: int, *, refuse_overlong: bool) -> None:
        self._tokenizer = tokenizer
        self._max_length = max_length
        self._refuse = refuse_overlong

    def encode(self, numbered: Iterable[NumberedText]) -> Iterator[tuple[int, Encoded | list[Finding]]]:
        """The samples of the lines, in order."""
        for batch in _batches(numbered):
            encodings = self._tokenize([each for _, each in batch if isinstance(each, Rendered)])
            for number, each in batch:
                yield number, self._sample(each, next(encodings)) if isinstance(each, Rendered) else each

    def _tokenize(self, texts: Sequence[Rendered]) -> Iterator[Any]:
        """A chat's text already has its special tokens. For other texts the tokenizer adds its own."""
        groups = {
            chat: iter(self._encodings([each.text for each in texts if each.chat == chat], special=not chat))
            for chat in (True, False)
        }
        return (next(groups[each.chat]) for each in texts)

    def _encodings(self, texts: list[str], *, special: bool) -> list[Any]:
        if not texts:
            return []
        batch = self._tokenizer(texts, add_special_tokens=special, return_attention_mask=False, verbose=False)
        return list(batch.encodings)

    def _sample(self, rendered: Rendered, encoding: Any) -> Encoded | list[Finding]:
        tokens = np.array(encoding.ids, dtype=np.int32)
        mask = span_mask(np.array(encoding.offsets, dtype=np.int64).reshape(-1, 2), rendered.spans)
        if not rendered.chat:
            tokens, mask = self._with_end(tokens, mask)
        overlong = len(tokens) > self._max_length
        if overlong and self._refuse:
            return [
                Finding("too_long", f"the sample has {len(tokens)} tokens, more than max_length {self._max_length}")
            ]
        sample = Encoded(tokens[: self._max_length], mask[: self._max_length], overlong)
        if sample.weight == 0:
            cut = f" within max_length {self._max_length}" if overlong else ""
            return [Finding("no_label_tokens", f"the sample has no token to train on{cut}")]
        return sample

    def _with_end(
        self, tokens: NDArray[np.int32], mask: NDArray[np.bool_]
    ) -> tuple[NDArray[np.int32], NDArray[np.bool_]]:
        """Add the end token where it is missing. It is trained on, so that the model learns to stop."""
        end = self._tokenizer.eos_token_id
        if end is None:
            return tokens, mask
        if len(tokens) and tokens[-1] == end:
            mask[-1] = True
            return tokens, mask
        return np.append(tokens, np.int32(end)), np.append(mask, True)


def span_mask(offsets: NDArray[np.int64], spans: Sequence[tuple[int, int]]) -> NDArray[np.bool_]:
    """Which tokens have a character in one of the spans.

    A token across a span's edge is trained on: some tokenizers join a word to the space before it, and the word counts.
    """
    starts, ends = offsets[:, 0], offsets[:, 1]
    mask = np.zeros(len(offsets), dtype=np.bool_)
    for first, last in spans:
        mask |= (starts < last) & (ends > first) & (ends > starts)
    return mask


ANSWERS = ("preferred", "non-preferred")


def join_answers(
    encoded: Iterable[tuple[int, Encoded | list[Finding]]],
) -> Iterator[tuple[int, list[Encoded] | list[Finding]]]:
    """The two answers of each line, which `encoded` has one after the other, or all that is wrong with them."""
    lines = iter(encoded)
    for (number, one), (_, other) in zip(lines, lines, strict=True):
        if isinstance(one, Encoded) and isinstance(other, Encoded):
            same = np.array_equal(one.tokens, other.tokens)
            yield number, [identical_answers(" as tokens, within max_length")] if same else [one, other]
        elif not other:  # the line itself is wrong and has no answers
            yield number, list(one) if isinstance(one, list) else []
        else:
            named = zip(ANSWERS, (one, other), strict=True)
            yield number, [each.at(name) for name, answer in named if isinstance(answer, list) for each in answer]


def _batches(numbered: Iterable[NumberedText]) -> Iterator[list[NumberedText]]:
    batch: list[NumberedText] = []
    size = 0
    for each in numbered:
        batch.append(each)
        size += len(each[1].text) if isinstance(each[1], Rendered) else 1
        if len(batch) >= BATCH_SAMPLES or size >= BATCH_CHARACTERS:
            yield batch
            batch, size = [], 0
    if batch:
        yield batch
