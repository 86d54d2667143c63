"""Imported by every Python process of a test's home: a rank waits after an update for which the home has a brake file.

A test that kills or pauses a job after an update thus finds the job there, however slow the test is.
"""

import importlib.abc
import importlib.machinery
import sys
import time
from collections.abc import Sequence
from pathlib import Path
from types import ModuleType
from typing import Any

MODULE = "onyx.training.contract.metrics_csv"


class Brake(importlib.abc.MetaPathFinder):
    """Import hook that changes the module that writes metrics.csv when it is imported."""

    def find_spec(
        self, name: str, path: Sequence[str] | None, target: ModuleType | None = None
    ) -> importlib.machinery.ModuleSpec | None:
        if name != MODULE:
            return None
        sys.meta_path.remove(self)
        spec = importlib.machinery.PathFinder.find_spec(name, path)
        assert spec is not None
        assert spec.loader is not None
        execute = spec.loader.exec_module

        def execute_and_change(module: ModuleType) -> None:
            execute(module)
            put_brake_on(module.Metrics)

        spec.loader.exec_module = execute_and_change  # type: ignore[method-assign]
        return spec


def put_brake_on(metrics: Any) -> None:
    """Make `add` wait after writing an update's row, as long as the home has that update's brake file."""
    make, add = metrics.__init__, metrics.add

    def make_with_home(self: Any, path: Path | None, *given: Any) -> None:
        make(self, path, *given)
        self.home = None if path is None else path.parents[2]

    def add_and_wait(self: Any, row: Any) -> None:
        add(self, row)
        while self.home is not None and (self.home / f"brake-{row.update}").exists():
            time.sleep(0.005)

    metrics.__init__, metrics.add = make_with_home, add_and_wait


sys.meta_path.insert(0, Brake())
