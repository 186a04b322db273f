"""A run that is cancelled, whatever it is doing: nothing is left running, and both records say so."""

import json
import random
from collections.abc import Iterator
from contextlib import contextmanager, nullcontext
from pathlib import Path
from typing import Any

import psutil
import pytest
from deployed_runs import DeployedRun, Worker, left_alive
from sandbox import Sandbox, Server

pytestmark = pytest.mark.slow

ROWS = 150_000  # enough for each of the gates to take seconds


@pytest.fixture(scope="module")
def many_rows(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """As many questions as the gates take a while for."""
    draw = random.Random(0)
    words = [f"word{number}" for number in range(5000)]
    folder = tmp_path_factory.mktemp("many")
    for split, count in (("train", ROWS), ("test", 100)):
        with (folder / f"{split}.jsonl").open("w") as file:
            for number in range(count):
                question = f"{split} {number} {' '.join(draw.choices(words, k=30))}?"
                answer = f"{' '.join(draw.choices(words, k=20))}\n#### {draw.randint(1, 999)}"
                file.write(json.dumps({"question": question, "answer": answer}) + "\n")
    return folder


@contextmanager
def suspended(server: Server) -> Iterator[None]:
    """A server that takes connections and answers nothing."""
    process = psutil.Process(server.process.pid)
    family = [process, *process.children(recursive=True)]
    for one in family:
        one.suspend()
    try:
        yield
    finally:
        for one in family:
            one.resume()


BEFORE = {"ingest": "preflight", "validate": "ingest"}  # they have no program of their own


@pytest.mark.parametrize(
    "stage", ["preflight", "ingest", "validate", "check_rewards", "baseline", "train", "evaluate", "register"]
)
def test_a_run_that_is_cancelled_in_a_stage_leaves_nothing_running(
    stage: str,
    place: Sandbox,
    worker: Worker,
    overrides: dict[str, Any],
    many_rows: Path,
    mlflow_server: Server,
):
    name = f"cancelled-in-{stage}"
    given = overrides | {"registry.name": name, "registry.experiment": name}
    given["evaluation"] = overrides["evaluation"] | {"batch_size": 1, "limit": 250, "every_steps": None}
    if stage in ("ingest", "validate", "check_rewards"):
        given["data.path"] = str(many_rows)
    if stage == "train":
        given |= {"training.max_steps": 400, "training.save_steps": 50}
    run = DeployedRun(place, given)
    before = BEFORE.get(stage)
    run.wait_until(lambda: run.finished(before) if before else run.begun(stage))
    process = run.process
    family = [process, *process.children(recursive=True)]
    # In the middle of a request that is never answered there is the most to wait for.
    with suspended(mlflow_server) if stage == "register" else nullcontext():
        run.cancel()
        assert left_alive(family, within=30) == []
    run.wait_until(lambda: run.state == "CANCELLED", 60)
    assert not run.finished(stage)
    assert [one for one in psutil.process_iter(["cmdline"]) if run.id in " ".join(one.info["cmdline"] or [])] == []
    recorded = place.mlflow_runs(name)
    if stage in ("preflight", "ingest", "validate", "check_rewards"):
        assert recorded == []
    else:
        run.wait_until(lambda: place.mlflow_runs(name)[0].info.status == "KILLED", 120)
        [one] = place.mlflow_runs(name)
        assert one.data.tags["outcome"] == "cancelled"
        assert place.mlflow.search_model_versions(f"name = '{name}'") == []


def test_a_cancellation_that_killed_the_process_before_it_listened_is_not_gone_on_with(
    place: Sandbox, worker: Worker, overrides: dict[str, Any]
):
    name = "cancelled-too-early"
    run = DeployedRun(place, overrides | {"registry.name": name, "registry.experiment": name}, delay=3600)
    run.set_state("PENDING")
    run.cancel()
    run.set_state("CRASHED", force=True)  # as Prefect's worker reports a process that SIGTERM has killed
    run.wait_until(lambda: run.state == "CANCELLED", 120)
    assert list((run.folder / "results").iterdir()) == []
    run.retry()
    run.wait_until(lambda: run.finished("preflight"))
    run.cancel()
    run.wait_until(lambda: run.state == "CANCELLED", 60)
