"""Whose turn it is. Pure functions: the claim asks, the database decides."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from onyx.jobs.values import DeviceNeed, RunnerDevice

PATIENCE_SECONDS = 600.0
"""A job that waits longer for several devices at once keeps smaller jobs from slipping in before it."""


@dataclass(frozen=True, kw_only=True)
class Waiting:
    """The waiting jobs of one owner that need the same devices."""

    owner: str
    """Whose."""

    needs: tuple[DeviceNeed, ...]
    """What each needs; empty for jobs that are to be prepared."""

    key: str | None
    """`needs` as the database spells it."""

    oldest: float
    """When the first of them was created."""

    since: float
    """When the first of them began to wait."""


@dataclass(frozen=True, kw_only=True)
class Owners:
    """What each owner already has."""

    busy: Mapping[str, int]
    """How many jobs are in hand."""

    served: Mapping[str, float]
    """When an owner last got devices."""

    limit: int | None
    """How many jobs one owner may have in hand."""


def choose(
    groups: Sequence[Waiting], owners: Owners, devices: Sequence[RunnerDevice], free: Sequence[RunnerDevice], now: float
) -> tuple[Waiting, tuple[RunnerDevice, ...]] | None:
    """The next group and its devices: fewest in hand first, then least recently served, then oldest."""
    for group in sorted(groups, key=lambda group: _turn(group, owners)):
        if owners.limit is not None and owners.busy.get(group.owner, 0) >= owners.limit:
            continue
        chosen = assign(group.needs, free)
        if chosen is not None:
            return group, chosen
        if now - group.since > PATIENCE_SECONDS and assign(group.needs, devices) is not None:
            return None  # devices become free one by one: let them gather
    return None


def _turn(group: Waiting, owners: Owners) -> tuple[int, float, float, str]:
    return owners.busy.get(group.owner, 0), owners.served.get(group.owner, 0.0), group.oldest, group.owner


def assign(needs: Sequence[DeviceNeed], devices: Sequence[RunnerDevice]) -> tuple[RunnerDevice, ...] | None:
    """A device for each need, in order; None when they do not suffice. Named needs choose first."""
    spare = {device.name: device for device in devices}
    chosen: dict[int, RunnerDevice] = {}
    for rank, need in sorted(enumerate(needs), key=lambda ranked: ranked[1].name is None):
        match = next((device for device in spare.values() if _suits(device, need)), None)
        if match is None:
            return None
        chosen[rank] = spare.pop(match.name)
    return tuple(chosen[rank] for rank in range(len(needs)))


def _suits(device: RunnerDevice, need: DeviceNeed) -> bool:
    return device.kind == need.kind and need.name in (None, device.name)
