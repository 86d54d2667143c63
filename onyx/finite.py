"""Values that JSON can hold: no NaN, no infinity."""

import math
from collections.abc import Mapping
from typing import Any


def finite(value: Any) -> Any:
    """The value with null in place of NaN and infinity, at every depth; keys become text and tuples lists."""
    if isinstance(value, float):
        return value if math.isfinite(value) else None
    if isinstance(value, Mapping):
        return {str(key): finite(item) for key, item in value.items()}
    if isinstance(value, list | tuple):
        return [finite(item) for item in value]
    return value
