"""An answer to a chat, by transformers' own `generate`. Enough to see what a model has learned; no serving engine."""

from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any

import torch
from torch import nn
from transformers import GenerationConfig, StoppingCriteria, StoppingCriteriaList

from onyx.memory.footprint.model_builder import positions
from onyx.training.contract.chat_protocol import GenerateRequest, GenerationEnd
from onyx.training.contract.errors import UserError
from onyx.training.data.render import TemplateFailedError, Turns

UNFINISHED = "\ufffd"
"""What a decoder puts for bytes that are no character yet."""


class VisibleText:
    """The part of an answer that nothing which follows can take back."""

    def __init__(self, stop: tuple[str, ...]) -> None:
        self._stop = stop
        self._longest = max(map(len, stop), default=0)
        self._shown = 0
        self.stopped = False

    def more(self, text: str, *, last: bool = False) -> str:
        """The next piece to show of an answer that is `text` so far."""
        end = self._end(text)
        if end is not None:
            self.stopped = True
        else:
            end = len(text) if last else self._safe(text)
        piece = text[self._shown : end]
        self._shown = max(self._shown, end)
        return piece

    def _end(self, text: str) -> int | None:
        """Where the first stop string begins. What was shown holds no beginning of one."""
        found = [place for each in self._stop if (place := text.find(each, self._shown)) >= 0]
        return min(found, default=None)

    def _safe(self, text: str) -> int:
        """Up to where no half of a character and no beginning of a stop string is."""
        text = text.rstrip(UNFINISHED)
        for start in range(max(self._shown, len(text) - self._longest + 1), len(text)):
            if any(each.startswith(text[start:]) for each in self._stop):
                return start
        return max(self._shown, len(text))


class AnswerCancelledError(Exception):
    """Whoever asked has left."""


@dataclass
class ChatModel:
    """A loaded model with its tokenizer."""

    model: nn.Module
    tokenizer: Any
    _ends: list[int] = field(init=False)

    def __post_init__(self) -> None:
        self._ends = _end_tokens(self.model, self.tokenizer)
        # A model's own taste in sampling would fill in what nobody asked for.
        self.model.generation_config = GenerationConfig()  # type: ignore[no-untyped-call, assignment]

    def answer(
        self, question: GenerateRequest, tell: Callable[[str], None], wanted: Callable[[], bool]
    ) -> GenerationEnd:
        """Send the answer piece by piece. UserError when there can be none, AnswerCancelledError when not wanted."""
        prompt = self._prompt(question)
        room = self._room(question, len(prompt))
        teller = _TokenStream(self, len(prompt), VisibleText(question.stop), tell, wanted)
        self._generate(question, prompt, room, teller)
        tell(teller.rest())
        complete = teller.stopped or teller.tokens[-1] in self._ends
        return GenerationEnd(
            reason="stop" if complete else "length", prompt_tokens=len(prompt), completion_tokens=len(teller.tokens)
        )

    def text(self, tokens: list[int]) -> str:
        """What they say, without the token that ends a turn, which not every tokenizer knows to be special."""
        said = tokens[:-1] if tokens[-1] in self._ends else tokens
        text: str = self.tokenizer.decode(said, skip_special_tokens=True, clean_up_tokenization_spaces=False)
        return text

    def _prompt(self, question: GenerateRequest) -> list[int]:
        try:
            text = Turns(self.tokenizer).prompt(question.messages)
        except TemplateFailedError as error:
            message = f"the model's chat template refuses these messages: {error}"
            raise UserError("chat_template", message, param="messages") from None
        # As in training: a chat template writes its own special tokens.
        tokens: list[int] = self.tokenizer(text, add_special_tokens=False)["input_ids"]
        if not tokens:
            raise UserError(
                "chat_template", "the model's chat template makes nothing of these messages", param="messages"
            )
        return tokens

    def _room(self, question: GenerateRequest, prompt: int) -> int:
        most = positions(self.model.config)
        wanted = question.max_tokens if question.exact_tokens else 1
        if most is not None and prompt + wanted > most:
            raise UserError(
                "context_length_exceeded",
                f"the model's context is {most} tokens: the messages have {prompt}, and {wanted} more are asked for",
                param="messages",
            )
        return question.max_tokens if most is None else min(question.max_tokens, most - prompt)

    def _generate(self, question: GenerateRequest, prompt: list[int], room: int, teller: "_TokenStream") -> None:
        torch.set_num_threads(question.threads)
        torch.manual_seed(question.seed if question.seed is not None else torch.seed())
        tokens = torch.tensor([prompt])
        with torch.inference_mode():
            self.model.generate(  # type: ignore[operator]
                input_ids=tokens,
                attention_mask=torch.ones_like(tokens),
                generation_config=self._config(question, room),
                stopping_criteria=StoppingCriteriaList([teller]),
            )

    def _config(self, question: GenerateRequest, room: int) -> GenerationConfig:
        """What was asked for and nothing else."""
        sampling: dict[str, Any] = {"do_sample": False}
        if question.temperature > 0:
            sampling = {
                "do_sample": True,
                "temperature": question.temperature,
                "top_p": question.top_p,
                "top_k": 0,
            }
        return GenerationConfig(  # type: ignore[no-untyped-call]
            max_new_tokens=room,
            use_cache=True,
            eos_token_id=self._ends or None,
            pad_token_id=self.tokenizer.pad_token_id,
            **sampling,
        )


class _TokenStream(StoppingCriteria):
    """Looks at each token as it comes: tells its text, and stops at a stop string or when nobody listens."""

    def __init__(
        self,
        speaker: ChatModel,
        prompt: int,
        visible: VisibleText,
        tell: Callable[[str], None],
        wanted: Callable[[], bool],
    ) -> None:
        self.tokens: list[int] = []
        self._speaker = speaker
        self._prompt = prompt
        self._visible = visible
        self._tell = tell
        self._wanted = wanted

    def __call__(self, input_ids: torch.Tensor, scores: Any, **kwargs: Any) -> torch.Tensor:
        if not self._wanted():
            raise AnswerCancelledError
        self.tokens = input_ids[0, self._prompt :].tolist()
        self._tell(self._visible.more(self._speaker.text(self.tokens)))
        return torch.tensor([self._visible.stopped])

    @property
    def stopped(self) -> bool:
        return self._visible.stopped

    def rest(self) -> str:
        """What was held back in case more would follow."""
        return "" if self.stopped else self._visible.more(self._speaker.text(self.tokens), last=True)


def _end_tokens(model: nn.Module, tokenizer: Any) -> list[int]:
    """Every token that ends a turn: the tokenizer's, and those that the model's makers name."""
    said: Any = getattr(getattr(model, "generation_config", None), "eos_token_id", None)
    named = said if isinstance(said, list) else [said]
    return sorted({each for each in (*named, tokenizer.eos_token_id) if isinstance(each, int)})
