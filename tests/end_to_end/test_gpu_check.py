"""`make gpu-check` on the CPU, at the size of a test: the same program, the same comparisons."""

import os
import subprocess
import sys
from pathlib import Path

import pytest
from sandbox import PROJECT

pytestmark = [pytest.mark.slow, pytest.mark.alone]


def test_the_check_runs_both_trainings_and_compares_them(untrained_model: Path):
    command = [
        sys.executable,
        "tests/benchmarks/gpu_check.py",
        "--cpu",
        "--model",
        str(untrained_model),
        "--steps",
        "3",
    ]
    environment = os.environ | {"OMP_NUM_THREADS": "1"}
    done = subprocess.run(command, cwd=PROJECT, env=environment, capture_output=True, text=True, timeout=600)
    assert "evaluation: 20 questions by transformers" in done.stdout, done.stdout + done.stderr[-2000:]
    rows = {
        line[:46].strip(): line[46:].split() for line in done.stdout.splitlines() if "  " in line and "aim" not in line
    }
    assert rows["reward of the first step: script, flow"][2] == "1.00"
    # A model so small takes what the libraries take; the estimate must not be far from that.
    estimated, measured, *_ = map(float, rows["GiB: estimated, measured"][:2])
    assert 0.5 < measured / estimated < 1.5
    assert len(rows) >= 5
