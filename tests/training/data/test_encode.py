"""Tokens and their masks, compared with a naive implementation."""

from typing import Any

import numpy as np
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from onyx.training.data import encode
from onyx.training.data.chat_messages import check_messages
from onyx.training.data.encode import Encoded, Encoder, span_mask
from onyx.training.data.findings import Finding
from onyx.training.data.render import Rendered, Renderer
from onyx.training.data.row_check import Chat, PromptCompletion, Text
from tests.training.data.chats import CHATS, CONTENTS, TEXTS, merging_tokenizer, naive_mask

SAME_FIXTURE = settings(suppress_health_check=[HealthCheck.function_scoped_fixture])
PLAIN = (
    "{% for m in messages %}{{ ('Bot: ' if m['role'] == 'assistant' else 'User: ') + m['content'] }}"
    "{% if m['role'] == 'assistant' %}{{ eos_token }}{% endif %}{{ '\n' }}{% endfor %}"
    "{% if add_generation_prompt %}{{ 'Bot: ' }}{% endif %}"
)


@pytest.fixture(scope="module")
def merging() -> Any:
    return merging_tokenizer(PLAIN)


def one(tokenizer: Any, sample: Any, max_length: int = 10_000, *, refuse: bool = False) -> Encoded | list[Finding]:
    rendered = Renderer(tokenizer).render(sample)
    assert isinstance(rendered, Rendered)
    ((_, encoded),) = Encoder(tokenizer, max_length, refuse_overlong=refuse).encode([(1, rendered)])
    return encoded


def good(found: Encoded | list[Finding]) -> Encoded:
    assert isinstance(found, Encoded), found
    return found


@SAME_FIXTURE
@given(chat=CHATS)
def test_a_chat_is_the_concatenation_of_its_pieces(tokenizer: Any, chat: Any) -> None:
    """A token of onyx/tiny is a byte or a special token, so the test can put the pieces together by hand."""
    tokens: list[int] = []
    mask: list[bool] = []
    for each in chat:
        trained = each["role"] == "assistant" and each.get("weight") != 0
        for piece, flag in (
            (f"<|im_start|>{each['role']}\n", False),
            (f"{each['content']}<|im_end|>", trained),
            ("\n", False),
        ):
            ids = tokenizer(piece)["input_ids"]
            tokens += ids
            mask += [flag] * len(ids)
    messages, flags, _ = check_messages(list(chat))
    found = one(tokenizer, Chat(messages, flags, None))
    if not any(flags):
        assert isinstance(found, list)
        assert found[0].code == "no_label_tokens"
        return
    assert good(found).tokens.tolist() == tokens
    assert good(found).mask.tolist() == mask
    assert good(found).weight == sum(mask[1:])


@SAME_FIXTURE
@given(chat=CHATS)
def test_tokens_across_the_edge_of_a_turn(merging: Any, chat: Any) -> None:
    text, trained = "", []
    for each in chat:
        flag = each["role"] == "assistant" and each.get("weight") != 0
        for piece, on in (
            ("Bot: " if each["role"] == "assistant" else "User: ", False),
            (each["content"], flag),
            ("</s>" if each["role"] == "assistant" else "", flag),
            ("\n", False),
        ):
            text += piece
            trained += [on] * len(piece)
    expected = merging(text, add_special_tokens=False, return_offsets_mapping=True)
    messages, flags, _ = check_messages(list(chat))
    found = one(merging, Chat(messages, flags, None))
    if any(flags):
        assert good(found).tokens.tolist() == expected["input_ids"]
        assert good(found).mask.tolist() == naive_mask(expected["offset_mapping"], trained)


@SAME_FIXTURE
@given(prompt=CONTENTS | st.just(""), completion=TEXTS)
def test_a_completion_is_trained_on_to_its_end(merging: Any, prompt: str, completion: str) -> None:
    found = one(merging, PromptCompletion(prompt, completion))
    expected = merging(prompt + completion, return_offsets_mapping=True)
    ends = [] if completion.endswith("</s>") else [merging.eos_token_id]
    assert good(found).tokens.tolist() == expected["input_ids"] + ends
    trained = [False] * len(prompt) + [True] * len(completion)
    assert good(found).mask.tolist() == naive_mask(expected["offset_mapping"], trained) + [True] * len(ends)


def test_a_text_is_trained_on_as_a_whole_and_ends_once(tokenizer: Any) -> None:
    plain = good(one(tokenizer, Text("ab")))
    assert plain.tokens.tolist() == [*tokenizer("ab")["input_ids"], tokenizer.eos_token_id]
    assert plain.mask.all()
    assert plain.weight == 2
    assert good(one(tokenizer, Text("ab<|im_end|>"))).tokens.tolist() == plain.tokens.tolist()


def test_a_tokenizer_without_an_end_token_adds_none(tokenizer: Any) -> None:
    tokenizer.eos_token = None
    assert len(good(one(tokenizer, Text("ab"))).tokens) == 2


def test_tokens_that_the_tokenizer_adds_are_not_trained_on(tokenizer: Any) -> None:
    from tokenizers.processors import TemplateProcessing

    start, end = tokenizer.bos_token, tokenizer.eos_token
    ids = [(start, tokenizer.bos_token_id), (end, tokenizer.eos_token_id)]
    tokenizer.backend_tokenizer.post_processor = TemplateProcessing(single=f"{start} $A {end}", special_tokens=ids)
    found = good(one(tokenizer, Text("ab")))
    assert found.tokens[0] == tokenizer.bos_token_id
    assert found.tokens.tolist().count(tokenizer.eos_token_id) == 1
    assert found.mask.tolist() == [False, True, True, True]
    messages = [{"role": "user", "content": "a"}, {"role": "assistant", "content": "b"}]
    chat = good(one(tokenizer, Chat(messages, [False, True], None)))
    assert (
        chat.tokens.tolist().count(tokenizer.bos_token_id) == 2
    )  # both from the template: the tokenizer adds no third


def test_too_long_is_cut_or_refused(tokenizer: Any) -> None:
    cut = good(one(tokenizer, Text("abcdef"), 4))
    assert cut.truncated
    assert cut.tokens.tolist() == tokenizer("abcd")["input_ids"]
    assert not good(one(tokenizer, Text("abc"), 4)).truncated
    refused = one(tokenizer, Text("abcdef"), 4, refuse=True)
    assert isinstance(refused, list)
    assert refused[0].code == "too_long"
    assert "7 tokens" in refused[0].message


def test_a_sample_without_labels_is_a_finding(tokenizer: Any) -> None:
    for sample, length in ((PromptCompletion("a long prompt", "x"), 5), (Text("a"), 1)):
        found = one(tokenizer, sample, length)
        assert isinstance(found, list)
        assert found[0].code == "no_label_tokens"
        assert "within max_length" in found[0].message


def test_order_is_kept_over_batches(tokenizer: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(encode, "BATCH_SAMPLES", 3)
    monkeypatch.setattr(encode, "BATCH_CHARACTERS", 40)
    problem = [Finding("x", "y")]
    given: list[Any] = [
        (n, problem if n % 4 == 0 else Rendered(f"{n}" * (n % 5 + 1), [(0, 1)], chat=n % 3 == 0)) for n in range(1, 40)
    ]
    found = list(Encoder(tokenizer, 100, refuse_overlong=False).encode(given))
    assert [number for number, _ in found] == list(range(1, 40))
    for (number, rendered), (_, encoded) in zip(given, found, strict=True):
        if isinstance(encoded, Encoded):
            text = tokenizer.decode(encoded.tokens, skip_special_tokens=True)
            assert text == rendered.text, number
        elif number % 4 == 0:
            assert encoded is problem


@given(
    offsets=st.lists(st.tuples(st.integers(0, 20), st.integers(0, 4)).map(lambda t: (t[0], t[0] + t[1])), max_size=10),
    spans=st.lists(st.tuples(st.integers(0, 25), st.integers(0, 25)).map(lambda t: (min(t), max(t))), max_size=3),
)
def test_the_mask_is_that_of_the_naive_implementation(
    offsets: list[tuple[int, int]], spans: list[tuple[int, int]]
) -> None:
    trained = [any(first <= at < last for first, last in spans) for at in range(30)]
    array = np.array(offsets, dtype=np.int64).reshape(-1, 2)
    assert span_mask(array, spans).tolist() == naive_mask(offsets, trained)
