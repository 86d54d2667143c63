"""Being told to stop: a flag that everything which takes time looks at."""

import signal
from types import FrameType


class Stop:
    """Set by SIGTERM. The rank then drops its share, saves the last finished update and leaves."""

    def __init__(self) -> None:
        self.requested = False

    def listen(self) -> "Stop":
        signal.signal(signal.SIGTERM, self._request)
        signal.signal(signal.SIGINT, signal.SIG_IGN)  # Ctrl-C in a terminal is the runner's to handle
        return self

    def _request(self, number: int, frame: FrameType | None) -> None:
        self.requested = True
