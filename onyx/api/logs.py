"""The logs of a job's processes, for its owner: without tracebacks, paths of the host or secrets."""

import re
from collections.abc import Iterator
from contextlib import suppress
from itertools import islice

from onyx.api.schemas.training import LogLine, LogPage
from onyx.api.scrubbing import scrub
from onyx.settings import Settings

LONGEST_LINE = 2**20
"""A line without end is cut into pieces of so many characters."""

_NUMBER = re.compile(r"[1-9][0-9]{0,17}")
_TRACE = re.compile(r"^(Traceback \(most recent call last\)|  File \"|    |During handling|The above exception)")


def page(settings: Settings, job_id: str, after: int, limit: int) -> LogPage:
    """Lines beyond number `after`."""
    found = list(islice(_lines(settings, job_id), after, after + limit + 1))
    lines = [LogLine(line=after + place, source=source, text=text) for place, (source, text) in enumerate(found, 1)]
    return LogPage(data=lines[:limit], has_more=len(found) > limit)


def _lines(settings: Settings, job_id: str) -> Iterator[tuple[str, str]]:
    attempts = settings.job_dir(job_id) / "attempts"
    # By number: whatever else stands among the attempts is none.
    logs = [log for log in attempts.glob("*/*.log") if _NUMBER.fullmatch(log.parent.name) and log.is_file()]
    for log in sorted(logs, key=lambda path: (int(path.parent.name), path.name)):
        with suppress(FileNotFoundError), log.open(errors="replace") as file:  # a clean-up may have come before
            for line in iter(lambda: file.readline(LONGEST_LINE), ""):
                if not _TRACE.match(line):
                    yield f"attempt {log.parent.name} {log.stem}", scrub(line.rstrip("\n"), settings)
