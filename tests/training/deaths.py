"""Deaths at chosen moments: what a test rank does to itself before it begins. Named in `Job.hook`."""

import os
import signal
from typing import Any, NoReturn

from onyx import fs
from onyx.training.state.journal import Journal


def before_the_line() -> None:
    """Memory ran out, all was computed with a finer cut, and the journal does not know yet."""
    Journal.memory = _die  # type: ignore[method-assign]


def before_the_stretch() -> None:
    """The journal knows, and the stretch of the reference is not stored yet."""
    fs.publish_directory = _die


def _die(*_: Any, **__: Any) -> NoReturn:
    os.kill(os.getpid(), signal.SIGKILL)
    raise AssertionError
