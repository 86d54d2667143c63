import json
import math

from hypothesis import given
from hypothesis import strategies as st

from onyx.jobs.store import json_text
from onyx.training.contract.attempt import Failure

anything = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats() | st.text(st.characters()),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.text(), inner, max_size=3),
    max_leaves=8,
)


@given(anything)
def test_what_is_stored_is_ascii_finite_and_comes_back(value: object) -> None:
    text = json_text.dump(value)
    assert text.isascii()
    assert "\x00" not in text
    assert json_text.dump(json_text.load(text)) == text
    json.loads(text, parse_constant=lambda name: math.nan / 0)  # no NaN, no Infinity


def test_numbers_that_json_has_not_become_null() -> None:
    assert json_text.load(json_text.dump({"a": [math.nan, 1.0], "b": (math.inf,)})) == {"a": [None, 1.0], "b": [None]}


def test_a_message_loses_only_what_no_column_can_hold() -> None:
    assert json_text.clean("a\x00b\ud800é😀") == "a\ufffdb?é😀"


def test_models_are_stored_as_their_fields() -> None:
    failure = Failure(code="c", message="nul \x00")
    assert Failure.model_validate_json(json_text.dump(failure)) == failure
