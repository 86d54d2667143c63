"""Answers a chat with transformers' `generate`. Enough to see what a model has learned; not a serving engine."""

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
"""The decoder's text for the first bytes of a character whose other bytes are still to come."""


class VisibleText:
    """Which part of a growing answer can be sent: later tokens may still complete a character or a stop string."""

    def __init__(self, stop: tuple[str, ...]) -> None:
        self._stop = stop
        self._longest = max(map(len, stop), default=0)
        self._shown = 0
        self.stopped = False

    def more(self, text: str, *, last: bool = False) -> str:
        """The next piece to send of an answer that is `text` so far."""
        end = self._end(text)
        if end is not None:
            self.stopped = True
        else:
            end = len(text) if last else self._safe(text)
        piece = text[self._shown : end]
        self._shown = max(self._shown, end)
        return piece

    def _end(self, text: str) -> int | None:
        """Where the first stop string begins. It cannot begin in the part that was sent."""
        found = [start for each in self._stop if (start := text.find(each, self._shown)) >= 0]
        return min(found, default=None)

    def _safe(self, text: str) -> int:
        """The end of the text without an incomplete character or the beginning of a stop string."""
        text = text.rstrip(UNFINISHED)
        for start in range(max(self._shown, len(text) - self._longest + 1), len(text)):
            if any(each.startswith(text[start:]) for each in self._stop):
                return start
        return max(self._shown, len(text))


class AnswerCancelledError(Exception):
    """The client does not want the rest of the answer."""


@dataclass
class ChatModel:
    """A loaded model with its tokenizer."""

    model: nn.Module
    tokenizer: Any
    _ends: list[int] = field(init=False)

    def __post_init__(self) -> None:
        self._ends = _end_tokens(self.model, self.tokenizer)
        # The model's own sampling options must not replace those of the request.
        self.model.generation_config = GenerationConfig()  # type: ignore[no-untyped-call, assignment]

    def answer(
        self, request: GenerateRequest, send: Callable[[str], None], wanted: Callable[[], bool]
    ) -> GenerationEnd:
        """Send the answer piece by piece. AnswerCancelledError as soon as `wanted` is false."""
        prompt = self._prompt(request)
        limit = self._token_limit(request, len(prompt))
        stream = _TokenStream(self, len(prompt), VisibleText(request.stop), send, wanted)
        self._generate(request, prompt, limit, stream)
        send(stream.rest())
        complete = stream.stopped or stream.tokens[-1] in self._ends
        return GenerationEnd(
            reason="stop" if complete else "length", prompt_tokens=len(prompt), completion_tokens=len(stream.tokens)
        )

    def text(self, tokens: list[int]) -> str:
        """The text of the tokens, without the one that ends a turn: not every tokenizer marks it as special."""
        shown = tokens[:-1] if tokens[-1] in self._ends else tokens
        text: str = self.tokenizer.decode(shown, skip_special_tokens=True, clean_up_tokenization_spaces=False)
        return text

    def _prompt(self, request: GenerateRequest) -> list[int]:
        try:
            text = Turns(self.tokenizer).prompt(request.messages)
        except TemplateFailedError as error:
            message = f"the model's chat template refuses these messages: {error}"
            raise UserError("chat_template", message, param="messages") from None
        # As in training: a chat template writes its own special tokens.
        tokens: list[int] = self.tokenizer(text, add_special_tokens=False)["input_ids"]
        if not tokens:
            raise UserError(
                "chat_template", "the model's chat template makes an empty prompt of these messages", param="messages"
            )
        return tokens

    def _token_limit(self, request: GenerateRequest, prompt: int) -> int:
        context = positions(self.model.config)
        wanted = request.max_tokens if request.exact_tokens else 1
        if context is not None and prompt + wanted > context:
            raise UserError(
                "context_length_exceeded",
                f"the model's context is {context} tokens: the messages have {prompt}, and the request is for {wanted} "
                "more",
                param="messages",
            )
        return request.max_tokens if context is None else min(request.max_tokens, context - prompt)

    def _generate(self, request: GenerateRequest, prompt: list[int], limit: int, stream: "_TokenStream") -> None:
        torch.set_num_threads(request.threads)
        torch.manual_seed(request.seed if request.seed is not None else torch.seed())
        tokens = torch.tensor([prompt])
        with torch.inference_mode():
            self.model.generate(  # type: ignore[operator]
                input_ids=tokens,
                attention_mask=torch.ones_like(tokens),
                generation_config=self._config(request, limit),
                stopping_criteria=StoppingCriteriaList([stream]),
            )

    def _config(self, request: GenerateRequest, limit: int) -> GenerationConfig:
        sampling: dict[str, Any] = {"do_sample": False}
        if request.temperature > 0:
            sampling = {
                "do_sample": True,
                "temperature": request.temperature,
                "top_p": request.top_p,
                "top_k": 0,
            }
        return GenerationConfig(  # type: ignore[no-untyped-call]
            max_new_tokens=limit,
            use_cache=True,
            eos_token_id=self._ends or None,
            pad_token_id=self.tokenizer.pad_token_id,
            **sampling,
        )


class _TokenStream(StoppingCriteria):
    """`generate` calls it after each token: it sends the text, and stops at a stop string or a cancelled request."""

    def __init__(
        self,
        model: ChatModel,
        prompt: int,
        visible: VisibleText,
        send: Callable[[str], None],
        wanted: Callable[[], bool],
    ) -> None:
        self.tokens: list[int] = []
        self._model = model
        self._prompt = prompt
        self._visible = visible
        self._send = send
        self._wanted = wanted

    def __call__(self, input_ids: torch.Tensor, scores: Any, **kwargs: Any) -> torch.Tensor:
        if not self._wanted():
            raise AnswerCancelledError
        self.tokens = input_ids[0, self._prompt :].tolist()
        self._send(self._visible.more(self._model.text(self.tokens)))
        return torch.tensor([self._visible.stopped])

    @property
    def stopped(self) -> bool:
        return self._visible.stopped

    def rest(self) -> str:
        """The text that was held back in case a stop string would follow."""
        return "" if self.stopped else self._visible.more(self._model.text(self.tokens), last=True)


def _end_tokens(model: nn.Module, tokenizer: Any) -> list[int]:
    """Every token that ends a turn: the tokenizer's, and those of the model's generation config."""
    configured: Any = getattr(getattr(model, "generation_config", None), "eos_token_id", None)
    named = configured if isinstance(configured, list) else [configured]
    return sorted({each for each in (*named, tokenizer.eos_token_id) if isinstance(each, int)})
