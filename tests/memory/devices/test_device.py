from dataclasses import FrozenInstanceError
from typing import Any

import pytest

from onyx.memory.devices.device import Device

GB = 2**30

A100: dict[str, Any] = {
    "kind": "cuda",
    "index": 1,
    "name": "NVIDIA A100-SXM4-40GB",
    "uuid": "GPU-1",
    "memory_total": 40 * GB,
    "memory_free": 30 * GB,
    "utilization": 12.0,
    "temperature": 41.0,
    "power_draw": 60.5,
}


def test_used_memory_is_what_is_not_free() -> None:
    assert Device(**A100).memory_used == 10 * GB


def test_label_is_torchs_name_of_the_device() -> None:
    assert Device(**A100).label == "cuda:1"
    assert Device(kind="cpu", index=0, name="EPYC", memory_total=1, memory_free=1, cores=2).label == "cpu:0"


def test_readings_that_were_not_taken_are_none() -> None:
    device = Device(kind="cuda", index=0, name="T4", memory_total=16 * GB, memory_free=0)
    assert (device.uuid, device.cores, device.speed) == (None, None, None)
    assert (device.utilization, device.temperature, device.power_draw) == (None, None, None)


def test_a_device_does_not_change() -> None:
    with pytest.raises(FrozenInstanceError):
        Device(**A100).memory_free = 0  # type: ignore[misc]


@pytest.mark.parametrize(
    ("field", "value"),
    [
        ("kind", "tpu"),
        ("index", -1),
        ("index", True),
        ("index", 1.0),
        ("name", " "),
        ("name", None),
        ("uuid", ""),
        ("memory_total", 0),
        ("memory_total", 1.5),
        ("memory_free", -1),
        ("memory_free", 41 * GB),
        ("cores", 0),
        ("utilization", 100.1),
        ("utilization", -1),
        ("utilization", float("nan")),
        ("temperature", float("inf")),
        ("temperature", -300),
        ("power_draw", -0.1),
        ("power_draw", "60"),
        ("speed", 0),
        ("speed", float("inf")),
    ],
)
def test_a_wrong_value_is_refused_by_its_field(field: str, value: object) -> None:
    with pytest.raises(ValueError, match=field):
        Device(**{**A100, field: value})


def test_an_imagined_card_is_empty_and_counted_in_binary_gigabytes() -> None:
    card = Device.imagined({"name": "A100", "memory_gb": 40}, 2)
    assert (card.label, card.name, card.uuid, card.speed) == ("cuda:2", "A100", None, None)
    assert card.memory_total == card.memory_free == 40 * GB


def test_an_imagined_card_may_have_part_of_a_gigabyte_and_a_speed() -> None:
    card = Device.imagined({"name": "half", "memory_gb": 0.5, "speed": 2}, 0)
    assert (card.memory_total, card.speed) == (GB // 2, 2)


@pytest.mark.parametrize(
    ("card", "message"),
    [
        ({"name": "A100"}, "a card needs memory_gb"),
        ({}, "a card needs name and memory_gb"),
        ({"name": "A100", "memory_gb": 40, "memory": 40}, "not memory$"),
        ({"name": "", "memory_gb": 40}, "name must be"),
        ({"name": 7, "memory_gb": 40}, "name must be"),
        ({"name": "A100", "memory_gb": 0}, "memory_gb must be"),
        ({"name": "A100", "memory_gb": -1}, "memory_gb must be"),
        ({"name": "A100", "memory_gb": "40"}, "memory_gb must be"),
        ({"name": "A100", "memory_gb": True}, "memory_gb must be"),
        ({"name": "A100", "memory_gb": float("nan")}, "memory_gb must be"),
        ({"name": "A100", "memory_gb": 10**400}, "memory_gb must be"),
        ({"name": "A100", "memory_gb": 40, "speed": 0}, "speed must be"),
        ("A100", "a card is like"),
        (None, "a card is like"),
    ],
)
def test_an_imagined_card_says_what_is_wrong_with_it(card: Any, message: str) -> None:
    with pytest.raises(ValueError, match=message):
        Device.imagined(card, 0)
