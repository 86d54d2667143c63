"""Makes a plan from a recipe, the data's lengths, the target and the devices.

Importing this needs no torch. A plan whose footprint is stored needs it only where the model's config is read.
"""

from collections.abc import Mapping
from dataclasses import replace
from math import ceil
from typing import Any, NoReturn

from onyx.memory.devices.device import Device
from onyx.memory.devices.heap import FRAGMENTED
from onyx.memory.errors import DoesNotFitError, PlanError
from onyx.memory.footprint.json_cache import versions
from onyx.memory.planning.alternatives import alternatives
from onyx.memory.planning.device_fit import Fit, fit_device, split
from onyx.memory.planning.plan import DevicePlan, Plan
from onyx.memory.planning.request import PlanRequest
from onyx.memory.planning.speed_choices import compile_obstacle, compiling_pays, joins_samples
from onyx.memory.planning.timing import device_timing_key, stored_timing, timing_key
from onyx.memory.recipe import Recipe

MICRO_BATCH_COSTS = {"cpu": 96, "cuda": 1024}
"""Padded tokens that take as long as the fixed cost of a micro-batch. Measured on a CPU. A cautious guess for a card,
where launching a model's kernels takes milliseconds in which it could process thousands of tokens."""

LEAST_SPEEDUP = 1.25
"""How many times as fast as another a device must have been measured to get a larger share: less is noise."""

QUICK_TOKENS = 2048
"""Padded tokens at once beyond which a CPU gets no quicker (measured: 0.56 of its peak at 512, 0.61 at 1024, 0.64 at
2048)."""


def plan(recipe: Recipe, **options: Any) -> Plan:
    """Plan a recipe: `options` are the fields of `PlanRequest`."""
    return make_plan(PlanRequest(recipe=recipe, **options))


def make_plan(request: PlanRequest) -> Plan:
    """The plan, or an error that says what would fit."""
    from onyx.memory.footprint.model_builder import load_config

    config = load_config(request.recipe)
    devices = [_device(each, i) for i, each in enumerate(request.devices)]
    fits = [fit_device(config, request, device) for device in devices]
    able = [each for each in fits if each.samples >= 1]
    if not able:
        _refuse(config, request, fits)
    warnings = [
        f"{each.device.label} is too small for one sample of {request.longest} tokens and takes no part"
        for each in fits
        if each.samples < 1
    ]
    taking = []
    for each, share in zip(able, split(request.window, _share_weights(config, request, able)), strict=True):
        if share:
            taking.append((each, _device_plan(each, share, request, warnings)))
        else:
            warnings.append(f"a window of {request.window} leaves no sample for {each.device.label}")
    fits, parts = [fit for fit, _ in taking], [part for _, part in taking]
    compiled = _compiles(config, request, fits, parts, warnings)
    return _assemble(config, request, _with_timing_keys(config, request, fits, parts, compiled), compiled, warnings)


def _with_timing_keys(
    config: Any, request: PlanRequest, fits: list[Fit], parts: list[DevicePlan], compiled: bool
) -> list[DevicePlan]:
    """The parts with the keys under which ranks store their timings."""
    keys = [timing_key(config, request.recipe, each.device, compiled=compiled) for each in fits]
    return [replace(part, timing_key=key) for part, key in zip(parts, keys, strict=True)]


def _compiles(config: Any, request: PlanRequest, fits: list[Fit], parts: list[DevicePlan], warnings: list[str]) -> bool:
    """Whether the step is compiled: as the request says, or where it pays."""
    if request.compile is False:
        return False
    obstacle = compile_obstacle(request, fits)
    if obstacle is not None:
        if request.compile is True:
            warnings.append(f"the step is not compiled: {obstacle}")
        return False
    if request.compile is True:
        return True
    _, seconds = _seconds(request, _with_timing_keys(config, request, fits, parts, False))
    known = all(stored_timing(each.timing_key or "") for each in _with_timing_keys(config, request, fits, parts, True))
    return compiling_pays(request, fits, seconds, known=known)


def _assemble(config: Any, request: PlanRequest, parts: list[DevicePlan], compiled: bool, warnings: list[str]) -> Plan:
    recipe = request.recipe
    steps = request.accumulation_steps or ceil(request.window / sum(each.micro_batch for each in parts))
    if request.window < request.effective_batch:
        warnings.append(f"there are {request.window} samples, fewer than the target of {request.effective_batch}")
    if not all(each.overhead_measured for each in parts):
        warnings.append("no process ran on such a card here: its overhead is what others published")
    per_update, total = _seconds(request, parts)
    return Plan(
        model=recipe.model if isinstance(recipe.model, str) else config.model_type,
        method=recipe.method,
        lora_r=recipe.lora.r if recipe.method == "lora" else None,
        precision=recipe.precision,
        gradient_checkpointing=recipe.gradient_checkpointing,
        objective=recipe.objective,
        compile=compiled,
        layout="joined" if joins_samples(config, request, [each.label for each in parts]) else "padded",
        max_length=request.longest,
        window=request.window,
        accumulation_steps=steps,
        devices=tuple(parts),
        seconds_per_update=per_update,
        seconds_total=total,
        versions=versions(),
        warnings=tuple(warnings),
    )


def _device_plan(fit: Fit, share: int, request: PlanRequest, warnings: list[str]) -> DevicePlan:
    wanted = ceil(share / (request.accumulation_steps or 1))
    samples, tokens = _quick_size(fit, request)
    micro_batch = min(samples, wanted)
    if request.accumulation_steps and micro_batch < wanted:
        warnings.append(
            f"accumulation_steps {request.accumulation_steps} asks for a micro-batch of {wanted} on "
            f"{fit.device.label}, where {micro_batch} fits: it takes "
            f"{ceil(share / micro_batch)} micro-batches per update"
        )
    live = fit.footprint.peak(micro_batch, request.longest)
    roomy = fit.device.kind == "cpu" and FRAGMENTED * fit.high(live) <= fit.usable
    return DevicePlan(
        label=fit.device.label,
        name=fit.device.name,
        micro_batch=micro_batch,
        token_budget=min(tokens, wanted * request.longest) * request.recipe.rows,
        share=share,
        steps=ceil(share / micro_batch),
        usable=fit.usable,
        expected_peak=fit.expected(live),
        low=live,
        high=int(FRAGMENTED * fit.high(live)) if roomy else fit.high(live),
        overhead_measured=fit.overhead.measured,
        micro_batch_cost=MICRO_BATCH_COSTS[fit.device.kind],
        heap="roomy" if roomy else "steady",
    )


def _quick_size(fit: Fit, request: PlanRequest) -> tuple[int, int]:
    """Samples and tokens at once: what fits, or less on a CPU where more is no quicker and the user gave no N."""
    if not request.quick or request.accumulation_steps or fit.device.kind != "cpu":
        return fit.samples, fit.tokens
    tokens = min(fit.tokens, max(request.longest, QUICK_TOKENS))
    return min(fit.samples, tokens // request.longest), tokens


def _share_weights(config: Any, request: PlanRequest, fits: list[Fit]) -> list[float]:
    """By speed when it is known of every device, as given or as ranks have measured it, else by memory."""
    given = [each.device.speed for each in fits]
    known = [speed for speed in given if speed is not None]
    if len(known) == len(fits):
        return known
    return _measured_speeds(config, request, fits) or [float(each.usable) for each in fits]


def _measured_speeds(config: Any, request: PlanRequest, fits: list[Fit]) -> list[float] | None:
    """Tokens per second of each device in earlier jobs; None where one is not known, or all are about equal."""
    for compiled in (True, False):
        keys = [
            device_timing_key(
                timing_key(config, request.recipe, each.device, compiled=compiled), each.device.label, each.device.uuid
            )
            for each in fits
        ]
        timings = [timing for timing in map(stored_timing, keys) if timing is not None and timing.per_token > 0]
        speeds = [1 / timing.per_token for timing in timings]
        if len(speeds) == len(fits) and max(speeds) > LEAST_SPEEDUP * min(speeds):
            return speeds
    return None


def _seconds(request: PlanRequest, parts: list[DevicePlan]) -> tuple[float | None, float | None]:
    """Seconds of an update and of the job, on the slowest device. Padding is neglected: windows are cut by length."""
    timings = [request.timings.get(each.label) or stored_timing(each.timing_key or "") for each in parts]
    known = [each for each in timings if each is not None]
    if len(known) < len(parts):
        return None, None
    lengths = [min(n, request.recipe.max_length) for n in request.lengths]
    mean = request.recipe.rows * (sum(lengths) / len(lengths) if lengths else request.longest)
    update = max(
        timing.seconds(micro_batches=ceil(each.share * mean / each.token_budget), tokens=each.share * mean)
        for each, timing in zip(parts, known, strict=True)
    )
    return update, update * request.epochs * ceil(request.count / request.window) if request.count else None


def _refuse(config: Any, request: PlanRequest, fits: list[Fit]) -> NoReturn:
    best = max(fits, key=lambda each: each.usable - each.needs)
    raise DoesNotFitError(
        needs=best.needs,
        length=request.longest,
        shortages={each.device.label: each.usable for each in fits},
        alternatives=alternatives(config, request, best.device),
    )


def _device(given: Device | Mapping[str, Any], index: int) -> Device:
    if isinstance(given, Device):
        return given
    try:
        return Device.imagined(given, index)
    except ValueError as error:
        raise PlanError(str(error)) from error
