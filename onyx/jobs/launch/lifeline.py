"""The runner's end of a child's lifeline: a pipe whose silence or end tells the child that its runner is gone."""

import contextlib
import os


class Lifeline:
    """A pipe of which the runner keeps the writing end and the child gets the reading one."""

    def __init__(self) -> None:
        self.reader, self._writer = os.pipe()
        os.set_blocking(self._writer, False)  # a child that reads nothing must not stop the runner

    def beat(self) -> None:
        """One byte: the runner lives."""
        with contextlib.suppress(BlockingIOError, BrokenPipeError, OSError):
            os.write(self._writer, b".")

    def handed_over(self) -> None:
        """The child has its end: ours would keep the pipe open."""
        if self.reader >= 0:
            os.close(self.reader)
            self.reader = -1

    def close(self) -> None:
        """End of file for the child."""
        self.handed_over()
        if self._writer >= 0:
            os.close(self._writer)
            self._writer = -1
