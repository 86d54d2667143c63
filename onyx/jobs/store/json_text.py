"""JSON as text that every database accepts: ASCII only, without NaN or infinity."""

import json
from typing import Any

from pydantic import BaseModel

from onyx.finite import finite


def dump(value: Any) -> str:
    """Escaped to ASCII, since PostgreSQL refuses NUL and lone surrogates; NaN and infinity become null."""
    plain = value.model_dump(mode="json") if isinstance(value, BaseModel) else value
    return json.dumps(finite(plain), allow_nan=False, separators=(",", ":"))


def canonical(value: BaseModel) -> str:
    """The same text for the same value, whatever the order of its keys."""
    return json.dumps(finite(value.model_dump(mode="json")), allow_nan=False, sort_keys=True)


def load(text: str) -> Any:
    """The value that `dump` wrote."""
    return json.loads(text)


def clean(text: str) -> str:
    """The message without characters that a text column refuses."""
    return text.replace("\x00", "\ufffd").encode("utf-8", "replace").decode("utf-8")
