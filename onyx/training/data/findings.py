"""Findings: what is wrong with a line of the data, as its number, a code and a reason. Needs no torch."""

from collections import Counter
from dataclasses import dataclass, field
from typing import Any, Literal

from onyx.training.contract.errors import DataError

Part = Literal["training", "evaluation"]

CAP = 100
"""Findings that are stored. All are counted."""

FILE_CODES = {"training": "invalid_training_file", "evaluation": "invalid_validation_file"}
PARAMS = {"training": "data", "evaluation": "data.evaluation"}


@dataclass(frozen=True, slots=True)
class Finding:
    """One thing that is wrong with one line."""

    code: str
    message: str

    def at(self, place: str) -> "Finding":
        """The same finding, saying in which part of the line it is."""
        return Finding(self.code, f"{place}: {self.message}")


@dataclass
class Findings:
    """Everything that is wrong with one part of the data."""

    part: Part = "training"
    cap: int = CAP
    lines: int = 0
    """Lines read, good and bad."""

    bad: int = 0
    """Lines that cannot be used."""

    totals: Counter[str] = field(default_factory=Counter)
    """How often each code was found."""

    kept: list[dict[str, Any]] = field(default_factory=list)

    def add(self, line: int, found: list[Finding]) -> None:
        """Note a bad line."""
        self.bad += 1
        for each in found:
            self.totals[each.code] += 1
            if len(self.kept) < self.cap:
                self.kept.append({"line": line, "code": each.code, "message": each.message, "part": self.part})

    def raise_if_unusable(self, tolerated: float) -> None:
        """DataError when more lines are bad than the job tolerates."""
        if self.lines == 0:
            raise DataError("empty_file", f"the {self.part} data is empty: give at least one sample", param=self.param)
        if self.bad > tolerated * self.lines:
            raise DataError(FILE_CODES[self.part], self.summary(), param=self.param, findings=self.kept)
        if self.bad == self.lines:
            raise DataError("no_samples", self.summary(), param=self.param, findings=self.kept)

    @property
    def param(self) -> str:
        """The field of the job that names the data."""
        return PARAMS[self.part]

    def summary(self) -> str:
        """One sentence for people."""
        codes = ", ".join(f"{count} × {code}" for code, count in self.totals.most_common())
        first = f" First: line {self.kept[0]['line']}: {self.kept[0]['message']}." if self.kept else ""
        return f"{self.bad} of {self.lines} lines of the {self.part} data cannot be used: {codes}.{first}"
