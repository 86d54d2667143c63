"""`onyx doctor`: is everything here that a service needs, and if not, what to do?"""

import sys
from dataclasses import asdict

import typer

from onyx.cli.checks import CHECKS, CheckResult
from onyx.cli.operator import read_settings
from onyx.cli.options import Json
from onyx.cli.output import emit, say

_COLOURS = {"ok": typer.colors.GREEN, "warn": typer.colors.YELLOW, "fail": typer.colors.RED}


def doctor(as_json: Json = False) -> None:
    """Check this host. Exit status 1 when something would keep a job from running."""
    settings = read_settings()
    found: list[CheckResult] = []
    for check in CHECKS:
        finding = check(settings)
        found.append(finding)
        if not as_json:
            _tell(finding)
    if as_json:
        emit([asdict(finding) for finding in found])
    if any(finding.level == "fail" for finding in found):
        raise typer.Exit(1)


def _tell(finding: CheckResult) -> None:
    mark = f"{finding.level:<4}"
    if sys.stdout.isatty():
        mark = typer.style(mark, fg=_COLOURS[finding.level], bold=True)
    say(f"{mark} {finding.name:<12} {finding.words}")
    if finding.advice:
        say(f"                  → {finding.advice}")
