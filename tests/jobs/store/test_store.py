import subprocess
import sys

from tests.jobs.store_harness import StoreHarness


async def test_the_marker_is_made_once(harness: StoreHarness) -> None:
    marker = await harness.store.home_marker()
    assert len(marker) == 32
    assert await harness.store.home_marker() == marker


def test_a_store_needs_no_torch() -> None:
    code = (
        "import sys, onyx.jobs.store.store; print([name for name in ('torch', 'transformers') if name in sys.modules])"
    )
    assert subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True).stdout == "[]\n"
