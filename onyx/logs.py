"""Log lines: one per event, as JSON or as text, with the ids of their request, job and attempt, without secrets.

Nothing here runs on import: the entry point of the process (`onyx serve`, the runner) calls `configure`.
"""

import json
import logging
import re
import sys
import time
from abc import ABC, abstractmethod
from collections.abc import Iterable, Iterator
from contextlib import contextmanager
from contextvars import ContextVar
from typing import Any, TextIO

from onyx.settings import Settings

_log_ids: ContextVar[dict[str, Any]] = ContextVar("onyx_log_ids", default={})  # noqa: B039 - never changed in place

_STANDARD_FIELDS = frozenset(vars(logging.makeLogRecord({}))) | {"message", "asctime", "color_message", "taskName"}
"""Fields of every record. Other fields come from `extra`."""

HIDDEN = "[hidden]"
_SECRETS = (
    re.compile(r"(?i)(?<=bearer )[^\s\"',}]+"),
    re.compile(r"\bonyx_[A-Za-z0-9_-]{40,}"),  # our own keys
    re.compile(r"\bhf_[A-Za-z0-9]{20,}"),
    re.compile(r"\bsk-[A-Za-z0-9_-]{20,}"),
    re.compile(r"(?<=://)([^/\s:@]*:)[^/\s@]+(?=@)"),  # the password in a database's address
)


@contextmanager
def log_ids(**ids: Any) -> Iterator[None]:
    """Give these ids to every line logged inside, by this task or one that it starts."""
    token = _log_ids.set(_log_ids.get() | ids)
    try:
        yield
    finally:
        _log_ids.reset(token)


def configure(settings: Settings, stream: TextIO | None = None, handler: logging.Handler | None = None) -> None:
    """Send all log lines of this process to `stream` (standard error) or a handler, in the settings' format."""
    stream = stream or sys.stderr
    as_json = settings.log_format == "json" or (settings.log_format == "auto" and not stream.isatty())
    secrets = settings.secrets()
    handler = handler or logging.StreamHandler(stream)
    handler.setFormatter(JsonLines(secrets) if as_json else TextLines(secrets))
    root = logging.getLogger()
    for old in root.handlers[:]:
        root.removeHandler(old)
    root.addHandler(handler)
    root.setLevel(settings.log_level.upper())
    for name in (
        "uvicorn",
        "uvicorn.error",
        "uvicorn.access",
    ):  # its handlers do not hide secrets
        logging.getLogger(name).handlers.clear()
        logging.getLogger(name).propagate = True
    logging.getLogger("alembic").setLevel(logging.WARNING)
    logging.getLogger("uvicorn.access").setLevel(logging.WARNING)  # Onyx logs every request itself


class _LineFormatter(logging.Formatter, ABC):
    """What both formats share."""

    def __init__(self, secrets: Iterable[str] = ()) -> None:
        super().__init__()
        self._secrets = tuple(secrets)

    def format(self, record: logging.LogRecord) -> str:
        return hide_secrets(self.line(record), self._secrets)

    @abstractmethod
    def line(self, record: logging.LogRecord) -> str:
        """The record in this format."""

    def traceback(self, record: logging.LogRecord) -> str | None:
        """The traceback, where there is one."""
        return self.formatException(record.exc_info) if record.exc_info and record.exc_info[0] else None


class JsonLines(_LineFormatter):
    """For machines: one JSON object per line."""

    def line(self, record: logging.LogRecord) -> str:
        line = {
            "time": _time(record.created),
            "level": record.levelname.lower(),
            "logger": record.name,
            "message": record.getMessage(),
            **ids_of(record),
        }
        if traceback := self.traceback(record):
            line["traceback"] = traceback
        return json.dumps(line, ensure_ascii=False, default=str)


class TextLines(_LineFormatter):
    """For people: the ids come after the message."""

    def line(self, record: logging.LogRecord) -> str:
        ids = " ".join(f"{name}={value}" for name, value in ids_of(record).items())
        message = record.getMessage().replace("\n", "\n    ")  # so that a message cannot imitate a log line
        text = f"{_time(record.created)} {record.levelname:<7} {record.name}: {message}{'  ' if ids else ''}{ids}"
        traceback = self.traceback(record)
        return f"{text}\n{traceback}" if traceback else text


def ids_of(record: logging.LogRecord) -> dict[str, Any]:
    """The ids of the line: the task's, then the record's own."""
    own = {name: value for name, value in vars(record).items() if name not in _STANDARD_FIELDS}
    return _log_ids.get() | own


def hide_secrets(text: str, secrets: Iterable[str] = ()) -> str:
    """The text without what looks like a secret. A safety net: no code should log one."""
    for secret in secrets:
        text = text.replace(secret, HIDDEN)
    for pattern in _SECRETS:
        text = pattern.sub(lambda found: (found.group(1) if found.re.groups else "") + HIDDEN, text)
    return text


def _time(seconds: float) -> str:
    return time.strftime("%Y-%m-%dT%H:%M:%S", time.gmtime(seconds)) + f".{int(seconds % 1 * 1000):03}Z"
