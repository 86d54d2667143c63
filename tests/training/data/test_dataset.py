"""A data spec becomes a directory, or nothing if the data is bad."""

import json
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from onyx.training.contract.errors import DataError
from onyx.training.contract.spec import DataSpec
from onyx.training.data.dataset import content_key, held_out, histogram, prepare_data
from onyx.training.data.sources import evaluation_source, training_source
from onyx.training.data.text_lines import text_rows
from onyx.training.data.token_store import PreparedSamples
from onyx.training.models.tokenizer import load_tokenizer

CHAT = {"messages": [{"role": "user", "content": "hi"}, {"role": "assistant", "content": "yo"}]}


def prepared(tokenizer: Any, out: Path, *, seed: int = 0, **data: Any) -> PreparedSamples:
    return PreparedSamples.open(prepare_data(DataSpec(**data), tokenizer, out, seed=seed))


def refused(tokenizer: Any, out: Path, **data: Any) -> DataError:
    with pytest.raises(DataError) as error:
        prepared(tokenizer, out, **data)
    assert not [each for each in out.glob("*") if each.is_dir()]
    return error.value


def key(tokenizer: Any, *, seed: int = 0, **data: Any) -> str:
    spec = DataSpec(**data)
    return content_key(spec, training_source(spec, None, None), evaluation_source(spec, None), tokenizer, seed)


def test_formats_can_be_mixed(tokenizer: Any, tmp_path: Path) -> None:
    rows = [{"text": "abc"}, {"prompt": "ab", "completion": "c"}, CHAT]
    data = prepared(tokenizer, tmp_path, rows=rows)
    assert data.weights.tolist() == [3, 2, 3]
    assert (data.meta.samples, data.meta.label_tokens, data.meta.tokens) == (3, 8, int(data.lengths.sum()))
    assert data.meta.longest == data.lengths.max()
    assert data.meta.highest_token == tokenizer.eos_token_id


def test_the_same_data_is_prepared_once(tokenizer: Any, tmp_path: Path) -> None:
    first = prepared(tokenizer, tmp_path, texts=["a b c"]).directory
    before = (first / "meta.json").stat().st_mtime_ns
    assert prepared(tokenizer, tmp_path, texts=["a b c"]).directory == first
    assert (first / "meta.json").stat().st_mtime_ns == before


def test_a_file_and_its_rows_become_the_same_samples(tokenizer: Any, tmp_path: Path) -> None:
    rows = [{"text": f"sample {n} é"} for n in range(300)]
    (tmp_path / "a.jsonl").write_text("\n".join(json.dumps(row) for row in rows), encoding="utf-8")
    from_file = prepared(tokenizer, tmp_path / "d", path=str(tmp_path / "a.jsonl"))
    from_rows = prepared(tokenizer, tmp_path / "d", rows=rows)
    assert from_file.directory != from_rows.directory
    for name in ("tokens", "mask", "offsets", "weights", "train"):
        assert (from_file.directory / f"{name}.npy").read_bytes() == (from_rows.directory / f"{name}.npy").read_bytes()


def test_every_bad_line_is_found_and_no_directory_is_left_behind(tokenizer: Any, tmp_path: Path) -> None:
    lines = [
        b'{"text": "fine"}',
        b"",
        b"{oops",
        b'{"messages": [{"role": "user", "content": "hi"}]}',
        b'{"prompt": "a"}',
        b"\xff",
        b'{"text": "\\ud800"}',
        b'{"messages": [{"role": "assistant", "content": "a", "weight": 0}]}',
        b'{"text": "a rather long text, longer than all others of this file, and than its chats"}',
    ]
    (tmp_path / "a.jsonl").write_bytes(b"\n".join(lines))
    error = refused(tokenizer, tmp_path / "d", path=str(tmp_path / "a.jsonl"), max_length=60, overlong="refuse")
    assert [(each["line"], each["code"]) for each in error.findings] == [
        (3, "invalid_json"),
        (4, "example_missing_assistant_message"),
        (5, "missing_key"),
        (6, "invalid_utf8"),
        (7, "invalid_unicode"),
        (8, "no_label_tokens"),
        (9, "too_long"),
    ]
    assert error.message.startswith("7 of 8 lines of the training data cannot be used")


def test_some_bad_lines_may_be_left_out(tokenizer: Any, tmp_path: Path) -> None:
    rows = [{"text": "a"}] * 9 + [{"nothing": 1}]
    data = prepared(tokenizer, tmp_path, rows=rows, tolerated_bad_lines=0.1)
    assert (len(data), data.meta.bad_lines) == (9, 1)
    assert data.meta.findings[0]["line"] == 10
    assert refused(tokenizer, tmp_path / "d", rows=rows, tolerated_bad_lines=0.05).code == "invalid_training_file"


def test_findings_are_capped_and_counted(tokenizer: Any, tmp_path: Path) -> None:
    error = refused(tokenizer, tmp_path, rows=[{"x": 1}] * 1000)
    assert len(error.findings) == 100
    assert "1000 × missing_messages_list" in error.message


def test_truncated_samples_are_counted(tokenizer: Any, tmp_path: Path) -> None:
    data = prepared(tokenizer, tmp_path, texts=["abc", "abcdefgh", "abcdefghi"], max_length=6)
    assert data.meta.truncated == 2
    assert data.lengths.tolist() == [4, 6, 6]


@pytest.mark.parametrize("data", [{"texts": []}, {"rows": []}])
def test_data_without_samples_is_refused(tokenizer: Any, tmp_path: Path, data: Any) -> None:
    assert refused(tokenizer, tmp_path, **data).code == "empty_file"


def test_a_file_of_blank_lines_is_refused(tokenizer: Any, tmp_path: Path) -> None:
    (tmp_path / "a.jsonl").write_text("\n\n  \n")
    assert refused(tokenizer, tmp_path / "d", path=str(tmp_path / "a.jsonl")).code == "empty_file"


def test_evaluation_data_is_kept_apart(tokenizer: Any, tmp_path: Path) -> None:
    data = prepared(tokenizer, tmp_path, texts=["a", "b"], evaluation_rows=[{"text": "cc"}], evaluation_fraction=0.5)
    assert len(data) == 2
    assert data.evaluation is not None
    assert data.evaluation.lengths.tolist() == [3]
    assert (data.meta.samples, data.meta.evaluation_samples, data.meta.tokens) == (2, 1, 4)
    error = refused(tokenizer, tmp_path / "d", texts=["a"], evaluation_rows=[{"x": 1}])
    assert (error.code, error.findings[0]["part"]) == ("invalid_validation_file", "evaluation")


def test_a_fraction_is_held_out_for_evaluation(tokenizer: Any, tmp_path: Path) -> None:
    texts = ["x" * (n + 1) for n in range(40)]
    data = prepared(tokenizer, tmp_path, texts=texts, evaluation_fraction=0.25, seed=1)
    assert data.evaluation is not None
    assert len(data.evaluation) == 10
    both = np.concatenate([data.lengths, data.evaluation.lengths])
    assert sorted(both.tolist()) == list(range(2, 42))
    assert data.lengths.tolist() == sorted(data.lengths.tolist())  # their order is kept


def test_a_file_that_changes_while_it_is_read_is_refused(
    tokenizer: Any, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    path = tmp_path / "a.txt"
    path.write_text("one\n")

    def rows(at: Path) -> Any:
        path.write_text("two, and more\n")
        return text_rows(at)

    monkeypatch.setattr("onyx.training.data.sources.text_rows", rows)
    assert refused(tokenizer, tmp_path / "d", path=str(path)).code == "file_changed"


OPTIONS = st.fixed_dictionaries(
    {
        "texts": st.lists(st.sampled_from(["a", "b", "ab"]), min_size=1, max_size=3),
        "max_length": st.sampled_from([8, 9]),
        "overlong": st.sampled_from(["truncate", "refuse"]),
        "evaluation_fraction": st.sampled_from([0.0, 0.5]),
        "seed": st.sampled_from([0, 1]),
        "evaluation_rows": st.sampled_from([None, [{"text": "a"}], [{"text": "b"}]]),
    }
)


@settings(suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(one=OPTIONS, other=OPTIONS)
def test_the_key_changes_if_and_only_if_content_or_options_change(tokenizer: Any, one: Any, other: Any) -> None:
    def matters(options: dict[str, Any]) -> dict[str, Any]:
        fraction = options["evaluation_fraction"] if options["evaluation_rows"] is None else 0
        return {**options, "evaluation_fraction": fraction, "seed": options["seed"] if fraction else 0}

    assert (key(tokenizer, **one) == key(tokenizer, **other)) == (matters(one) == matters(other))


def test_the_key_depends_on_the_tokenizer_but_not_on_its_use(tokenizer: Any, tiny: Path) -> None:
    before = key(tokenizer, texts=["a"])
    tokenizer(["a", "bbb"], padding=True, truncation=True, max_length=2)
    assert key(tokenizer, texts=["a"]) == before == key(load_tokenizer(tiny), texts=["a"])
    tokenizer.chat_template += " "
    assert key(tokenizer, texts=["a"]) != before
    again = load_tokenizer(tiny)
    again.add_tokens(["new"])
    assert key(again, texts=["a"]) != before


def test_a_large_file_needs_little_memory(tokenizer: Any, tmp_path: Path) -> None:
    """The file has 64 MB. The process may grow by 24 MB."""
    path = tmp_path / "large.jsonl"
    with path.open("w") as file:
        for number in range(6400):
            file.write(json.dumps({"text": f"sample {number}", "ignored": "x" * 10_000}) + "\n")
    prepared(tokenizer, tmp_path / "d", texts=["warm up"] * 600)
    Path("/proc/self/clear_refs").write_text("5")  # resets VmHWM, the peak, to the current size
    before = memory("VmHWM")
    data = prepared(tokenizer, tmp_path / "d", path=str(path))
    assert len(data) == 6400
    assert memory("VmHWM") - before < 24_000  # kB


def memory(field: str) -> int:
    lines = Path("/proc/self/status").read_text().splitlines()
    return int(next(line for line in lines if line.startswith(field)).split()[1])


def test_the_histogram_counts_by_powers_of_two() -> None:
    assert histogram(np.array([1, 2, 3, 4, 5, 8, 9, 512])) == [(2, 2), (4, 2), (8, 2), (16, 1), (512, 1)]


def test_more_rows_than_the_operator_allows_are_refused_while_they_are_read(tokenizer: Any, tmp_path: Path) -> None:
    spec = DataSpec(texts=["one", "two", "three"], evaluation_rows=[{"text": "four"}])
    with pytest.raises(DataError, match="more than 3 rows") as error:
        prepare_data(spec, tokenizer, tmp_path, most_rows=3)
    assert error.value.code == "too_many_rows"
    assert prepare_data(spec, tokenizer, tmp_path, most_rows=4).is_dir()


@given(samples=st.integers(1, 500), fraction=st.floats(0, 0.999), seed=st.integers(0, 2**31 - 1))
def test_the_number_of_samples_held_out(samples: int, fraction: float, seed: int) -> None:
    chosen = held_out(samples, fraction, seed)
    assert len(chosen) == samples
    assert (chosen == held_out(samples, fraction, seed)).all()
    if fraction == 0 or samples == 1:
        assert not chosen.any()
    else:
        assert 1 <= chosen.sum() < samples
        assert abs(int(chosen.sum()) - samples * fraction) <= 1


def test_samples_held_out_depend_on_the_seed_and_are_spread() -> None:
    first, second = held_out(10_000, 0.1, 0), held_out(10_000, 0.1, 1)
    assert (first & second).sum() < 200
    halves = first.reshape(10, 1000).sum(1)
    assert halves.min() > 60
    assert halves.max() < 140


def test_the_samples_held_out_never_change() -> None:
    # A change would move samples between training and evaluation of existing jobs.
    assert np.flatnonzero(held_out(20, 0.2, 7)).tolist() == [0, 5, 12, 15]


def test_appending_moves_few_samples() -> None:
    before, after = held_out(1000, 0.1, 3), held_out(1010, 0.1, 3)
    assert (before != after[:1000]).sum() <= 4
