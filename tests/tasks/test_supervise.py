"""The supervision of worker processes: what comes back, and that nothing is left running."""

import os
import signal
import subprocess
import sys
import textwrap
import time
from pathlib import Path

import psutil
import pytest

from tasks import memory
from tasks.errors import OutOfMemory, UserError, WorkerFailed
from tasks.supervise import Part, Worker, run_job, run_jobs

PROGRAM = """
    import os, signal, subprocess, sys, time
    from rewards.wrapper import guard
    from tasks.errors import UserError
    from tasks.worker import run_worker

    def work(job):
        while "after" in job and "pids" not in open(job["after"]).read():
            time.sleep(0.05)
        if job["do"] == "refuse":
            raise UserError("the cup is empty; fill it")
        if job["do"] == "reward":
            def mine(**_):
                raise job["raises"] == "a mistake" and KeyError("gold") or TimeoutError("no answer")
            guard(mine, name="mine")(["?"], ["72"])
        if job["do"] == "crash":
            print("about to crash")
            raise RuntimeError("broken inside")
        if job["do"] == "die":
            os.kill(os.getpid(), 9)
        if job["do"] == "allocate":
            import resource, torch
            resource.setrlimit(resource.RLIMIT_DATA, (2 << 30, 2 << 30))
            print(torch.zeros(4 << 30, dtype=torch.uint8).sum())
        if job["do"] == "say":
            print(job["line"], flush=True)
            raise RuntimeError("the engine did not start; see above")
        if job["do"] == "be killed by the kernel":
            open(job["counter"], "w").write("oom_kill 8\\n")
            os.kill(os.getpid(), 9)
        if job["do"] == "crash while another is killed":
            open(job["counter"], "w").write("oom_kill 8\\n")
            raise TypeError("broken inside")
        if job["do"] == "fill the disk":
            open("/dev/full", "w").write("x" * 100_000)
        if job["do"] == "progress":
            sys.stdout.write("10%\\r20%\\rdone\\n")
        if job["do"] == "draw and wait":
            sys.stdout.write("\\r10%\\r20%")
            sys.stdout.flush()
            while not os.path.exists(job["seen"]):
                time.sleep(0.05)
        if job["do"] == "linger":
            child = subprocess.Popen([sys.executable, "-c", "import time; time.sleep(300)"])
            print("pids", os.getpid(), child.pid, flush=True)
            time.sleep(300)
        if job["do"] == "say goodbye":
            def goodbye(*_):
                time.sleep(1)
                print("goodbye", flush=True)
                os._exit(0)
            signal.signal(signal.SIGTERM, goodbye)
            print("ready", flush=True)
            time.sleep(300)
        if job["do"] == "stay":
            signal.signal(signal.SIGTERM, signal.SIG_IGN)
            time.sleep(300)
        if job["do"] == "leave_a_child":
            child = subprocess.Popen([sys.executable, "-c", "import time; time.sleep(300)"])
            print("pids", os.getpid(), child.pid, flush=True)
        return {"answer": job.get("number", 0) + 1}

    if __name__ == "__main__":
        run_worker(work)
"""


@pytest.fixture
def worker(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> str:
    (tmp_path / "a_worker.py").write_text(textwrap.dedent(PROGRAM))
    monkeypatch.setenv("PYTHONPATH", str(tmp_path))
    return "a_worker"


def run(worker: str, folder: Path, lines: list[str] | None = None, time_limit: float | None = None, **job: object):
    return run_job(
        worker,
        job,
        folder / "job",
        log=folder / "log",
        on_line=(lines if lines is not None else []).append,
        time_limit=time_limit,
    )


def gone(pids: list[int], within: float = 10.0) -> bool:
    deadline = time.monotonic() + within
    while time.monotonic() < deadline:
        alive = [pid for pid in pids if psutil.pid_exists(pid) and psutil.Process(pid).status() != "zombie"]
        if not alive:
            return True
        time.sleep(0.1)
    return False


def pids_in(lines: list[str]) -> list[int]:
    [line] = [line for line in lines if line.startswith("pids")]
    return [int(word) for word in line.split()[1:]]


@pytest.fixture
def two_jobs(worker, tmp_path):
    """A worker of two jobs, which imports and waits."""
    (tmp_path / "two_jobs.py").write_text(
        "import a_worker\nfrom tasks.worker import run_worker\nrun_worker(a_worker.work, a_worker.work)\n"
    )
    started = Worker("two_jobs", tmp_path, log=tmp_path / "log", on_line=lambda _: None, jobs=("one", "other"))
    yield started
    started.end(grace=0.5)


@pytest.mark.parametrize("order", [("one", "other"), ("other", "one")])
def test_a_worker_of_two_jobs_does_each_when_it_is_given(two_jobs, order):
    for number, name in enumerate(order):
        two_jobs.give({"do": "add", "number": number}, name)
        assert two_jobs.answer() == {"answer": number + 1}
    assert two_jobs.wait(5.0) == 0


def test_what_a_worker_says_of_a_job_is_heard_before_its_answer(two_jobs):
    two_jobs.give({"do": "progress"}, "one")
    two_jobs.answer()
    assert list(two_jobs.tail) == ["10%", "20%", "done"]


def test_a_second_job_that_fails_is_told_as_one_that_is_the_only_one(two_jobs):
    two_jobs.give({"do": "add"}, "one")
    two_jobs.answer()
    two_jobs.give({"do": "refuse"}, "other")
    with pytest.raises(UserError, match="^the cup is empty; fill it$"):
        two_jobs.answer()


def test_a_worker_that_dies_between_two_jobs_is_missed_by_the_second(two_jobs):
    two_jobs.give({"do": "add"}, "one")
    two_jobs.answer()
    assert not two_jobs.ended
    os.kill(two_jobs._process.pid, signal.SIGKILL)
    two_jobs.give({"do": "add"}, "other")
    with pytest.raises(WorkerFailed, match="SIGKILL; its log is .*log. Nothing is in it.$"):
        two_jobs.answer()
    assert two_jobs.ended


def test_an_answer_that_takes_too_long_ends_in_a_sentence(two_jobs):
    two_jobs.give({"do": "stay"}, "one")
    with pytest.raises(UserError, match="two_jobs ran past its time limit of 0.5 s and was ended"):
        two_jobs.answer(time_limit=0.5)


def test_a_worker_has_no_place_in_the_launch_that_its_supervisor_is_part_of(worker, tmp_path, monkeypatch):
    for name in ("RANK", "LOCAL_RANK", "WORLD_SIZE", "MASTER_ADDR", "TORCHELASTIC_RUN_ID", "OMPI_COMM_WORLD_SIZE"):
        monkeypatch.setenv(name, "1")
    assert run(worker, tmp_path, do="add", number=41) == {"answer": 42}


def test_the_result_of_a_worker_comes_back(worker, tmp_path):
    assert run(worker, tmp_path, do="add", number=41) == {"answer": 42}


def test_a_reward_that_fails_by_mistake_is_the_users_and_one_that_was_not_answered_may_heal(worker, tmp_path):
    with pytest.raises(UserError, match=r"^reward mine: raised KeyError: 'gold' \(a_worker.py, line \d+\) on row 0"):
        run(worker, tmp_path, do="reward", raises="a mistake")
    with pytest.raises(WorkerFailed, match="reward mine: raised TimeoutError: no answer"):
        run(worker, tmp_path, do="reward", raises="no answer")


def test_a_users_mistake_comes_back_as_its_sentence_without_a_traceback(worker, tmp_path):
    lines: list[str] = []
    with pytest.raises(UserError, match="^the cup is empty; fill it$"):
        run(worker, tmp_path, lines, do="refuse")
    assert "Traceback" not in (tmp_path / "log").read_text()


def test_a_mistake_of_the_program_comes_back_with_the_end_of_its_log(worker, tmp_path):
    with pytest.raises(WorkerFailed, match="exit code 1") as caught:
        run(worker, tmp_path, do="crash")
    assert "about to crash" in str(caught.value) and "broken inside" in str(caught.value)


def test_a_killed_worker_is_told_by_its_signal(worker, tmp_path):
    with pytest.raises(WorkerFailed, match="SIGKILL") as caught:
        run(worker, tmp_path, do="die")
    assert caught.value.returncode == -signal.SIGKILL


def test_a_worker_whose_allocator_has_nothing_left_is_told_from_one_that_is_broken(worker, tmp_path):
    with pytest.raises(OutOfMemory, match="can't allocate memory: you tried to allocate 4294967296 bytes") as caught:
        run(worker, tmp_path, do="allocate")
    assert not caught.value.for_vllm


def test_a_full_disk_is_one_sentence(worker, tmp_path):
    with pytest.raises(UserError, match="No space left on device: free some of the disk, or set GRPO_RUNS"):
        run(worker, tmp_path, do="fill the disk")


@pytest.mark.parametrize(
    ("line", "for_vllm"),
    [
        (
            "torch.OutOfMemoryError: CUDA out of memory. Tried to allocate 2.32 GiB. GPU 0 has a total capacity of",
            False,
        ),
        (
            "ValueError: Free memory on device cuda:0 (9.1/23.6 GiB) on startup is less than desired GPU memory "
            "utilization (0.85, 20.1 GiB). Decrease GPU memory utilization or reduce GPU memory used by others.",
            True,
        ),
        (
            "ValueError: Available memory on node 0 (15.98/20.21 GiB) on kv cache allocation is less than requested "
            "memory for kv (100.0 GiB). Decrease --kv-cache-memory-bytes, VLLM_CPU_KVCACHE_SPACE, or reduce CPU memory",
            True,
        ),
    ],
)
def test_an_engine_in_a_process_of_its_own_says_in_the_log_that_memory_ran_out(worker, tmp_path, line, for_vllm):
    with pytest.raises(OutOfMemory) as caught:
        run(worker, tmp_path, do="say", line=line)
    assert caught.value.for_vllm == for_vllm and line[:80] in caught.value.reason


def test_a_worker_that_the_kernel_killed_for_its_memory_is_told_from_one_that_a_person_killed(
    worker, tmp_path, monkeypatch
):
    counter = tmp_path / "vmstat"
    counter.write_text("pgfault 1\noom_kill 7\n")
    monkeypatch.setattr(memory, "VMSTAT", counter)
    with pytest.raises(OutOfMemory, match="the kernel killed a process"):
        run(worker, tmp_path, do="be killed by the kernel", counter=str(counter))
    with pytest.raises(WorkerFailed, match="SIGKILL") as caught:
        run(worker, tmp_path, do="die")
    assert not isinstance(caught.value, OutOfMemory)


def test_what_is_only_spoken_of_in_the_log_or_happened_to_others_is_no_lack_of_memory(worker, tmp_path, monkeypatch):
    with pytest.raises(WorkerFailed, match="the engine did not start") as caught:
        run(worker, tmp_path, do="say", line="judge: HTTP 500 CUDA out of memory, retrying")
    assert not isinstance(caught.value, OutOfMemory)
    counter = tmp_path / "vmstat"
    counter.write_text("oom_kill 7\n")
    monkeypatch.setattr(memory, "VMSTAT", counter)
    with pytest.raises(WorkerFailed, match="broken inside") as caught:
        run(worker, tmp_path, do="crash while another is killed", counter=str(counter))
    assert not isinstance(caught.value, OutOfMemory)


def test_a_result_of_an_earlier_attempt_is_not_taken_for_this_ones(worker, tmp_path):
    run(worker, tmp_path, do="add", number=1)
    with pytest.raises(WorkerFailed):
        run(worker, tmp_path, do="crash")


def test_each_redrawing_of_a_progress_bar_is_a_line(worker, tmp_path):
    lines: list[str] = []
    run(worker, tmp_path, lines, do="progress")
    assert lines == ["10%", "20%", "done"]
    assert (tmp_path / "log").read_text().splitlines() == lines


def parts(folder: Path, *jobs: dict[str, object]) -> list[Part]:
    return [Part(job, folder / f"part-{place}", folder / f"{place}.log") for place, job in enumerate(jobs)]


def test_the_newest_drawing_of_a_progress_bar_is_seen_before_the_next_one(worker, tmp_path):
    seen = tmp_path / "seen"
    heard: list[str] = []

    def on_line(line: str) -> None:
        heard.append(line)
        if line == "20%":
            seen.touch()

    job = {"do": "draw and wait", "seen": str(seen)}
    run_job(worker, job, tmp_path / "job", log=tmp_path / "log", on_line=on_line, time_limit=20)
    assert heard == ["10%", "20%"]


def test_workers_beside_each_other_give_their_results_in_order_and_one_of_them_is_heard(worker, tmp_path):
    lines: list[str] = []
    jobs = parts(tmp_path, {"do": "progress"}, {"do": "add", "number": 1}, {"do": "progress"})
    assert run_jobs(worker, jobs, on_line=lines.append) == [{"answer": 1}, {"answer": 2}, {"answer": 1}]
    assert lines == ["10%", "20%", "done"]
    assert (tmp_path / "2.log").read_text().splitlines() == lines


def test_one_of_several_workers_that_fails_ends_them_all_and_its_reason_is_given(worker, tmp_path):
    lines: list[str] = []
    started = time.monotonic()
    with pytest.raises(UserError, match="^the cup is empty; fill it$"):
        jobs = parts(tmp_path, {"do": "linger"}, {"do": "refuse", "after": str(tmp_path / "0.log")})
        run_jobs(worker, jobs, on_line=lines.append)
    assert time.monotonic() - started < 30
    assert gone(pids_in((tmp_path / "0.log").read_text().splitlines()))


def test_the_grace_is_that_of_all_together(worker, tmp_path):
    started = time.monotonic()
    with pytest.raises(UserError, match="ran past the time limit"):
        run_jobs(worker, parts(tmp_path, *[{"do": "stay"}] * 3), on_line=print, time_limit=2, grace=3)
    assert time.monotonic() - started < 9


def test_the_time_limit_ends_the_worker_and_what_it_started(worker, tmp_path):
    lines: list[str] = []
    with pytest.raises(UserError, match="ran past the time limit of 5 s .* last heard of with: pids"):
        run(worker, tmp_path, lines, time_limit=5, do="linger")
    assert gone(pids_in(lines))


def test_what_a_worker_leaves_running_is_ended_when_it_is_done(worker, tmp_path):
    lines: list[str] = []
    assert run(worker, tmp_path, lines, do="leave_a_child") == {"answer": 1}
    assert gone(pids_in(lines))


def test_an_exception_while_a_line_is_handled_ends_the_worker(worker, tmp_path):
    seen: list[str] = []

    def fail(line: str) -> None:
        seen.append(line)
        raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        run_job(worker, {"do": "linger"}, tmp_path / "job", log=tmp_path / "log", on_line=fail)
    assert gone(pids_in(seen))


@pytest.mark.parametrize("number", [signal.SIGKILL, signal.SIGTERM])
def test_a_supervisor_that_is_killed_takes_the_worker_with_it(worker, tmp_path, number):
    script = f"""
        from pathlib import Path
        from tasks.supervise import run_job
        folder = Path({str(tmp_path)!r})
        show = lambda line: print(line, flush=True)
        run_job("a_worker", {{"do": "linger"}}, folder / "job", log=folder / "log", on_line=show)
    """
    supervisor = subprocess.Popen(
        [sys.executable, "-c", textwrap.dedent(script)], stdout=subprocess.PIPE, text=True, env=os.environ | {}
    )
    assert supervisor.stdout is not None
    line = supervisor.stdout.readline()
    supervisor.send_signal(number)
    supervisor.wait(10)
    # The worker's process group goes with it; its child is in that group.
    assert gone(pids_in([line]))


def test_what_a_worker_says_in_its_grace_is_heard(worker, tmp_path):
    lines: list[str] = []
    with pytest.raises(UserError, match="ran past"):
        run(worker, tmp_path, lines, time_limit=4.0, do="say goodbye")
    assert lines == ["ready", "goodbye"]
    assert (tmp_path / "log").read_text() == "ready\ngoodbye\n"


def test_what_a_launcher_has_started_gets_the_grace_too_though_the_launcher_ends_at_once(worker, tmp_path):
    launcher = (
        "import subprocess, sys; sys.exit(subprocess.call([sys.executable, '-m', *sys.argv[2:]]))"  # without --module
    )
    lines: list[str] = []
    with pytest.raises(UserError, match="ran past"):
        run_job(
            worker,
            {"do": "say goodbye"},
            tmp_path / "job",
            log=tmp_path / "log",
            on_line=lines.append,
            launcher=[sys.executable, "-c", launcher, "--module"],
            time_limit=4.0,
        )
    assert lines == ["ready", "goodbye"]
