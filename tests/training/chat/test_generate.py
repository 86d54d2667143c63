from pathlib import Path
from typing import Any

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from onyx.training.chat.generate import UNFINISHED, AnswerCancelledError, ChatModel, VisibleText
from onyx.training.contract.chat_protocol import GenerateRequest, GenerationEnd
from onyx.training.contract.errors import UserError
from onyx.training.models.load import load_model
from onyx.training.models.tiny import make_tiny
from onyx.training.models.tokenizer import DEFAULT_CHAT_TEMPLATE, load_tokenizer

MESSAGES = [{"role": "developer", "content": "Be brief."}, {"role": "user", "content": "What is a window?"}]
PROMPT = (
    "<|im_start|>system\nBe brief.<|im_end|>\n<|im_start|>user\nWhat is a window?<|im_end|>\n<|im_start|>assistant\n"
)


@pytest.fixture(scope="module")
def directory(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return make_tiny(tmp_path_factory.mktemp("models"))


@pytest.fixture
def chat_model(directory: Path) -> ChatModel:
    return ChatModel(load_model(directory).eval(), load_tokenizer(directory))


def ask(chat_model: ChatModel, **more: Any) -> tuple[list[str], GenerationEnd]:
    pieces: list[str] = []
    request = GenerateRequest.model_validate({"messages": MESSAGES, "max_tokens": 40} | more)
    end = chat_model.answer(request, pieces.append, lambda: True)
    return pieces, end


def generated(directory: Path, **options: Any) -> str:
    """What transformers alone generates for the prompt."""
    model: Any = load_model(directory).eval()
    tokenizer = load_tokenizer(directory)
    prompt = torch.tensor([tokenizer(PROMPT, add_special_tokens=False)["input_ids"]])
    made = model.generate(prompt, attention_mask=torch.ones_like(prompt), max_new_tokens=40, use_cache=True, **options)
    text: str = tokenizer.decode(made[0, prompt.shape[1] :], skip_special_tokens=True)
    return text


def test_greedy_is_what_transformers_generates(chat_model: ChatModel, directory: Path) -> None:
    pieces, end = ask(chat_model, temperature=0)
    assert "".join(pieces) == generated(directory, do_sample=False)
    assert "".join(ask(chat_model, temperature=0, seed=3)[0]) == "".join(pieces)
    assert end == GenerationEnd(
        reason="length", prompt_tokens=len(chat_model.tokenizer(PROMPT)["input_ids"]), completion_tokens=40
    )


def test_sampling_is_what_transformers_generates_from_the_seed(chat_model: ChatModel, directory: Path) -> None:
    pieces, _ = ask(chat_model, temperature=0.7, top_p=0.9, seed=11)
    torch.manual_seed(11)
    assert "".join(pieces) == generated(directory, do_sample=True, temperature=0.7, top_p=0.9, top_k=0)
    assert "".join(ask(chat_model, temperature=0.7, top_p=0.9, seed=12)[0]) != "".join(pieces)


def test_without_a_seed_answers_differ(chat_model: ChatModel) -> None:
    assert ask(chat_model)[0] != ask(chat_model)[0]


def test_pieces_are_whole_characters_and_add_up(chat_model: ChatModel) -> None:
    """Most random bytes are not characters, so many pieces are held back, and none is lost."""
    pieces, end = ask(chat_model, seed=1, max_tokens=200)
    sent = [piece for piece in pieces if piece]
    assert 20 < len(sent) < end.completion_tokens
    assert all(piece.rstrip(UNFINISHED) == piece for piece in sent[:-1])
    assert any(UNFINISHED in piece for piece in sent)


def test_the_models_own_generation_config_is_ignored(chat_model: ChatModel, directory: Path) -> None:
    model: Any = load_model(directory).eval()
    model.generation_config.repetition_penalty = 50.0
    model.generation_config.temperature = 0.01
    assert ask(ChatModel(model, chat_model.tokenizer), seed=5)[0] == ask(chat_model, seed=5)[0]


def test_a_stop_string_ends_the_answer(chat_model: ChatModel) -> None:
    text = "".join(ask(chat_model, seed=1, max_tokens=80)[0])
    stop = text[40:43]
    pieces, end = ask(chat_model, seed=1, max_tokens=80, stop=[stop])
    assert "".join(pieces) == text[: text.index(stop)]
    assert end.reason == "stop"
    assert end.completion_tokens < 80


def test_the_end_of_a_turn_ends_the_answer_and_is_not_shown(chat_model: ChatModel) -> None:
    first = ask(chat_model, temperature=0, max_tokens=1)[0]
    tokenizer = chat_model.tokenizer
    tokenizer.eos_token = tokenizer.tokenize("".join(first))[0]
    pieces, end = ask(ChatModel(chat_model.model, tokenizer), temperature=0)
    assert "".join(pieces) == ""
    assert (end.reason, end.completion_tokens) == ("stop", 1)


def test_a_model_without_template_gets_the_documented_one(chat_model: ChatModel) -> None:
    templated = ask(chat_model, temperature=0)[1].prompt_tokens
    chat_model.tokenizer.chat_template = DEFAULT_CHAT_TEMPLATE
    assert 0 < ask(chat_model, temperature=0)[1].prompt_tokens != templated


def test_a_cancelled_answer_ends_at_the_next_token(chat_model: ChatModel) -> None:
    left = iter([True, True, False])
    pieces: list[str] = []
    with pytest.raises(AnswerCancelledError):
        chat_model.answer(GenerateRequest(messages=MESSAGES, max_tokens=50), pieces.append, lambda: next(left))
    assert len(pieces) == 2


def test_more_than_the_context(chat_model: ChatModel) -> None:
    with pytest.raises(UserError, match="context is 2048 tokens") as refused:
        ask(chat_model, messages=[{"role": "user", "content": "x" * 2048}])
    assert (refused.value.code, refused.value.param) == ("context_length_exceeded", "messages")
    long = [{"role": "user", "content": "x" * 2000}]
    with pytest.raises(UserError, match="the request is for 40 more"):
        ask(chat_model, messages=long, exact_tokens=True)
    assert ask(chat_model, messages=long, temperature=0)[1].completion_tokens < 40  # as many as fit into the context


def test_a_template_that_refuses(chat_model: ChatModel) -> None:
    chat_model.tokenizer.chat_template = "{{ raise_exception('only one user') }}"
    with pytest.raises(UserError, match="refuses these messages: only one user"):
        ask(chat_model)


def shown(text: str, *stop: str) -> tuple[list[str], VisibleText]:
    """What is sent of a text that grows by one character at a time."""
    visible = VisibleText(stop)
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


def test_text_that_only_begins_like_a_stop_string_is_shown_later() -> None:
    pieces, visible = shown("a ENough b", "END")
    assert pieces[:5] == ["a", " ", "", "", "ENo"]
    assert "".join(pieces) == "a ENough b"
    assert not visible.stopped


def test_the_held_back_beginning_is_shown_at_the_end() -> None:
    pieces, visible = shown("abcEN", "END")
    assert pieces == ["a", "b", "c", "", "", "EN"]
    assert not visible.stopped


def test_half_a_character_waits_for_its_other_half() -> None:
    visible = VisibleText(())
    assert visible.more("a" + UNFINISHED) == "a"
    assert visible.more("aé") == "é"
    assert visible.more("aé" + UNFINISHED, last=True) == UNFINISHED


@given(st.text("ab", max_size=30), st.lists(st.text("ab", min_size=1, max_size=4), max_size=3))
def test_the_pieces_add_up_to_the_text_before_the_first_stop_string(text: str, stop: list[str]) -> None:
    pieces, visible = shown(text, *stop)
    # A text that grows by one character ends at the stop string that is complete first.
    found = [(start + len(each), start) for each in stop if (start := text.find(each)) >= 0]
    assert visible.stopped == bool(found)
    assert "".join(pieces) == (text[: min(found)[1]] if found else text)
