"""`onyx plan`: will it fit?"""

import re
from typing import Annotated, Any

import typer

from onyx.cli.client import Service
from onyx.cli.output import DEFAULT_URL, USAGE, CommandFailure, Json, Key, Url, duration, emit, gigabytes, say, table

CARD = re.compile(r"(?:(?P<count>[1-9][0-9]{0,2})x)?(?P<name>(?![0-9]+x)[^:]+):(?P<memory>[0-9]+(?:\.[0-9]+)?)(?:GB)?")
"""A100:40, or 8xA100:40."""


def plan(
    model: Annotated[str, typer.Argument(help="A hub id, a job's id, a directory, or onyx/tiny.")],
    target: Annotated[int, typer.Option(min=1, help="Samples of one update: the effective batch.")] = 32,
    gpu: Annotated[list[str] | None, typer.Option(help="Cards to plan for, like A100:40 or 8xA100:40 (GB).")] = None,
    max_length: Annotated[int | None, typer.Option(help="Tokens of the longest sample.")] = None,
    method: Annotated[str, typer.Option(help="full or lora.")] = "full",
    objective: Annotated[str, typer.Option(help="sft, or dpo: then a sample is a pair.")] = "sft",
    precision: Annotated[str, typer.Option(help="auto, float32, bf16 or fp16.")] = "auto",
    url: Url = DEFAULT_URL,
    key: Key = None,
    as_json: Json = False,
) -> None:
    """Will it fit, and how? On the service's devices, or on cards that one does not have."""
    body = {
        "model_name": model,
        "target_effective_batch_size": target,
        "max_length": max_length,
        "method": method,
        "objective": objective,
        "precision": precision,
        "gpus": [card for each in gpu for card in _cards(each)] if gpu else None,
    }
    answer = Service(url, key).post(
        "/calculate-batch-size", {name: value for name, value in body.items() if value is not None}
    )
    if as_json:
        emit(answer)
    else:
        _show(answer["plan"])


def _show(plan: dict[str, Any]) -> None:
    samples = "pairs with answers" if plan.get("objective") == "dpo" else "samples"
    say(
        f"{plan['model']} fits: {plan['method']}, {plan['precision']}, {samples} of up to {plan['max_length']} tokens, "
        f"{plan['window']} per update in {plan['accumulation_steps']} steps"
    )
    table(
        ("device", "micro-batch", "share", "steps", "expected", "at most", "usable"), [_row(d) for d in plan["devices"]]
    )
    if plan["seconds_per_update"] is not None:
        say(f"about {duration(plan['seconds_per_update'])} per update")
    for warning in plan["warnings"]:
        say(f"note: {warning}")


def _row(device: dict[str, Any]) -> tuple[str, ...]:
    counts = (str(device[name]) for name in ("micro_batch", "share", "steps"))
    sizes = (gigabytes(device[name]) for name in ("expected_peak", "high", "usable"))
    return f"{device['label']} {device['name']}", *counts, *sizes


def _cards(text: str) -> list[dict[str, Any]]:
    match = CARD.fullmatch(text)
    if match is None:
        raise CommandFailure(
            f"{text!r} is no card: write its name and its memory in GB, like A100:40 or 8xA100:40", USAGE
        )
    card = {"name": match["name"], "memory_gb": float(match["memory"])}
    return [card] * int(match["count"] or 1)
