"""The GPUs this process may use: their order, CUDA_VISIBLE_DEVICES, and what CUDA itself says."""

import asyncio
import json
import os
import sys
from pathlib import Path
from types import SimpleNamespace
from typing import Any
from unittest.mock import patch

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from onyx.memory.devices.device import Device
from onyx.memory.devices.gpus import gpu_info, list_gpus_async, select, visible
from tests.memory.devices.nvidia_smi_output import FOUR, MB, ONE, UUIDS, Install, list_gpus, printing
from tests.waiting import PATIENCE


async def let_it_answer(gate: Path) -> None:
    """Wait until the program reads from the gate, and let it go on."""
    while True:
        try:
            writer = os.open(gate, os.O_WRONLY | os.O_NONBLOCK)
        except OSError:  # there is no reader yet
            await asyncio.sleep(0.01)
            continue
        os.close(writer)
        return


def test_the_event_loop_goes_on_while_a_program_hangs(install: Install, tmp_path: Path) -> None:
    """The loop itself lets the program answer: a blocked loop would wait for ever."""
    os.mkfifo(tmp_path / "gate")
    install(f"cat {tmp_path}/gate; {printing(ONE)}")

    async def ask() -> list[Device]:
        query = asyncio.create_task(list_gpus_async(timeout=PATIENCE))
        await let_it_answer(tmp_path / "gate")
        return await query

    assert len(asyncio.run(ask())) == 1


def test_callers_at_the_same_time_share_one_query(install: Install, tmp_path: Path) -> None:
    os.mkfifo(tmp_path / "gate")
    install(f"echo run >> {tmp_path}/runs; cat {tmp_path}/gate; {printing(ONE)}")

    async def ask() -> list[list[Device]]:
        impatient = asyncio.create_task(list_gpus_async(timeout=PATIENCE))
        others = [asyncio.create_task(list_gpus_async(timeout=PATIENCE)) for _ in range(20)]
        await asyncio.sleep(0)  # each has begun its call
        impatient.cancel()
        await let_it_answer(tmp_path / "gate")
        return await asyncio.gather(*others)

    answers = asyncio.run(ask())
    assert [len(answer) for answer in answers] == [1] * 20
    assert (tmp_path / "runs").read_text() == "run\n"


@pytest.mark.parametrize(
    ("setting", "expected"),
    [
        ("0,1,2,3", [0, 1, 2, 3]),
        ("2", [2]),
        ("3,1", [3, 1]),
        (" 1 , 2", [1, 2]),
        ("1gpu,2", [1, 2]),
        ("", []),
        ("-1", []),
        ("0,-1,1", [0]),
        ("0,9,1", [0]),
        ("NoDevFiles", []),
        ("1,1", []),
        ("GPU-bbbb,GPU-aaaa1", [2, 1]),
        (f"{UUIDS[3]},{UUIDS[0]}", [3, 0]),
        ("GPU-aaaa", []),
        ("GPU-bbbb,GPU-aaaa,GPU-cccc", [2]),
        ("GPU-bbbb,0", [2]),
        ("0,GPU-bbbb", [0]),
        ("GPU-b,GPU-bbbb", []),
        ("MIG-1234", []),
    ],
)
def test_visible_devices_are_numbered_as_cuda_does(
    install: Install, monkeypatch: pytest.MonkeyPatch, setting: str, expected: list[int]
) -> None:
    install(printing(FOUR))
    monkeypatch.setenv("CUDA_VISIBLE_DEVICES", setting)
    gpus = list_gpus()
    assert [gpu.uuid for gpu in gpus] == [UUIDS[number] for number in expected]
    assert [gpu.index for gpu in gpus] == list(range(len(expected)))


def card(index: int, uuid: str, name: str = "A100") -> Device:
    return Device(kind="cuda", index=index, name=name, uuid=uuid, memory_total=40 * MB, memory_free=30 * MB)


CARDS = [card(index, uuid) for index, uuid in enumerate(UUIDS)]
NUMBERS = st.sampled_from(["0", "1", "2", "3", "4", "17", "-1", "-0", "+2", " 1", "2x", "x", "", "GPU-bbbb"])
NAMES = st.sampled_from(["GPU-aaaa0", "GPU-aaaa", "GPU-b", "GPU-bbbb", "GPU-cccc", "GPU-x", "MIG-1", " GPU-b", "0"])


def seen_by_torch(setting: str) -> list[str]:
    """Torch's own reading of the variable, which it also makes without a GPU."""
    with patch.dict(os.environ, {"CUDA_VISIBLE_DEVICES": setting}):
        names: list[Any] = torch.cuda._parse_visible_devices()
    if names and isinstance(names[0], str):
        names = torch.cuda._transform_uuid_to_ordinals(names, UUIDS)
    known = next((place for place, number in enumerate(names) if number >= len(UUIDS)), len(names))
    return [UUIDS[number] for number in names[:known]]


@given(st.lists(NUMBERS, max_size=4) | st.lists(NAMES, min_size=1, max_size=4))
def test_visible_devices_are_those_that_torch_counts(entries: list[str]) -> None:
    setting = ",".join(entries)
    if not setting.startswith("MIG-"):
        assert [gpu.uuid for gpu in visible(setting, CARDS)] == seen_by_torch(setting)


def test_mig_instances_are_visible_by_name_only() -> None:
    cards = [*CARDS[:2], card(2, "MIG-aaaa"), card(3, "MIG-bbbb")]
    assert visible(None, cards) == CARDS[:2]
    assert visible("MIG-bbbb", cards) == [card(0, "MIG-bbbb")]
    assert visible("2", cards) == []


def test_an_unreadable_card_does_not_shift_the_others() -> None:
    assert [gpu.index for gpu in visible(None, [CARDS[0], CARDS[2]])] == [0, 2]


def test_a_warning_says_once_that_cuda_may_order_cards_otherwise(
    install: Install, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    install(printing(f"{ONE}\n{FOUR.splitlines()[1]}"))
    monkeypatch.setenv("CUDA_DEVICE_ORDER", "PCI_BUS_ID")
    assert len(list_gpus()) == 2
    assert caplog.text == ""
    monkeypatch.delenv("CUDA_DEVICE_ORDER")
    list_gpus()
    list_gpus()
    assert caplog.text.count("set CUDA_DEVICE_ORDER=PCI_BUS_ID") == 1


def torch_with(order: list[int], contexts: list[int], initialized: bool = True) -> SimpleNamespace:
    """Torch on a host with the four cards: which number each has, and where this process has a context."""

    def memory(index: int) -> tuple[int, int]:
        assert index in contexts, "asking would have made a context"
        return 7 * MB, 39 * MB

    def properties(index: int) -> SimpleNamespace:
        uuid = UUIDS[order[index]].removeprefix("GPU-")
        return SimpleNamespace(uuid=uuid, name="A100", total_memory=40000 * MB)

    return SimpleNamespace(
        cuda=SimpleNamespace(
            is_initialized=lambda: initialized,
            device_count=lambda: len(order),
            get_device_properties=properties,
            mem_get_info=memory,
        ),
        _C=SimpleNamespace(_cuda_hasPrimaryContext=lambda index: index in contexts),
    )


def test_where_cuda_runs_its_own_numbers_count(install: Install, monkeypatch: pytest.MonkeyPatch) -> None:
    install(printing(FOUR))
    monkeypatch.setenv("CUDA_VISIBLE_DEVICES", "1")  # changed after CUDA had started: without effect, as in CUDA
    monkeypatch.setitem(sys.modules, "torch", torch_with(order=[3, 0], contexts=[0]))
    first, second = list_gpus()
    assert (first.index, first.uuid, first.temperature) == (0, UUIDS[3], 33)
    assert (first.memory_free, first.memory_total) == (7 * MB, 39 * MB)
    assert (second.index, second.uuid, second.temperature) == (1, UUIDS[0], 30)
    assert (second.memory_free, second.memory_total) == (40000 * MB, 40000 * MB)


def test_torch_without_cuda_running_is_not_asked(install: Install, monkeypatch: pytest.MonkeyPatch) -> None:
    install(printing(FOUR))
    monkeypatch.setitem(sys.modules, "torch", torch_with(order=[3], contexts=[], initialized=False))
    assert [gpu.uuid for gpu in list_gpus()] == UUIDS


def test_torch_alone_knows_the_cards_it_works_on(install: Install, monkeypatch: pytest.MonkeyPatch) -> None:
    install("exit 9")
    monkeypatch.setitem(sys.modules, "torch", torch_with(order=[2, 3], contexts=[0]))
    assert [(gpu.label, gpu.uuid, gpu.memory_free) for gpu in list_gpus()] == [("cuda:0", UUIDS[2], 7 * MB)]


def test_a_torch_that_fails_is_no_exception(
    install: Install, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    def fail(_index: int) -> None:
        raise RuntimeError("CUDA error: an illegal memory access was encountered")

    install(printing(FOUR))
    broken = torch_with(order=[0], contexts=[0])
    broken.cuda.get_device_properties = fail
    monkeypatch.setitem(sys.modules, "torch", broken)
    assert list_gpus() == []
    assert "illegal memory access" in caplog.text


def test_select_takes_the_ids_in_their_order() -> None:
    assert select(CARDS, [2, 0]) == [CARDS[2], CARDS[0]]


@pytest.mark.parametrize(
    ("ids", "message"),
    [
        ([], "no id was given; there are 0, 1, 2, 3"),
        ([7], "for the ids 7: there are 0, 1, 2, 3"),
        ([0, 7, -1], "for the ids 7, -1: there are"),
        ([True], "for the ids True"),
        (["0"], "for the ids '0'"),
        ([1, 1], "an id is there twice"),
    ],
)
def test_select_names_the_ids_that_are_not_there(ids: list[int], message: str) -> None:
    with pytest.raises(ValueError, match=f"^No valid GPUs found.*{message}"):
        select(CARDS, ids)


def test_select_where_there_are_none() -> None:
    with pytest.raises(ValueError, match="No valid GPUs found for the ids 0: there are none"):
        select([], [0])


def test_every_gpu_under_its_id_in_the_contracts_fields_and_units() -> None:
    device = Device(
        kind="cuda",
        index=3,
        name="NVIDIA A100-SXM4-40GB",
        uuid="GPU-3",
        memory_total=40960 * MB,
        memory_free=30720 * MB,
        utilization=37,
        temperature=41,
        power_draw=60.25,
    )
    assert gpu_info([device]) == {
        "gpu_3": {
            "id": 3,
            "name": "NVIDIA A100-SXM4-40GB",
            "memory_total": 40960,
            "memory_used": 10240,
            "memory_free": 30720,
            "memory_utilization": 25,
            "gpu_utilization": 37,
            "temperature": 41,
            "power_draw": 60.25,
        }
    }


def test_a_missing_reading_is_null_in_json() -> None:
    device = Device(kind="cuda", index=0, name="T4", memory_total=3, memory_free=1)
    answer = json.loads(json.dumps(gpu_info([device]), allow_nan=False))["gpu_0"]
    assert (answer["gpu_utilization"], answer["temperature"], answer["power_draw"]) == (None, None, None)
    assert answer["memory_utilization"] == 66.67


def test_the_cpu_is_no_gpu() -> None:
    assert gpu_info([Device(kind="cpu", index=0, name="EPYC", memory_total=1, memory_free=1, cores=1)]) == {}
