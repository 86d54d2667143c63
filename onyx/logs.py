"""Log lines: one per event, as JSON or for people, with the ids that bring them together and without secrets.

Nothing here runs on import: whoever owns the process (`onyx serve`, the runner) calls `configure`.
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

_about: ContextVar[dict[str, Any]] = ContextVar("onyx_log_ids", default={})  # noqa: B039 - never changed in place

_USUAL = frozenset(vars(logging.makeLogRecord({}))) | {"message", "asctime", "color_message", "taskName"}
"""What every record has. Whatever else is there, somebody gave as `extra`."""

HIDDEN = "[hidden]"
_SECRETS = (
    re.compile(r"(?i)(?<=bearer )[^\s\"',}]+"),
    re.compile(r"\bonyx_[A-Za-z0-9_-]{40,}"),  # our own keys
    re.compile(r"\bhf_[A-Za-z0-9]{20,}"),
    re.compile(r"\bsk-[A-Za-z0-9_-]{20,}"),
    re.compile(r"(?<=://)([^/\s:@]*:)[^/\s@]+(?=@)"),  # the password in a database's address
)


@contextmanager
def about(**ids: Any) -> Iterator[None]:
    """Every line that is logged inside, by this task or one it starts, carries these ids."""
    token = _about.set(_about.get() | ids)
    try:
        yield
    finally:
        _about.reset(token)


def configure(settings: Settings, stream: TextIO | None = None, handler: logging.Handler | None = None) -> None:
    """Send all log lines of this process to `stream` (standard error) or a handler, in the form the settings name."""
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
    for name in ("uvicorn", "uvicorn.error", "uvicorn.access"):  # its own handlers know neither form nor secrets
        logging.getLogger(name).handlers.clear()
        logging.getLogger(name).propagate = True
    logging.getLogger("alembic").setLevel(logging.WARNING)
    logging.getLogger("uvicorn.access").setLevel(logging.WARNING)  # every request has a line of Onyx's own


class _Lines(logging.Formatter, ABC):
    """What both forms share."""

    def __init__(self, secrets: Iterable[str] = ()) -> None:
        super().__init__()
        self._secrets = tuple(secrets)

    def format(self, record: logging.LogRecord) -> str:
        return hide(self.line(record), self._secrets)

    @abstractmethod
    def line(self, record: logging.LogRecord) -> str:
        """The record in this form."""

    def story(self, record: logging.LogRecord) -> str | None:
        """The traceback, where there is one."""
        return self.formatException(record.exc_info) if record.exc_info and record.exc_info[0] else None


class JsonLines(_Lines):
    """For machines: one object per line."""

    def line(self, record: logging.LogRecord) -> str:
        line = {
            "time": _time(record.created),
            "level": record.levelname.lower(),
            "logger": record.name,
            "message": record.getMessage(),
            **ids_of(record),
        }
        if story := self.story(record):
            line["traceback"] = story
        return json.dumps(line, ensure_ascii=False, default=str)


class TextLines(_Lines):
    """For people: the ids come after the message."""

    def line(self, record: logging.LogRecord) -> str:
        ids = " ".join(f"{name}={value}" for name, value in ids_of(record).items())
        message = record.getMessage().replace("\n", "\n    ")  # nobody's text can pretend to be a line of its own
        text = f"{_time(record.created)} {record.levelname:<7} {record.name}: {message}{'  ' if ids else ''}{ids}"
        story = self.story(record)
        return f"{text}\n{story}" if story else text


def ids_of(record: logging.LogRecord) -> dict[str, Any]:
    """What the line is about: the task's ids, then the record's own."""
    own = {name: value for name, value in vars(record).items() if name not in _USUAL}
    return _about.get() | own


def hide(text: str, secrets: Iterable[str] = ()) -> str:
    """The text without what looks like a secret. A safety net: nobody should have logged one."""
    for secret in secrets:
        text = text.replace(secret, HIDDEN)
    for pattern in _SECRETS:
        text = pattern.sub(lambda found: (found.group(1) if found.re.groups else "") + HIDDEN, text)
    return text


def _time(seconds: float) -> str:
    return time.strftime("%Y-%m-%dT%H:%M:%S", time.gmtime(seconds)) + f".{int(seconds % 1 * 1000):03}Z"
