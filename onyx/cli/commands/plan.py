"""`onyx plan`: will a model fit, and with which micro-batches?"""

import re
from typing import Annotated, Any

import typer

from onyx.cli.client import ServiceClient
from onyx.cli.output import (
    DEFAULT_URL,
    USAGE,
    CommandError,
    Json,
    Key,
    Url,
    duration,
    gigabytes,
    print_json,
    print_line,
    print_table,
)

GPU = re.compile(r"(?:(?P<count>[1-9][0-9]{0,2})x)?(?P<name>(?![0-9]+x)[^:]+):(?P<memory>[0-9]+(?:\.[0-9]+)?)(?:GB)?")
"""A100:40, or 8xA100:40."""


def plan(
    model: Annotated[str, typer.Argument(help="A hub id, a job's id, a directory, or onyx/tiny.")],
    target: Annotated[int, typer.Option(min=1, help="Samples of one update: the effective batch.")] = 32,
    gpu: Annotated[list[str] | None, typer.Option(help="GPUs to plan for, like A100:40 or 8xA100:40 (GB).")] = None,
    max_length: Annotated[int | None, typer.Option(help="Tokens of the longest sample.")] = None,
    method: Annotated[str, typer.Option(help="full or lora.")] = "full",
    objective: Annotated[str, typer.Option(help="sft, or dpo: then a sample is a pair.")] = "sft",
    precision: Annotated[str, typer.Option(help="auto, float32, bf16 or fp16.")] = "auto",
    url: Url = DEFAULT_URL,
    key: Key = None,
    as_json: Json = False,
) -> None:
    """Will the model fit, and how? On the service's devices, or with --gpu on GPUs that it does not have."""
    body = {
        "model_name": model,
        "target_effective_batch_size": target,
        "max_length": max_length,
        "method": method,
        "objective": objective,
        "precision": precision,
        "gpus": [each for text in gpu for each in parse_gpus(text)] if gpu else None,
    }
    answer = ServiceClient(url, key).post(
        "/calculate-batch-size", {name: value for name, value in body.items() if value is not None}
    )
    if as_json:
        print_json(answer)
    else:
        _print_plan(answer["plan"])


def _print_plan(plan: dict[str, Any]) -> None:
    samples = "pairs with answers" if plan.get("objective") == "dpo" else "samples"
    print_line(
        f"{plan['model']} fits: {plan['method']}, {plan['precision']}, {samples} of up to {plan['max_length']} tokens, "
        f"{plan['window']} per update in {plan['accumulation_steps']} steps"
    )
    print_table(
        ("device", "micro-batch", "share", "steps", "expected", "at most", "usable"), [_row(d) for d in plan["devices"]]
    )
    if plan["seconds_per_update"] is not None:
        print_line(f"about {duration(plan['seconds_per_update'])} per update")
    for warning in plan["warnings"]:
        print_line(f"note: {warning}")


def _row(device: dict[str, Any]) -> tuple[str, ...]:
    counts = (str(device[name]) for name in ("micro_batch", "share", "steps"))
    sizes = (gigabytes(device[name]) for name in ("expected_peak", "high", "usable"))
    return f"{device['label']} {device['name']}", *counts, *sizes


def parse_gpus(text: str) -> list[dict[str, Any]]:
    match = GPU.fullmatch(text)
    if match is None:
        raise CommandError(
            f"cannot read the GPU {text!r}: write its name and its memory in GB, like A100:40 or 8xA100:40", USAGE
        )
    gpu = {"name": match["name"], "memory_gb": float(match["memory"])}
    return [gpu] * int(match["count"] or 1)
