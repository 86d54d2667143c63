"""The values that jobs/ and training/ exchange."""

import subprocess
import sys
from pathlib import Path

from onyx.memory.devices.device import Device
from onyx.training.contract.prepared import PrepareRequest, Roots
from onyx.training.contract.spec import DataSpec, JobSpec


def test_the_types_need_no_torch() -> None:
    heavy = "('torch', 'transformers', 'numpy')"
    code = f"import sys, onyx.training.contract.prepared; print([m for m in {heavy} if m in sys.modules])"
    assert subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True).stdout == "[]\n"


def test_reading_prepared_data_needs_neither_torch_nor_datasets_nor_pyarrow() -> None:
    code = (
        "import sys, onyx.training.data.token_store\n"
        "print([m for m in ('torch', 'transformers', 'datasets', 'pyarrow', 'pandas') if m in sys.modules])"
    )
    assert subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True).stdout == "[]\n"


def test_a_request_is_read_as_it_was_written() -> None:
    device = Device(kind="cpu", index=0, name="CPU", memory_total=10, memory_free=9, cores=1)
    request = PrepareRequest(
        spec=JobSpec(model="onyx/tiny", data=DataSpec(texts=["a"])),
        roots=Roots(home=Path("/h"), models=Path("/m"), jobs=("ftjob-1",), remote_code=("a/b",)),
        devices=(device,),
        out=Path("/o"),
    )
    assert PrepareRequest.model_validate_json(request.model_dump_json()) == request
