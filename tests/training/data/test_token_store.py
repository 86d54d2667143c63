"""Prepared directories: samples and pairs are read as they were written."""

import json
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from onyx.training.contract.errors import DataError
from onyx.training.contract.spec import DataSpec
from onyx.training.data.dataset import prepare_data
from onyx.training.data.encode import Encoded
from onyx.training.data.token_store import (
    IGNORED,
    Column,
    Meta,
    PreferencePairs,
    PreparedSamples,
    Writer,
    open_data,
    write_meta,
)

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


def test_tokens_are_memory_mapped_and_samples_are_copies(tmp_path: Path) -> None:
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


ROWS = [{"prompt": f"say {n}: ", "chosen": "x" * (n + 1), "rejected": "y" * (9 - n)} for n in range(8)]


def prepared(tokenizer: Any, out: Path, **data: Any) -> PreferencePairs:
    pairs = open_data(prepare_data(DataSpec(**data), tokenizer, out, objective="dpo"))
    assert isinstance(pairs, PreferencePairs)
    return pairs


def refused(tokenizer: Any, out: Path, objective: Any = "dpo", **data: Any) -> DataError:
    with pytest.raises(DataError) as error:
        prepare_data(DataSpec(**data), tokenizer, out, objective=objective)
    return error.value


def text(tokenizer: Any, pairs: PreferencePairs, row: int) -> tuple[str, str]:
    """An answer with its prompt, and the part that is trained on."""
    tokens, labels = pairs.answers.sample(row)
    return tokenizer.decode(tokens), tokenizer.decode(labels[labels >= 0])


def test_both_answers_are_stored_together_and_only_they_are_trained_on(tokenizer: Any, tmp_path: Path) -> None:
    pairs = prepared(tokenizer, tmp_path, rows=ROWS)
    assert len(pairs) == 8
    assert text(tokenizer, pairs, 4) == ("say 2: xxx<|im_end|>", "xxx<|im_end|>")
    assert text(tokenizer, pairs, 5) == ("say 2: yyyyyyy<|im_end|>", "yyyyyyy<|im_end|>")
    assert pairs.weights.tolist() == [1] * 8
    assert pairs.lengths[2] == 2 * len("say 2: yyyyyyy_")
    assert pairs.tokens[2] == len("say 2: yyyyyyy_") + len("say 2: xxx_")
    meta = pairs.answers.meta
    assert (meta.samples, meta.rows, meta.longest) == (8, 2, int(pairs.lengths.max()) // 2)
    assert meta.tokens == pairs.tokens.sum()
    assert meta.label_tokens == pairs.answers.weights.sum()
    assert sum(count for _, count in meta.lengths) == 8


def test_chats_are_rendered_by_the_template(tokenizer: Any, tmp_path: Path) -> None:
    row = {
        "input": {"messages": [{"role": "user", "content": "hi"}]},
        "preferred_output": [{"role": "assistant", "content": "yo"}],
        "non_preferred_output": [{"role": "assistant", "content": "what?"}],
    }
    pairs = prepared(tokenizer, tmp_path, rows=[row])
    assert text(tokenizer, pairs, 0)[1] == "yo<|im_end|>"
    assert text(tokenizer, pairs, 1)[1] == "what?<|im_end|>"
    (tmp_path / "a.csv").write_text(
        "input,preferred_output,non_preferred_output\n"
        + ",".join('"' + json.dumps(value).replace('"', '""') + '"' for value in row.values())
        + "\n"
    )
    from_table = prepared(tokenizer, tmp_path, path=str(tmp_path / "a.csv"))
    assert text(tokenizer, from_table, 1) == text(tokenizer, pairs, 1)


def test_a_pair_is_held_out_as_a_whole(tokenizer: Any, tmp_path: Path) -> None:
    pairs = prepared(tokenizer, tmp_path, rows=ROWS, evaluation_fraction=0.25)
    held = pairs.evaluation
    assert held is not None
    assert (len(pairs), len(held)) == (6, 2)
    texts = {text(tokenizer, each, row)[0][:5] for each in (held,) for row in range(4)}
    assert len(texts) == 2
    given = prepared(tokenizer, tmp_path, rows=ROWS[:6], evaluation_rows=ROWS[6:])
    assert given.evaluation is not None
    assert text(tokenizer, given.evaluation, 0)[0] == "say 6: xxxxxxx<|im_end|>"


def test_every_bad_line_is_found(tokenizer: Any, tmp_path: Path) -> None:
    long = {"prompt": "a" * 30, "chosen": "b", "rejected": "c"}
    rows = [ROWS[0], {"text": "a"}, {"prompt": "a", "chosen": "b"}, long, {**ROWS[1], "rejected": "y" * 40}]
    error = refused(tokenizer, tmp_path, rows=rows, max_length=20, overlong="refuse")
    assert [(each["line"], each["code"]) for each in error.findings] == [
        (2, "wrong_objective"),
        (3, "missing_key"),
        (4, "too_long"),
        (4, "too_long"),
        (5, "too_long"),
    ]
    assert error.findings[-1]["message"].startswith("non-preferred: the sample has 48 tokens")
    assert "4 of 5 lines" in error.message


def test_answers_that_differ_only_beyond_max_length_are_identical(tokenizer: Any, tmp_path: Path) -> None:
    rows = [ROWS[0], {"prompt": "a", "chosen": "b" * 30 + "c", "rejected": "b" * 30 + "d"}]
    error = refused(tokenizer, tmp_path, rows=rows, max_length=20)
    assert [(each["line"], each["code"]) for each in error.findings] == [(2, "identical_answers")]
    pairs = prepared(tokenizer, tmp_path, rows=rows, max_length=20, tolerated_bad_lines=0.5)
    assert (len(pairs), pairs.answers.meta.bad_lines) == (1, 1)


def test_data_for_the_other_objective_is_refused_with_advice(tokenizer: Any, tmp_path: Path) -> None:
    error = refused(tokenizer, tmp_path, rows=ROWS, objective="sft")
    assert 'set objective to "dpo"' in error.message
    error = refused(tokenizer, tmp_path, texts=["a", "b"])
    assert 'set objective to "sft"' in error.message


def test_a_truncated_pair_is_counted_once(tokenizer: Any, tmp_path: Path) -> None:
    pairs = prepared(
        tokenizer, tmp_path, rows=[{"prompt": "a", "chosen": "b" * 30, "rejected": "c" * 30}], max_length=9
    )
    assert pairs.answers.meta.truncated == 1
    assert pairs.lengths.tolist() == [18]


def test_the_same_rows_are_stored_apart_for_each_objective(tokenizer: Any, tmp_path: Path) -> None:
    both: Any = [{"prompt": "a", "completion": "b", "chosen": "b", "rejected": "c"}]
    samples = open_data(prepare_data(DataSpec(rows=both), tokenizer, tmp_path))
    pairs = prepared(tokenizer, tmp_path, rows=both)
    assert isinstance(samples, PreparedSamples)
    assert samples.directory != pairs.answers.directory
    assert np.isnan(pairs.reference).all()
