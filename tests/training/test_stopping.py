from hypothesis import given
from hypothesis import strategies as st

from onyx.training.stopping import UNFINISHED, Visible


def shown(text: str, *stop: str) -> tuple[list[str], Visible]:
    """What is shown of a text that grows by a character at a time."""
    visible = Visible(stop)
    pieces = []
    for end in range(1, len(text) + 1):
        pieces.append(visible.more(text[:end]))
        if visible.stopped:
            return pieces, visible
    return [*pieces, visible.more(text, last=True)], visible


def test_all_of_a_text_without_stop_strings() -> None:
    assert shown("hello")[0] == ["h", "e", "l", "l", "o", ""]


def test_ends_before_the_first_stop_string_and_shows_none_of_it() -> None:
    pieces, visible = shown("one two END three", "END", "three")
    assert "".join(pieces) == "one two "
    assert visible.stopped


def test_what_only_began_like_a_stop_string_is_shown_later() -> None:
    pieces, visible = shown("a ENough b", "END")
    assert pieces[:5] == ["a", " ", "", "", "ENo"]
    assert "".join(pieces) == "a ENough b"
    assert not visible.stopped


def test_the_held_back_beginning_is_shown_at_the_end() -> None:
    pieces, visible = shown("abcEN", "END")
    assert pieces == ["a", "b", "c", "", "", "EN"]
    assert not visible.stopped


def test_half_a_character_waits_for_its_other_half() -> None:
    visible = Visible(())
    assert visible.more("a" + UNFINISHED) == "a"
    assert visible.more("aé") == "é"
    assert visible.more("aé" + UNFINISHED, last=True) == UNFINISHED


@given(st.text("ab", max_size=30), st.lists(st.text("ab", min_size=1, max_size=4), max_size=3))
def test_as_if_one_had_cut_the_whole_text(text: str, stop: list[str]) -> None:
    pieces, visible = shown(text, *stop)
    # A text that grows by one character ends at the stop string that is complete first.
    found = [(place + len(each), place) for each in stop if (place := text.find(each)) >= 0]
    assert visible.stopped == bool(found)
    assert "".join(pieces) == (text[: min(found)[1]] if found else text)
