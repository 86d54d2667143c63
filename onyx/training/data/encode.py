"""From texts to tokens, in batches, with a mask of what is trained on."""

from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

from onyx.training.data.findings import Finding
from onyx.training.data.render import Rendered

BATCH_SAMPLES = 256
BATCH_CHARACTERS = 2**21
"""A batch is never larger than these: memory does not follow the data's size."""

Numbered = tuple[int, Rendered | list[Finding]]


@dataclass(frozen=True, slots=True)
class Encoded:
    """A sample as tokens."""

    tokens: NDArray[np.int32]
    mask: NDArray[np.bool_]
    """Which of them are trained on. The first never counts: nothing predicts it."""

    truncated: bool

    @property
    def weight(self) -> int:
        """Label tokens that count, after the causal shift."""
        return int(self.mask[1:].sum())


class Encoder:
    """Encodes for one tokenizer."""

    def __init__(self, tokenizer: Any, max_length: int, *, refuse_overlong: bool) -> None:
        self._tokenizer = tokenizer
        self._max_length = max_length
        self._refuse = refuse_overlong

    def encode(self, numbered: Iterable[Numbered]) -> Iterator[tuple[int, Encoded | list[Finding]]]:
        """Each line's sample, in order."""
        for batch in _batches(numbered):
            encodings = self._tokenize([each for _, each in batch if isinstance(each, Rendered)])
            for number, each in batch:
                yield number, self._sample(each, next(encodings)) if isinstance(each, Rendered) else each

    def _tokenize(self, texts: Sequence[Rendered]) -> Iterator[Any]:
        """Chats bring their special tokens with them, other texts get the tokenizer's."""
        groups = {
            chat: iter(self._encodings([each.text for each in texts if each.chat == chat], special=not chat))
            for chat in (True, False)
        }
        return (next(groups[each.chat]) for each in texts)

    def _encodings(self, texts: list[str], *, special: bool) -> list[Any]:
        if not texts:
            return []
        found = self._tokenizer(texts, add_special_tokens=special, return_attention_mask=False, verbose=False)
        return list(found.encodings)

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
        """A text ends with the end token, once, and learns to."""
        end = self._tokenizer.eos_token_id
        if end is None:
            return tokens, mask
        if len(tokens) and tokens[-1] == end:
            mask[-1] = True
            return tokens, mask
        return np.append(tokens, np.int32(end)), np.append(mask, True)


def span_mask(offsets: NDArray[np.int64], spans: Sequence[tuple[int, int]]) -> NDArray[np.bool_]:
    """Which tokens have a character in one of the spans.

    A token across a span's edge is trained on: else a word would be lost that the tokenizer joined to a space before.
    """
    starts, ends = offsets[:, 0], offsets[:, 1]
    mask = np.zeros(len(offsets), dtype=np.bool_)
    for first, last in spans:
        mask |= (starts < last) & (ends > first) & (ends > starts)
    return mask


def _batches(numbered: Iterable[Numbered]) -> Iterator[list[Numbered]]:
    batch: list[Numbered] = []
    size = 0
    for each in numbered:
        batch.append(each)
        size += len(each[1].text) if isinstance(each[1], Rendered) else 1
        if len(batch) >= BATCH_SAMPLES or size >= BATCH_CHARACTERS:
            yield batch
            batch, size = [], 0
    if batch:
        yield batch
