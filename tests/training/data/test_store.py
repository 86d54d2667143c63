"""What goes into a prepared directory comes out of it."""

import json
from pathlib import Path

import numpy as np
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from onyx.training.data.encode import Encoded
from onyx.training.data.store import IGNORED, Column, Meta, PreparedSamples, Writer, write_meta

SAMPLES = st.lists(
    st.lists(st.tuples(st.integers(0, 2**31 - 1), st.booleans()), min_size=1, max_size=20), min_size=1, max_size=8
)


def encoded(pairs: list[tuple[int, bool]]) -> Encoded:
    tokens, mask = zip(*pairs, strict=True)
    return Encoded(np.array(tokens, dtype=np.int32), np.array(mask, dtype=np.bool_), False)


def write(out: Path, samples: list[list[tuple[int, bool]]], evaluation: list[bool]) -> None:
    out.mkdir()
    with Writer(out) as writer:
        for each in samples:
            writer.add(encoded(each))
        writer.split(np.array(evaluation))
    meta = Meta(
        key="k", samples=1, evaluation_samples=0, tokens=1, label_tokens=1, longest=1, lengths=[], truncated=0,
        bad_lines=0, findings=[], highest_token=writer.highest_token,
    )  # fmt: skip
    write_meta(out, meta)


@settings(suppress_health_check=[HealthCheck.function_scoped_fixture], max_examples=50)
@given(samples=SAMPLES, data=st.data())
def test_round_trip(tmp_path: Path, samples: list[list[tuple[int, bool]]], data: st.DataObject) -> None:
    out = tmp_path / str(len(list(tmp_path.iterdir())))
    held = data.draw(st.lists(st.booleans(), min_size=len(samples), max_size=len(samples)))
    write(out, samples, held)
    train = PreparedSamples.open(out)
    for prepared, wanted in ((train, False), (train.evaluation, True)):
        kept = [each for each, flag in zip(samples, held, strict=True) if flag == wanted]
        if prepared is None:
            assert not kept
            continue
        assert len(prepared) == len(kept)
        assert prepared.lengths.tolist() == [len(each) for each in kept]
        assert prepared.weights.tolist() == [sum(flag for _, flag in each[1:]) for each in kept]
        for index, each in enumerate(kept):
            tokens, labels = prepared.sample(index)
            assert tokens.dtype == labels.dtype == np.int64
            assert tokens.tolist() == [token for token, _ in each]
            assert labels.tolist() == [token if flag else IGNORED for token, flag in each]


def test_tokens_are_mapped_and_samples_are_the_callers_own(tmp_path: Path) -> None:
    write(tmp_path / "a", [[(1, True), (2, True)]], [False])
    prepared = PreparedSamples.open(str(tmp_path / "a"))
    assert isinstance(prepared._tokens, np.memmap)
    tokens, _ = prepared.sample(0)
    tokens[:] = 9
    assert prepared.sample(0)[0].tolist() == [1, 2]
    assert prepared.evaluation is None
    assert prepared.meta.highest_token == 2


def test_a_column_is_a_plain_npy_file_of_any_length(tmp_path: Path) -> None:
    for size in (0, 1, 12_345):
        column = Column(tmp_path / "c.npy", "<i4")
        for part in np.array_split(np.arange(size), 3):
            column.extend(part)
        column.close()
        assert np.load(tmp_path / "c.npy").tolist() == list(range(size))


def test_another_format_is_not_read(tmp_path: Path) -> None:
    write(tmp_path / "a", [[(1, True), (2, True)]], [False])
    meta = json.loads((tmp_path / "a" / "meta.json").read_text())
    (tmp_path / "a" / "meta.json").write_text(json.dumps({**meta, "format": 99}))
    with pytest.raises(ValueError, match="format 99"):
        PreparedSamples.open(tmp_path / "a")
