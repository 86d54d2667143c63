"""run/runner.log, where an embedded runner writes: nobody else looks after it, so it begins anew by itself."""

import logging
import os
from io import TextIOWrapper
from logging.handlers import RotatingFileHandler

from onyx.settings import Settings

NAME = "runner.log"
_OUTPUTS = (1, 2)


def runner_log(settings: Settings) -> logging.Handler | None:
    """For a process whose standard error is that file; None for one whose output is somebody else's to keep."""
    path = settings.run_dir / NAME
    if not path.exists() or not os.path.samestat(os.fstat(2), path.stat()):
        return None
    return RunnerLog(path, maxBytes=settings.log_bytes, backupCount=settings.log_files)


class RunnerLog(RotatingFileHandler):
    """Log lines by size. What is written past logging, such as the last words of a crash, follows to the new file."""

    def _open(self) -> TextIOWrapper:
        stream = super()._open()
        for output in _OUTPUTS:
            os.dup2(stream.fileno(), output)
        return stream
