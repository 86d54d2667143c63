"""Stop strings: what of a growing text may be shown, and where it ends. Needs no torch."""

UNFINISHED = "\ufffd"
"""What a decoder puts for bytes that are no character yet."""


class Visible:
    """The part of an answer that nothing which follows can take back."""

    def __init__(self, stop: tuple[str, ...]) -> None:
        self._stop = stop
        self._longest = max(map(len, stop), default=0)
        self._shown = 0
        self.stopped = False

    def more(self, text: str, *, last: bool = False) -> str:
        """The next piece to show of an answer that is `text` so far."""
        end = self._end(text)
        if end is not None:
            self.stopped = True
        else:
            end = len(text) if last else self._safe(text)
        piece = text[self._shown : end]
        self._shown = max(self._shown, end)
        return piece

    def _end(self, text: str) -> int | None:
        """Where the first stop string begins. What was shown holds no beginning of one."""
        found = [place for each in self._stop if (place := text.find(each, self._shown)) >= 0]
        return min(found, default=None)

    def _safe(self, text: str) -> int:
        """Up to where no half of a character and no beginning of a stop string is."""
        text = text.rstrip(UNFINISHED)
        for start in range(max(self._shown, len(text) - self._longest + 1), len(text)):
            if any(each.startswith(text[start:]) for each in self._stop):
                return start
        return max(self._shown, len(text))
