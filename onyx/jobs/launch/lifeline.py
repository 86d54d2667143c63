"""The runner's end of a child's lifeline: a pipe whose silence or end means to the child that its runner is dead."""

import contextlib
import os


class Lifeline:
    """A pipe: the runner keeps the writing end, the child gets the reading end."""

    def __init__(self) -> None:
        self.reader, self._writer = os.pipe()
        os.set_blocking(self._writer, False)  # a child that reads nothing must not stop the runner

    def beat(self) -> None:
        """Write one byte: the runner lives."""
        with contextlib.suppress(BlockingIOError, BrokenPipeError, OSError):
            os.write(self._writer, b".")

    def handed_over(self) -> None:
        """The child has the reading end: close this process's copy."""
        if self.reader >= 0:
            os.close(self.reader)
            self.reader = -1

    def close(self) -> None:
        """The child reads end of file."""
        self.handed_over()
        if self._writer >= 0:
            os.close(self._writer)
            self._writer = -1
