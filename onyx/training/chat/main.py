"""The chat process: holds one model and answers requests until its socket is closed.

It runs on the CPU alone, because the runner may lend a free GPU to a job at any moment.
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
from onyx.training.models.resolve import allows_remote_code, resolve_unmerged
from onyx.training.models.tokenizer import load_tokenizer

SILENCE_SECONDS = 86_400.0
"""The lifeline's limit, which is long: the API may send nothing for hours, and closes the socket when it ends."""

WORKING_BYTES = 256 * 2**20
"""What an answer of ordinary length needs besides the weights."""

CHUNK = 1 << 16
GB = 2**30


def main(folder: str) -> int:
    """Serve the socket in the folder until the other end closes it."""
    _set_up_process()
    transformers_logging.disable_progress_bar()  # type: ignore[no-untyped-call]
    with _connect(Path(folder)) as connection:
        ChatConnection(connection).serve()
    return Exit.DONE


class ChatConnection:
    """One socket: a request to load a model, then requests to answer, one at a time."""

    def __init__(self, connection: socket.socket) -> None:
        self._connection = connection
        self._received = bytearray()

    def serve(self) -> None:
        """Until the other end closes the socket, or the model cannot be loaded."""
        with contextlib.suppress(BrokenPipeError, ConnectionResetError):
            line = self._read_line()
            model = self._load(LoadRequest.model_validate_json(line)) if line else None
            while model is not None and (line := self._read_line()):
                if line != STOP:  # it came when the answer was already complete
                    self._answer(model, GenerateRequest.model_validate_json(line))

    def _load(self, request: LoadRequest) -> ChatModel | None:
        try:
            model = load(request)
        except Exception as error:
            self._send(Reply(failure=_failure(error)))
            return None
        self._send(Reply(ready=True))
        return model

    def _answer(self, model: ChatModel, request: GenerateRequest) -> None:
        reply = None
        try:
            reply = Reply(end=model.answer(request, self._send_text, self._wanted))
        except AnswerCancelledError:
            reply = Reply(failure=Failure(code="stopped", message="the client does not want the rest of this answer"))
        except (BrokenPipeError, ConnectionResetError):
            raise
        except Exception as error:
            if not is_out_of_memory(error):
                reply = Reply(failure=_failure(error))
        # Sending takes memory too. Outside of `except`, no traceback keeps the answer's tensors alive.
        self._send(reply or Reply(failure=_no_memory("there is not enough memory for an answer this long").failure()))

    def _send_text(self, piece: str) -> None:
        if piece:
            self._send(Reply(text=piece))

    def _wanted(self) -> bool:
        """During an answer the other end sends nothing but STOP, or closes the socket."""
        return not self._received and not select.select([self._connection], [], [], 0)[0]

    def _read_line(self) -> bytes:
        """The next line; empty at end of file."""
        while b"\n" not in self._received:
            received = self._connection.recv(CHUNK)
            if not received:
                return b""
            self._received += received
        line, _, rest = bytes(self._received).partition(b"\n")
        self._received = bytearray(rest)
        return line + b"\n"

    def _send(self, reply: Reply) -> None:
        self._connection.sendall(reply.model_dump_json(exclude_defaults=True).encode() + b"\n")


def load(request: LoadRequest) -> ChatModel:
    """The model on the CPU in float32, merged with its adapter if it has one. UserError if it does not fit."""
    code = allows_remote_code(request.model, request.roots)
    base, adapter = resolve_unmerged(request.model, request.roots)
    needed = loaded_bytes(base, *([adapter] if adapter else []))
    if needed + WORKING_BYTES > request.memory:
        free = max(0, request.memory)
        raise _no_memory(f"the model needs {needed / GB:.1f} GB, and {free / GB:.1f} GB are available")
    model = load_model(base, remote_code=code)
    if adapter is not None:
        model = _merged(model, adapter)
    has_tokenizer = adapter is not None and any((adapter / name).is_file() for name in TOKENIZER_FILES)
    tokenizer = load_tokenizer(adapter if adapter and has_tokenizer else base, remote_code=code)
    limit_memory(request.memory - needed)
    return ChatModel(model.eval().requires_grad_(False), tokenizer)


def _merged(model: nn.Module, adapter: Path) -> nn.Module:
    from peft import PeftModel

    try:
        merged: nn.Module = PeftModel.from_pretrained(model, str(adapter)).merge_and_unload()
    except (RuntimeError, ValueError, KeyError) as error:
        if is_out_of_memory(error):
            raise
        raise ModelError("adapter_unsupported", "the adapter does not fit the base model that it names") from error
    return merged


def _failure(error: Exception) -> Failure:
    if isinstance(error, UserError):
        return error.failure()
    if is_out_of_memory(error):
        return _no_memory("there was not enough memory to load the model").failure()
    traceback.print_exc()
    return Failure(code="broken", message="the model's process failed: the operator's log says why")


def _no_memory(why: str) -> UserError:
    return UserError(NO_MEMORY, f"{why}: trainings come first. Try again when fewer run, or try a smaller model")


def _set_up_process() -> None:
    """If this host runs out of memory, the kernel kills this process first. And watch the lifeline."""
    with contextlib.suppress(OSError):
        Path("/proc/self/oom_score_adj").write_text("1000")
    watch_inherited_lifeline(SILENCE_SECONDS)


def _connect(folder: Path) -> socket.socket:
    """Through a descriptor of the folder: a socket's path is limited to 107 bytes, and a home's may be longer."""
    connection = socket.socket(socket.AF_UNIX, socket.SOCK_STREAM)
    directory = os.open(folder, os.O_RDONLY | os.O_DIRECTORY)
    try:
        connection.connect(f"/proc/self/fd/{directory}/{SOCKET}")
    finally:
        os.close(directory)
    return connection


if __name__ == "__main__":
    sys.exit(main(*sys.argv[1:]))
