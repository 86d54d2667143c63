import copy
import logging
import math
from typing import Any

import pytest
import torch
from hypothesis import given, settings
from torch import nn
from torch.optim import SGD, AdamW

from onyx.server.features.ads.gradient_accumulation import GradientAccumulationConfig, GradientAccumulator
from tests.accumulation.exact import (
    TOLERANCE,
    big_batch_weights,
    difference,
    dtypes,
    flat,
    make_batches,
    make_model,
    mean_loss,
    ragged_sizes,
    window_lengths,
)

KEYS = {
    "should_update",
    "accumulation_step",
    "total_loss",
    "total_samples",
    "accumulation_time",
    "memory_used",
    "backward_stats",
    "optimizer_stats",
    "mp_stats",
}


def accumulator(**settings: Any) -> GradientAccumulator:
    return GradientAccumulator(GradientAccumulationConfig(**settings))


def feed(
    acc: GradientAccumulator, model: nn.Module, optimizer: torch.optim.Optimizer, count: int
) -> list[dict[str, Any]]:
    return [acc.accumulate_gradients(mean_loss(model, batch), model, optimizer) for batch in make_batches([2] * count)]


@given(sizes=ragged_sizes, steps=window_lengths, dtype=dtypes)
@settings(max_examples=40)
def test_weighted_windows_are_the_big_batch(sizes: list[int], steps: int, dtype: torch.dtype) -> None:
    batches, model = make_batches(sizes, dtype), make_model(dtype)
    expected = big_batch_weights(model, batches, steps)
    acc = accumulator(accumulation_steps=steps, gradient_clipping=None)
    optimizer = SGD(model.parameters(), lr=0.1)
    for batch in batches:
        acc.accumulate_gradients(mean_loss(model, batch), model, optimizer, weight=len(batch[1]))
    acc.flush(model, optimizer)
    assert difference(flat(model), expected) <= TOLERANCE[dtype]


@pytest.mark.parametrize("steps", [1, 2, 3, 4])
def test_every_nth_call_updates(steps: int) -> None:
    model = make_model()
    reports = feed(accumulator(accumulation_steps=steps), model, SGD(model.parameters(), lr=0.1), 12)
    assert [report["should_update"] for report in reports] == [(i + 1) % steps == 0 for i in range(12)]
    assert [report["accumulation_step"] for report in reports] == [i % steps + 1 for i in range(12)]


def test_the_report_of_the_last_micro_batch_has_the_figures_of_the_full_window() -> None:
    model = make_model()
    acc = accumulator(gradient_clipping=None)
    losses = [mean_loss(model, batch) for batch in make_batches([3, 3, 3, 3])]
    optimizer = SGD(model.parameters(), lr=0.1)
    reports = [acc.accumulate_gradients(loss, model, optimizer) for loss in losses]
    assert all(set(report) == KEYS for report in reports)
    sums = [sum(loss.item() for loss in losses[: i + 1]) for i in range(4)]
    assert [report["total_loss"] for report in reports] == pytest.approx(sums)
    assert [report["total_samples"] for report in reports] == [1, 2, 3, 4]
    assert acc.accumulation_step == 4  # until the next call
    assert set(reports[0]["backward_stats"]) == {"backward_time", "scaler_scale"}
    assert [set(report["optimizer_stats"]) for report in reports] == [set()] * 3 + [{"optimizer_time", "scaler_scale"}]
    assert reports[3]["memory_used"] > 0
    assert type(reports[3]["total_loss"]) is float


def test_weights_count_samples() -> None:
    model = make_model()
    acc = accumulator(accumulation_steps=2)
    optimizer = SGD(model.parameters(), lr=0.1)
    batch = make_batches([3])[0]
    acc.accumulate_gradients(mean_loss(model, batch), model, optimizer, weight=3)
    report = acc.accumulate_gradients(mean_loss(model, batch), model, optimizer, weight=torch.tensor(5))
    assert report["total_samples"] == 8
    assert report["should_update"]


def test_a_window_of_weight_zero_is_skipped_and_reported_as_skipped() -> None:
    model = make_model()
    before = flat(model)
    acc = accumulator(accumulation_steps=2)
    optimizer = AdamW(model.parameters())
    for _ in range(2):
        report = acc.accumulate_gradients(mean_loss(model, make_batches([2])[0]), model, optimizer, weight=0)
    assert report["should_update"]
    assert report["optimizer_stats"]["skipped"] is True
    assert torch.equal(flat(model), before)
    assert (acc.current_step, acc.skipped_steps) == (0, 1)


def test_an_update_that_is_not_finite_is_skipped_and_does_not_count() -> None:
    model = make_model()
    acc = accumulator(accumulation_steps=2, warmup_steps=0)
    optimizer = SGD(model.parameters(), lr=0.1)
    before = flat(model)
    acc.accumulate_gradients(mean_loss(model, make_batches([2])[0]) * math.nan, model, optimizer)
    report = acc.accumulate_gradients(mean_loss(model, make_batches([2])[0]), model, optimizer)
    assert report["should_update"]
    assert report["optimizer_stats"]["skipped"] is True
    assert torch.equal(flat(model), before)
    assert (acc.current_step, acc.skipped_steps, list(acc.gradient_norms)) == (0, 1, [])


def test_clipping_covers_all_groups() -> None:
    model = nn.Linear(4, 4)
    before = flat(model)
    groups: list[dict[str, Any]] = [{"params": [model.weight]}, {"params": [model.bias]}]
    optimizer = SGD(groups, lr=1.0)
    acc = accumulator(accumulation_steps=1, gradient_clipping=0.5)
    acc.accumulate_gradients((model(torch.ones(3, 4)) * 10).sum(), model, optimizer)
    assert float((flat(model) - before).norm()) == pytest.approx(0.5, rel=1e-4)
    assert acc.gradient_norms[0] > 10


def test_no_clipping_never_clips(monkeypatch: pytest.MonkeyPatch) -> None:
    calls: list[float] = []
    real = torch.nn.utils.clip_grad_norm_

    def spy(parameters: Any, max_norm: float) -> torch.Tensor:
        calls.append(max_norm)
        return real(parameters, max_norm)

    monkeypatch.setattr(torch.nn.utils, "clip_grad_norm_", spy)
    model = make_model()
    feed(accumulator(accumulation_steps=1, gradient_clipping=None), model, SGD(model.parameters()), 2)
    assert calls == []
    feed(accumulator(accumulation_steps=1, gradient_clipping=0.25), model, SGD(model.parameters()), 2)
    assert calls == [0.25, 0.25]


def test_norms_are_of_unscaled_gradients() -> None:
    plain, scaled = make_model(), make_model()
    first, second = accumulator(accumulation_steps=2), accumulator(accumulation_steps=2)
    feed(first, plain, SGD(plain.parameters()), 2)
    scaler = torch.amp.GradScaler("cpu", init_scale=4096.0)
    optimizer = SGD(scaled.parameters())
    for batch in make_batches([2] * 2):
        report = second.accumulate_gradients(mean_loss(scaled, batch), scaled, optimizer, scaler)
    assert second.gradient_norms[0] == pytest.approx(first.gradient_norms[0], rel=1e-5)
    assert difference(flat(scaled), flat(plain)) < 1e-6
    assert report["backward_stats"]["scaler_scale"] == 4096.0
    assert report["backward_stats"]["overflow_detected"] is False


def test_an_overflow_is_in_the_report() -> None:
    model = make_model()
    acc = accumulator(accumulation_steps=1)
    scaler = torch.amp.GradScaler("cpu", init_scale=64.0)
    optimizer = SGD(model.parameters())
    batch = make_batches([2])[0]
    bad = acc.accumulate_gradients(mean_loss(model, batch) * math.inf, model, optimizer, scaler)
    good = acc.accumulate_gradients(mean_loss(model, batch), model, optimizer, scaler)
    assert bad["backward_stats"]["overflow_detected"] is True
    assert bad["optimizer_stats"] | {"optimizer_time": 0} == {
        "optimizer_time": 0,
        "scaler_scale": 32.0,
        "skipped": True,
    }
    assert set(good["mp_stats"]) == {
        "amp_enabled",
        "scaler_scale",
        "memory_saved",
        "training_time",
        "overflow_count",
        "underflow_count",
        "memory_savings_gb",
        "scaler_enabled",
        "autocast_enabled",
    }
    assert good["mp_stats"]["overflow_count"] == 1
    assert good["mp_stats"]["scaler_enabled"] is True
    assert acc.get_accumulation_stats()["mixed_precision_enabled"] is True


def test_a_change_of_n_applies_from_the_next_window() -> None:
    model = make_model()
    acc = accumulator(accumulation_steps=4)
    optimizer = SGD(model.parameters())
    fired = [report["should_update"] for report in feed(acc, model, optimizer, 2)]
    acc.config.accumulation_steps = 2
    fired += [report["should_update"] for report in feed(acc, model, optimizer, 4)]
    assert fired == [False, False, False, True, False, True]


def test_warmup_grows_the_window_and_each_is_normalised_by_its_own_weight() -> None:
    model = make_model()
    batches = make_batches([3] * 10)
    acc = accumulator(
        accumulation_steps=4, warmup_steps=3, accumulation_scheduler="step", gradient_clipping=None
    )  # windows of 1, 2, 4, then 4
    expected = copy.deepcopy(model)
    big = SGD(expected.parameters(), lr=0.1)
    start = 0
    for length in (1, 2, 4):
        part = batches[start : start + length]
        nn.functional.cross_entropy(
            expected(torch.cat([x for x, _ in part])), torch.cat([y for _, y in part])
        ).backward()
        big.step()
        big.zero_grad()
        start += length
    optimizer = SGD(model.parameters(), lr=0.1)
    fired = [
        acc.accumulate_gradients(mean_loss(model, batch), model, optimizer)["should_update"] for batch in batches[:7]
    ]
    assert fired == [True, False, True, False, False, False, True]
    assert difference(flat(model), flat(expected)) < 1e-6


def test_skipped_updates_do_not_advance_the_warmup() -> None:
    model = make_model()
    acc = accumulator(accumulation_steps=4, warmup_steps=4, accumulation_scheduler="linear")
    optimizer = SGD(model.parameters())
    batch = make_batches([2])[0]
    for _ in range(3):
        assert acc.accumulate_gradients(mean_loss(model, batch) * math.nan, model, optimizer)["should_update"]
    assert acc.current_step == 0
    assert acc.should_update()


def test_should_update_is_about_the_next_micro_batch() -> None:
    model = make_model()
    acc = accumulator(accumulation_steps=2)
    optimizer = SGD(model.parameters())
    reported = []
    for _ in range(4):
        reported.append((acc.should_update(), acc.should_accumulate()))
        feed(acc, model, optimizer, 1)
    assert reported == [(False, True), (True, False), (False, True), (True, False)]


def test_flush_applies_a_partial_window_and_nothing_else() -> None:
    model = make_model()
    acc = accumulator()
    optimizer = SGD(model.parameters(), lr=0.1)
    feed(acc, model, optimizer, 2)
    report = acc.flush(model, optimizer)
    assert set(report) == KEYS
    assert report["should_update"]
    assert report["accumulation_step"] == 2
    after = flat(model)
    assert not acc.flush(model, optimizer)["should_update"]
    assert torch.equal(flat(model), after)


def test_reset_drops_the_window_and_its_gradients() -> None:
    model = make_model()
    acc = accumulator()
    feed(acc, model, SGD(model.parameters()), 3)
    acc.reset_accumulation()
    assert all(parameter.grad is None for parameter in model.parameters())
    assert (acc.accumulation_step, acc.total_loss, acc.total_samples) == (0, 0.0, 0)


def test_stats_are_zero_when_empty_and_bounded_when_full() -> None:
    acc = accumulator()
    stats = acc.get_accumulation_stats()
    assert [stats[name] for name in ("avg_gradient_norm", "avg_memory_usage_gb", "avg_accumulation_time")] == [0.0] * 3
    assert set(stats) == {
        "accumulation_steps",
        "current_step",
        "total_loss",
        "total_samples",
        "avg_gradient_norm",
        "avg_memory_usage_gb",
        "avg_accumulation_time",
        "gradient_norms",
        "memory_usage",
        "accumulation_times",
        "mixed_precision_enabled",
        "mp_stats",
    }
    acc.accumulation_times.extend([1.0] * 5000)
    assert len(acc.get_accumulation_stats()["accumulation_times"]) == 1000


def test_effective_batch_and_learning_rate_scale() -> None:
    acc = accumulator(accumulation_steps=8)
    assert acc.get_effective_batch_size(4) == 32
    assert acc.get_learning_rate_scale() == 0.125
    with pytest.raises(ValueError, match="actual batch size must be >= 1"):
        acc.get_effective_batch_size(0)


def test_logging_settings(caplog: pytest.LogCaptureFixture) -> None:
    caplog.set_level(logging.DEBUG, logger="onyx.server.features.ads.gradient_accumulation")
    model = make_model()
    quiet = accumulator(accumulation_steps=1, log_accumulation=False, log_memory_usage=False)
    feed(quiet, model, SGD(model.parameters()), 1)
    assert caplog.text == ""
    assert not quiet.memory_usage
    loud = accumulator(accumulation_steps=1)
    feed(loud, model, SGD(model.parameters()), 1)
    assert "update 1: 1 micro-batches" in caplog.text
    assert "memory in use" in caplog.text
    assert len(loud.memory_usage) == 1
    assert len(loud.memory_peaks) == 1


def test_profiling_keeps_the_time_of_each_phase() -> None:
    model = make_model()
    acc = accumulator(accumulation_steps=2, profile_accumulation=True)
    feed(acc, model, SGD(model.parameters()), 2)
    times = acc.get_accumulation_stats()["phase_times"]
    assert set(times) == {"backward", "optimizer"}
    assert min(times.values()) > 0


def test_state_round_trip_starts_an_open_window_afresh(caplog: pytest.LogCaptureFixture) -> None:
    model = make_model()
    acc = accumulator(accumulation_steps=2)
    feed(acc, model, SGD(model.parameters()), 5)
    other = accumulator(accumulation_steps=2)
    other.load_state_dict(acc.state_dict())
    assert other.current_step == 2
    assert list(other.gradient_norms) == list(acc.gradient_norms)
    assert other.accumulation_step == 0
    assert "starts afresh" in caplog.text


def test_the_scaler_is_never_none_and_does_nothing_on_a_cpu() -> None:
    acc = accumulator()
    assert isinstance(acc.scaler, torch.amp.GradScaler)
    assert acc.scaler.is_enabled() is torch.accelerator.is_available()


def test_anything_but_a_config_is_refused() -> None:
    with pytest.raises(ValueError, match="config must be a GradientAccumulationConfig"):
        GradientAccumulator({"accumulation_steps": 4})  # type: ignore[arg-type]
    acc = accumulator()
    with pytest.raises(ValueError, match="config must be a GradientAccumulationConfig"):
        acc.config = None  # type: ignore[assignment]


def test_anything_but_a_scaler_is_refused() -> None:
    model = make_model()
    with pytest.raises(ValueError, match="scaler must be a torch GradScaler"):
        accumulator().accumulate_gradients(
            mean_loss(model, make_batches([2])[0]), model, SGD(model.parameters()), scaler="fp16"
        )
