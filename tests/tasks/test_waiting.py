"""How threads on a CPU wait for each other: spinning where the machine is theirs alone, and else not."""

import os
import time

import pytest

from tasks import cpu


@pytest.fixture(autouse=True)
def unsaid(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("OMP_WAIT_POLICY", raising=False)


@pytest.mark.parametrize(
    ("busy", "processes", "passive", "said"),
    [(3.0, 1, False, 0), (50.0, 1, True, 1), (3.0, 2, True, 0), (50.0, 2, True, 0)],
)
def test_threads_leave_the_core_to_others_where_there_are_any(busy, processes, passive, said, monkeypatch):
    monkeypatch.setattr(cpu, "_busy_with_others", lambda: busy)
    lines: list[str] = []
    assert cpu.waiting(processes, lines.append) == ({"OMP_WAIT_POLICY": "PASSIVE"} if passive else {})
    assert len(lines) == said and all("other programs take 50 % of the CPU, so" in line for line in lines)


def test_a_burst_is_no_load(monkeypatch):
    seen = iter([90.0, 80.0, 2.0, 70.0] * 2)
    monkeypatch.setattr(cpu, "_busy_with_others", lambda: next(seen))
    assert cpu.waiting(1, print) == {}


def test_what_the_user_has_chosen_stays(monkeypatch):
    monkeypatch.setenv("OMP_WAIT_POLICY", "ACTIVE")
    assert cpu.waiting(2, print) == {}


def test_what_we_do_ourselves_is_not_taken_for_others(monkeypatch):
    """A machine that is busy with nothing but this process."""

    def work(interval: float) -> float:
        begun = time.process_time()
        while time.process_time() < begun + interval:
            pass
        return 100 / (os.cpu_count() or 1)

    monkeypatch.setattr(cpu.psutil, "cpu_percent", work)
    assert cpu.waiting(1, print) == {}
