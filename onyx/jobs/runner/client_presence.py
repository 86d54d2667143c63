"""Processes for whose sake an embedded runner stays: each API process or script that opened its home on this host.

Each leaves a mark that names it. Nobody has to take it away: a process that is dead is known to be.
"""

from pathlib import Path

from onyx.jobs.process_identity import ProcessIdentity, this_process

_FOLDER = "companions"


def join(run_dir: Path) -> None:
    """This process wants a runner from now on."""
    here = this_process()
    mark = run_dir / _FOLDER / f"{here.host}:{here.boot}:{here.pid}:{here.started}"
    if not mark.exists():
        mark.parent.mkdir(parents=True, exist_ok=True)
        mark.touch()


def living(run_dir: Path) -> list[ProcessIdentity]:
    """Those of this host that still run. The marks of others go, except those of other hosts."""
    here = this_process()
    found = []
    for mark in sorted((run_dir / _FOLDER).glob("*")):
        holder = _read(mark.name)
        if holder is None or holder.is_dead(here):
            mark.unlink(missing_ok=True)
        elif holder.host == here.host:
            found.append(holder)
    return found


def others(run_dir: Path) -> list[ProcessIdentity]:
    """The living without this process."""
    return [holder for holder in living(run_dir) if holder != this_process()]


def _read(name: str) -> ProcessIdentity | None:
    parts = name.rsplit(":", 3)
    if len(parts) != 4 or not (parts[2].isdigit() and parts[3].isdigit()):
        return None
    return ProcessIdentity(host=parts[0], boot=parts[1], pid=int(parts[2]), started=int(parts[3]))
