"""Two runs that want the same GPU take turns, and none begins where nothing would keep them apart."""

from pathlib import Path
from typing import Any

import pytest
from sandbox import Sandbox, write_config

pytestmark = pytest.mark.slow


@pytest.fixture
def settings(tiny_settings: dict[str, Any], untrained_model: Path) -> dict[str, Any]:
    return tiny_settings | {
        "model": tiny_settings["model"] | {"name": str(untrained_model)},
        "training": tiny_settings["training"] | {"max_steps": 4, "concurrency_limit": "gpu"},
        "evaluation": {"engine": "transformers", "limit": 16},
    }


def test_two_runs_take_turns(sandbox: Sandbox, settings: dict[str, Any]):
    registered = sandbox.run("deployments/register.py")
    assert registered.returncode == 0, registered.stderr
    config = write_config(sandbox.folder / "turns.yaml", settings)
    command = ["-m", "flows.grpo", str(config), "--until", "evaluate"]
    logs = [sandbox.folder / "first.log", sandbox.folder / "second.log"]
    processes = [sandbox.start(*command, log=log) for log in logs]
    ends = [process.wait(300) for process in processes]
    assert ends == [0, 0], "\n".join(log.read_text() for log in logs)
    spans = []
    for run in (path.parent for path in sandbox.runs.glob("*/run.json")):
        for stage in ("train", "evaluate"):
            begun = (run / stage / f"{stage}_worker.job").stat().st_mtime
            spans.append((begun, (run / "results" / f"{stage}.json").stat().st_mtime))
    spans.sort()
    assert len(spans) == 4
    for (_, ended), (begun, _) in zip(spans, spans[1:], strict=False):
        assert begun >= ended


def test_a_server_without_the_limit_is_refused(sandbox: Sandbox, settings: dict[str, Any]):
    settings["training"]["concurrency_limit"] = "nobody-made-it"
    done = sandbox.grpo(write_config(sandbox.folder / "missing.yaml", settings), "--until", "baseline")
    assert done.returncode == 1
    last = done.stderr.splitlines()[-1]
    assert last.startswith("error: baseline: the Prefect server http://127.0.0.1:")
    assert "has no concurrency limit 'nobody-made-it'" in last and "prefect gcl create nobody-made-it --limit 1" in last
