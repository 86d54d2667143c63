"""Checks of arguments. Each ValueError says what was given and what is allowed; a wrong type is a ValueError too."""

import math
from collections.abc import Iterable
from numbers import Integral, Real
from typing import Any


def whole(name: str, value: Any, at_least: int = 1) -> int:
    """A whole number of at least `at_least`. True and False are refused."""
    if isinstance(value, bool) or not isinstance(value, Integral) or value < at_least:
        raise ValueError(f"{name} must be >= {at_least}, got {value!r}: give a whole number")
    return int(value)


def number(name: str, value: Any, above: float = -math.inf, at_least: float = -math.inf) -> float:
    """A finite real number, above one bound and at least another."""
    wrong_type = isinstance(value, bool) or not isinstance(value, Real)
    if wrong_type or not math.isfinite(value) or value <= above or value < at_least:
        bound = f"> {above:g}" if above > -math.inf else f">= {at_least:g}"
        wanted = "finite" if math.isinf(above) and math.isinf(at_least) else f"{bound} and finite"
        raise ValueError(f"{name} must be {wanted}, got {value!r}")
    return float(value)


def positive(name: str, value: Any) -> float:
    """A finite number above zero."""
    return number(name, value, above=0)


def fraction(name: str, value: Any) -> float:
    """A number strictly between 0 and 1."""
    if isinstance(value, bool) or not isinstance(value, Real) or not 0 < float(value) < 1:
        raise ValueError(f"{name} must be between 0 and 1 (both excluded), got {value!r}")
    return float(value)


def flag(name: str, value: Any) -> bool:
    """True or False; 0, 1 and strings are refused."""
    if not isinstance(value, bool):
        raise ValueError(f"{name} must be True or False, got {value!r}")  # noqa: TRY004 - see the module docstring
    return value


def one_of(name: str, value: Any, allowed: Iterable[str]) -> str:
    """One of the names in `allowed`."""
    names = list(allowed)
    if value not in names:
        raise ValueError(f"{name} must be one of {', '.join(names)}; got {value!r}")
    return str(value)
