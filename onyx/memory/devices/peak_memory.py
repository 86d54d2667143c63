"""The most memory that this process has taken on the CPU, to be compared with what a plan predicted.

The kernel keeps one high-water mark per process, files and shared pages included. It is reset once the model is
loaded, and the growth of files since then is subtracted. Needs no torch.
"""

import contextlib
from dataclasses import dataclass
from pathlib import Path

RESET_MARK = "5"
"""What /proc/self/clear_refs takes to set the mark back to what is resident now."""


@dataclass(frozen=True, kw_only=True)
class Watermark:
    """Memory of a process that has loaded its model and not trained yet."""

    held: int
    """Bytes of weights, buffers and optimizer state."""

    resident: int
    """Bytes in memory then."""

    files: int
    """Of these, bytes that files back."""

    @classmethod
    def begin(cls, held: int) -> "Watermark":
        """Start to measure now."""
        with contextlib.suppress(OSError):  # where that is not allowed, earlier peaks count too
            Path("/proc/self/clear_refs").write_text(RESET_MARK)
        status = _status()
        return cls(held=held, resident=status["VmRSS"], files=_files(status))

    def peak(self) -> int:
        """The most bytes since, in the plan's terms: what is held, and what came on top."""
        status = _status()
        grown = status["VmHWM"] - self.resident - max(0, _files(status) - self.files)
        return self.held + max(0, grown)

    def grown(self) -> int:
        """Bytes that are held now and were not then, files not counted."""
        status = _status()
        return max(0, status["VmRSS"] - self.resident - (_files(status) - self.files))


def _files(status: dict[str, int]) -> int:
    return status["RssFile"] + status["RssShmem"]


def _status() -> dict[str, int]:
    """The sizes in /proc/self/status, in bytes."""
    lines = (text.split() for text in Path("/proc/self/status").read_text().splitlines())
    return {words[0].rstrip(":"): int(words[1]) * 1024 for words in lines if words[-1] == "kB"}
