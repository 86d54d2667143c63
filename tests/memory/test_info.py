import json

from onyx.memory.device import Device
from onyx.memory.info import gpu_info

MB = 2**20


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
