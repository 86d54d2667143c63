"""Growth of a training process since its fork, with this machine's measured overhead.

Measured from a fresh interpreter: this one has run tensor operations, which the template never does, and a fork would
inherit the holes of its heap.
"""

import json
import subprocess
import sys
from statistics import mean

import pytest

from onyx.memory.footprint.calibrate import measure_cpu
from onyx.memory.footprint.overhead import Overhead

MEASURE = """
import json, sys
from benchmarks import memory_cases
from onyx.memory.footprint.calibrate import measure_here
from onyx.memory.footprint.estimate import estimate
overhead = measure_here()
errors = []
for case in getattr(memory_cases, sys.argv[1])():
    footprint = estimate(case.config, case.recipe, "cpu")
    for samples, length in case.shapes:
        seen = memory_cases.process_growth(case, samples, length)
        errors.append(overhead.expected(footprint.peak(samples, length)) / seen - 1)
print(json.dumps([overhead.to_json(), errors]))
"""


@pytest.mark.parametrize("cases", ["grown_quick", pytest.param("grown", marks=pytest.mark.slow)])
def test_it_predicts_what_a_process_takes(cases: str) -> None:
    done = subprocess.run([sys.executable, "-c", MEASURE, cases], capture_output=True, text=True, check=True)
    text, errors = json.loads(done.stdout.splitlines()[-1])
    assert mean(map(abs, errors)) <= 0.08
    assert min(errors) >= -0.05
    overhead = Overhead.from_json(text)
    assert overhead.measured
    assert 1.0 <= overhead.slack <= overhead.slack_high < 1.5
    assert 0 <= overhead.fixed <= overhead.fixed_high < 200 * 2**20


@pytest.mark.slow
def test_a_process_with_holes_in_its_heap_measures_in_a_fresh_interpreter(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("onyx.memory.footprint.calibrate.free_in_heap", lambda: 2**30)
    monkeypatch.setattr("onyx.memory.footprint.calibrate.measure_here", None)
    assert measure_cpu().measured
