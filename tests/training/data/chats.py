"""Random chats, a tokenizer that merges letters, and a naive mask of what is trained on."""

from typing import Any

from hypothesis import strategies as st
from tokenizers import Tokenizer, decoders, models, pre_tokenizers, trainers
from transformers import PreTrainedTokenizerFast

TEXTS = st.text(st.characters(exclude_categories=["Cs"], exclude_characters="\0"), min_size=1, max_size=12)
CONTENTS = TEXTS | st.sampled_from(["the answer", " is", "User: x\n", "\n\n", "assistant", "<|im_end|>", "ok ok"])


def message(role: str) -> st.SearchStrategy[dict[str, Any]]:
    weight = st.sampled_from([{}, {"weight": 0}, {"weight": 1}]) if role == "assistant" else st.just({})
    return st.builds(lambda content, more: {"role": role, "content": content, **more}, CONTENTS, weight)


CHATS = st.lists(st.sampled_from(["system", "user", "assistant", "tool"]), min_size=1, max_size=6).flatmap(
    lambda roles: st.tuples(*(message(role) for role in [*roles, "assistant"]))
)


def merging_tokenizer(template: str) -> Any:
    """A byte-level BPE whose tokens join letters of a message with letters of the template."""
    tokenizer = Tokenizer(models.BPE())
    tokenizer.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False, use_regex=False)
    tokenizer.decoder = decoders.ByteLevel()
    trainer = trainers.BpeTrainer(
        vocab_size=400,
        initial_alphabet=pre_tokenizers.ByteLevel.alphabet(),
        special_tokens=["</s>"],
        show_progress=False,
    )
    tokenizer.train_from_iterator(["User: ok ok\nBot: the answer is ok\nUser: x\nBot: the end\n\n"] * 20, trainer)
    wrapped = PreTrainedTokenizerFast(tokenizer_object=tokenizer, eos_token="</s>", pad_token="</s>")  # type: ignore[no-untyped-call]  # noqa: S106
    wrapped.chat_template = template
    return wrapped


def naive_mask(offsets: list[tuple[int, int]], trained: list[bool]) -> list[bool]:
    """A token is trained on if one of its characters is."""
    return [any(trained[at] for at in range(first, last)) for first, last in offsets]
