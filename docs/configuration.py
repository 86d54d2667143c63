"""Writes configuration.md from the settings: `python docs/configuration.py`. A test compares the two."""

import ast
import inspect
from itertools import pairwise
from pathlib import Path
from typing import Any

from pydantic.fields import FieldInfo

from onyx.settings import Settings

PAGE = Path(__file__).with_suffix(".md")
HEAD = """# Configuration

Every setting is a variable in the environment, or a field of the `Settings` object that `create_app` and `make_router`
take. Lists are JSON: `ONYX_REMOTE_CODE_MODELS='["org/model"]'`. The service and its runners read the same variables.

Written by `python docs/configuration.py` from `onyx/settings.py`; edit that.

| variable | type | default | meaning |
|---|---|---|---|
"""
WORDS = {
    "bool": "true or false",
    "float": "number",
    "int": "whole number",
    "Path": "path",
    "SecretStr": "secret",
    "str": "text",
    "tuple[str, ...]": "list",
}
UNITS = {"GiB": 2**30, "MiB": 2**20}


def page() -> str:
    """The whole page."""
    return HEAD + "".join(row(name, info) for name, info in Settings.model_fields.items())


def row(name: str, info: FieldInfo) -> str:
    kind, words = _declared()[name]
    cells = (f"`ONYX_{name.upper()}`", f"{kind}{_bounds(info)}", _default(name, info), words)
    return f"| {' | '.join(cells)} |\n"


def _declared() -> dict[str, tuple[str, str]]:
    """Type and meaning of every field, as the source has them."""
    (body,) = [node.body for node in ast.parse(inspect.getsource(Settings)).body if isinstance(node, ast.ClassDef)]
    found = {}
    for field, words in pairwise(body):
        if isinstance(field, ast.AnnAssign) and isinstance(field.target, ast.Name):
            assert isinstance(words, ast.Expr), f"{field.target.id} has no line that says what it means"
            found[field.target.id] = (_type(field.annotation), " ".join(str(ast.literal_eval(words.value)).split()))
    return found


def _type(annotation: ast.expr) -> str:
    text = ast.unparse(annotation).removesuffix(" | None")
    if text.startswith("Literal["):
        return ", ".join(f"`{value}`" for value in ast.literal_eval(text.removeprefix("Literal")))
    return WORDS[text]


def _bounds(info: FieldInfo) -> str:
    for rule in info.metadata:
        if (least := getattr(rule, "ge", None)) is not None:
            return f", at least {least}"
        if (above := getattr(rule, "gt", None)) is not None:
            return f", above {above}"
    return ""


def _default(name: str, info: FieldInfo) -> str:
    if name == "home":
        return "`~/.onyx`"
    value: Any = info.get_default(call_default_factory=False)
    if value is None or value == ():
        return "–"
    unit = next((unit for unit, size in UNITS.items() if isinstance(value, int) and value and value % size == 0), None)
    plain = str(value).lower() if isinstance(value, bool) else f"{value:g}" if isinstance(value, float) else str(value)
    return f"`{plain}`" + (f" ({value // UNITS[unit]} {unit})" if unit else "")


if __name__ == "__main__":
    PAGE.write_text(page(), encoding="utf-8")
