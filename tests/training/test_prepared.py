"""What crosses the border between jobs/ and training/."""

import subprocess
import sys
from pathlib import Path

from onyx.memory.device import Device
from onyx.training.prepared import PrepareRequest, Roots
from onyx.training.spec import DataSpec, JobSpec


def test_the_types_need_no_torch() -> None:
    code = (
        "import sys, onyx.training.prepared; print([m for m in ('torch', 'transformers', 'numpy') if m in sys.modules])"
    )
    assert subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True).stdout == "[]\n"


def test_reading_prepared_data_needs_neither_torch_nor_datasets_nor_pyarrow() -> None:
    code = (
        "import sys, onyx.training.data.store\n"
        "print([m for m in ('torch', 'transformers', 'datasets', 'pyarrow', 'pandas') if m in sys.modules])"
    )
    assert subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True).stdout == "[]\n"


def test_a_request_goes_through_a_file() -> None:
    device = Device(kind="cpu", index=0, name="CPU", memory_total=10, memory_free=9, cores=1)
    request = PrepareRequest(
        spec=JobSpec(model="onyx/tiny", data=DataSpec(texts=["a"])),
        roots=Roots(home=Path("/h"), models=Path("/m"), jobs=("ftjob-1",), remote_code=("a/b",)),
        devices=(device,),
        out=Path("/o"),
    )
    assert PrepareRequest.model_validate_json(request.model_dump_json()) == request
