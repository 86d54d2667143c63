"""A job's plan from its prepared data: calls the planner of `onyx.memory`."""

import re
from collections.abc import Sequence
from typing import Any, Literal

import numpy as np
from numpy.typing import NDArray
from torch import nn

from onyx.memory.devices.device import Device
from onyx.memory.errors import DoesNotFitError, PlanError
from onyx.memory.planner import plan
from onyx.memory.planning.plan import Plan
from onyx.memory.recipe import Lora, Recipe
from onyx.recipe.precision import Precision
from onyx.training.contract.attempt import Share
from onyx.training.contract.errors import UserError
from onyx.training.contract.prepared import Planned
from onyx.training.contract.spec import JobSpec, LoraSpec
from onyx.training.models.load import with_lora
from onyx.training.prepare.cpu_precision_probe import precision_trouble

MOST_LENGTHS = 4096
"""The planner gets at most this many lengths. Of more samples it gets quantiles, which describe them as well."""

WITHOUT_BF16 = re.compile(r"\b([KMPV]\d{2,4}|T4|GTX|TITAN|RTX 20\d\d|Quadro [KMPGR])", re.IGNORECASE)
"""Names of cards from before Ampere."""


def plan_job(
    spec: JobSpec,
    config: Any,
    empty_model: nn.Module,
    lengths: NDArray[np.int64],
    samples: int,
    devices: Sequence[Device],
) -> Planned:
    """Plan a job for these devices. UserError with the planner's explanation when it does not fit.

    `config` and `empty_model` are as loaded. `lengths` has the tokens of each sample (of a pair's longer answer),
    evaluation included; `samples` is the number of samples to train on. LoRA adapters are added to `empty_model`, which
    shows the layers that they adapt.
    """
    training = spec.training
    precision, warnings = working_precision(choose_precision(training.precision, devices), devices)
    recipe = Recipe(
        model=config,
        method=training.method,
        lora=_lora(training.lora, empty_model) if training.method == "lora" else Lora(),
        precision=precision,
        gradient_checkpointing=training.gradient_checkpointing,
        task="causal-lm",
        objective=training.objective,
        max_length=int(lengths.max()),
    )
    try:
        made = plan(
            recipe,
            effective_batch=spec.window,
            devices=devices,
            lengths=_thin(lengths),
            samples=samples,
            epochs=training.epochs,
            accumulation_steps=spec.accumulation_steps,
            max_memory_usage=spec.max_memory_usage,
            memory_safety_margin=spec.memory_safety_margin,
            compile=training.compile,
            quick=True,
        )
    except DoesNotFitError as error:
        raise UserError("does_not_fit", str(error)) from error
    except PlanError as error:
        raise UserError("no_plan", str(error)) from error
    document = {**made.to_dict(), "model": spec.model, "warnings": [*warnings, *made.warnings]}
    return Planned(plan=document, shares=_shares(made, devices), precision=precision)


def choose_precision(wanted: Literal["auto", "float32", "bf16", "fp16"], devices: Sequence[Device]) -> Precision:
    """`wanted`, where "auto" is bf16 if every device is a GPU that supports it, and float32 otherwise."""
    if wanted != "auto":
        return wanted
    has = devices and all(each.kind == "cuda" and not WITHOUT_BF16.search(each.name) for each in devices)
    return "bf16" if has else "float32"


def working_precision(precision: Precision, devices: Sequence[Device]) -> tuple[Precision, list[str]]:
    """A precision that works on these devices, with warnings. On a CPU a child process tries half precisions first."""
    if precision == "float32" or all(each.kind == "cuda" for each in devices):
        return precision, []
    failure = precision_trouble(precision)
    if failure is None:
        return precision, []
    return "float32", [f"{precision} does not work on this CPU ({failure} when it was tried): training is in float32"]


def _lora(lora: LoraSpec, empty_model: nn.Module) -> Lora:
    names = [name for name, _ in empty_model.named_modules()]
    adapted: Any = with_lora(empty_model, lora)
    targets = set(adapted.peft_config["default"].target_modules)
    return Lora(r=lora.r, alpha=lora.alpha, dropout=lora.dropout, target_modules=short_names(targets, names))


def short_names(targets: set[str], names: Sequence[str]) -> tuple[str, ...]:
    """The last parts of the targets' names, if these match the same modules; else the targets.

    The planner probes models with fewer layers, in which names with a layer's number may not exist.
    """
    leaves = {each.rsplit(".", 1)[-1] for each in targets}
    matched = {each for each in names if each.rsplit(".", 1)[-1] in leaves}
    same = all(any(each == target or each.endswith(f".{target}") for target in targets) for each in matched)
    return tuple(sorted(leaves if same else targets))


def _thin(lengths: NDArray[np.int64]) -> list[int]:
    if len(lengths) <= MOST_LENGTHS:
        return [int(each) for each in lengths]
    quantiles = np.quantile(lengths, np.linspace(0, 1, MOST_LENGTHS), method="nearest")
    return [int(each) for each in quantiles]


def _shares(made: Plan, devices: Sequence[Device]) -> list[Share]:
    by_label = {each.label: each for each in devices}
    return [
        Share(
            device=part.label,
            uuid=by_label[part.label].uuid,
            threads=by_label[part.label].cores or 1,
            share=part.share / made.window,
            token_budget=part.token_budget,
            micro_batch_cost=part.micro_batch_cost,
            heap=part.heap,
            memory_bytes=part.usable,
        )
        for part in made.devices
    ]
