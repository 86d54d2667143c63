"""A process that holds one model and answers questions to it. It lives as long as its socket.

On the CPU, always: a GPU's memory belongs to trainings, and one that is free now may be lent in a moment.
"""

import contextlib
import os
import select
import socket
import sys
import traceback
from pathlib import Path

from torch import nn
from transformers.utils import logging as transformers_logging

from onyx.memory.devices.cpu import is_out_of_memory, limit_memory
from onyx.training.chat.generate import AnswerCancelledError, ChatModel
from onyx.training.contract.attempt import Exit, Failure
from onyx.training.contract.chat_protocol import NO_MEMORY, SOCKET, STOP, GenerateRequest, LoadRequest, Reply
from onyx.training.contract.child_process import watch_inherited_lifeline
from onyx.training.contract.errors import ModelError, UserError
from onyx.training.models.directory import TOKENIZER_FILES, loaded_bytes
from onyx.training.models.load import load_model
from onyx.training.models.resolve import allows_code, resolve_parts
from onyx.training.models.tokenizer import load_tokenizer

SILENCE_SECONDS = 86_400.0
"""Whoever asks may have nothing to say for long; the socket's end says when it is gone."""

WORKING_BYTES = 256 * 2**20
"""Besides the weights: what an answer of ordinary length needs."""

CHUNK = 1 << 16
GB = 2**30


def main(folder: str) -> int:
    """Serve the socket in the folder until its other end is closed."""
    _step_back()
    transformers_logging.disable_progress_bar()  # type: ignore[no-untyped-call]
    with _connect(Path(folder)) as connection:
        Conversation(connection).hold()
    return Exit.DONE


class Conversation:
    """Everything that is said over one socket."""

    def __init__(self, connection: socket.socket) -> None:
        self._connection = connection
        self._read = bytearray()

    def hold(self) -> None:
        """A choice of model, then questions one at a time."""
        with contextlib.suppress(BrokenPipeError, ConnectionResetError):
            line = self._line()
            speaker = self._load(LoadRequest.model_validate_json(line)) if line else None
            while speaker is not None and (line := self._line()):
                if line != STOP:  # one that came when the answer was already whole
                    self._answer(speaker, GenerateRequest.model_validate_json(line))

    def _load(self, choice: LoadRequest) -> ChatModel | None:
        try:
            speaker = load(choice)
        except Exception as error:
            self._say(Reply(failure=_failure(error)))
            return None
        self._say(Reply(ready=True))
        return speaker

    def _answer(self, speaker: ChatModel, question: GenerateRequest) -> None:
        said = None
        try:
            said = Reply(end=speaker.answer(question, self._tell, self._wanted))
        except AnswerCancelledError:
            said = Reply(failure=Failure(code="stopped", message="nobody wants the rest of this answer"))
        except (BrokenPipeError, ConnectionResetError):
            raise
        except Exception as error:
            if not is_out_of_memory(error):
                said = Reply(failure=_failure(error))
        # Outside of `except`, where no traceback holds on to the answer's tensors: to say so takes memory, too.
        self._say(said or Reply(failure=_no_memory("there is not enough memory for an answer this long").failure()))

    def _tell(self, piece: str) -> None:
        if piece:
            self._say(Reply(text=piece))

    def _wanted(self) -> bool:
        """Anything to be read now is a word to stop, or the end of the file."""
        return not self._read and not select.select([self._connection], [], [], 0)[0]

    def _line(self) -> bytes:
        """The next line; nothing at the end of the file."""
        while b"\n" not in self._read:
            received = self._connection.recv(CHUNK)
            if not received:
                return b""
            self._read += received
        line, _, rest = bytes(self._read).partition(b"\n")
        self._read = bytearray(rest)
        return line + b"\n"

    def _say(self, said: Reply) -> None:
        self._connection.sendall(said.model_dump_json(exclude_defaults=True).encode() + b"\n")


def load(choice: LoadRequest) -> ChatModel:
    """The model on the CPU in float32, an adapter added to its base; UserError when it cannot be, or does not fit."""
    code = allows_code(choice.model, choice.roots)
    base, adapter = resolve_parts(choice.model, choice.roots)
    needed = loaded_bytes(base, *([adapter] if adapter else []))
    if needed + WORKING_BYTES > choice.memory:
        raise _no_memory(f"the model takes {needed / GB:.1f} GB and {max(0, choice.memory) / GB:.1f} GB can be had")
    model = load_model(base, remote_code=code)
    if adapter is not None:
        model = _adapted(model, adapter)
    has_tokenizer = adapter is not None and any((adapter / name).is_file() for name in TOKENIZER_FILES)
    tokenizer = load_tokenizer(adapter if adapter and has_tokenizer else base, remote_code=code)
    limit_memory(choice.memory - needed)
    return ChatModel(model.eval().requires_grad_(False), tokenizer)


def _adapted(model: nn.Module, adapter: Path) -> nn.Module:
    from peft import PeftModel

    try:
        adapted: nn.Module = PeftModel.from_pretrained(model, str(adapter)).merge_and_unload()
    except (RuntimeError, ValueError, KeyError) as error:
        if is_out_of_memory(error):
            raise
        raise ModelError("adapter_unsupported", "the adapter does not fit the model it names as its base") from error
    return adapted


def _failure(error: Exception) -> Failure:
    if isinstance(error, UserError):
        return error.failure()
    if is_out_of_memory(error):
        return _no_memory("there was not enough memory to load the model").failure()
    traceback.print_exc()
    return Failure(code="broken", message="the model's process failed: the operator's log says why")


def _no_memory(why: str) -> UserError:
    return UserError(NO_MEMORY, f"{why}: trainings come first. Try again when fewer run, or a smaller model")


def _step_back() -> None:
    """Whoever runs out of memory on this host, this process goes first."""
    with contextlib.suppress(OSError):
        Path("/proc/self/oom_score_adj").write_text("1000")
    watch_inherited_lifeline(SILENCE_SECONDS)


def _connect(folder: Path) -> socket.socket:
    """Through a descriptor of the folder: an address has room for 107 bytes, a home may not."""
    connection = socket.socket(socket.AF_UNIX, socket.SOCK_STREAM)
    directory = os.open(folder, os.O_RDONLY | os.O_DIRECTORY)
    try:
        connection.connect(f"/proc/self/fd/{directory}/{SOCKET}")
    finally:
        os.close(directory)
    return connection


if __name__ == "__main__":
    sys.exit(main(*sys.argv[1:]))
