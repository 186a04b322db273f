"""A command that is asked to end does so in time, also where the Prefect server is asked to end with it."""

import os
import signal
import time
from typing import Any

import psutil
import pytest
from faults import left_of, process_family, steps_done
from sandbox import Sandbox, write_config

pytestmark = pytest.mark.slow


@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGINT])
def test_a_command_ends_within_half_a_minute_though_its_prefect_server_has_ended_before(
    number: signal.Signals, tmp_path, tiny_settings: dict[str, Any], untrained_model
):
    """As when a container is stopped, or by Ctrl-C in a terminal: the whole process group gets the signal."""
    place = Sandbox(tmp_path)  # so it starts a Prefect server of its own
    settings = tiny_settings | {"model": tiny_settings["model"] | {"name": str(untrained_model)}}
    settings["evaluation"] = settings["evaluation"] | {"every_steps": None, "limit": 8}
    settings["training"] = settings["training"] | {"max_steps": 2000, "save_steps": 500}
    config = write_config(tmp_path / "long.yaml", settings)
    process = place.start("-m", "flows.grpo", str(config), log=tmp_path / "log", new_session=True)
    deadline = time.monotonic() + 240
    while not any(steps_done(path.parent) >= 3 for path in place.runs.glob("*/run.json")):
        assert process.poll() is None and time.monotonic() < deadline, (tmp_path / "log").read_text()[-2000:]
        time.sleep(0.2)
    family = process_family(process.pid)
    assert any("uvicorn" in " ".join(one.cmdline()) for one in family if one.status() != psutil.STATUS_ZOMBIE)
    os.killpg(process.pid, number)
    asked = time.monotonic()
    assert process.wait(45) == 128 + number
    assert time.monotonic() - asked < 30
    assert left_of(family, within=5) == []
    [recorded] = place.mlflow_runs()
    assert (recorded.info.status, recorded.data.tags["outcome"]) == ("KILLED", "cancelled")
    assert "the run was ended; go on with it: python -m flows.resume " in (tmp_path / "log").read_text()


def test_ctrl_c_ends_a_command_with_a_sentence_on_how_to_go_on(
    sandbox: Sandbox, tiny_settings: dict[str, Any], untrained_model
):
    settings = tiny_settings | {"model": tiny_settings["model"] | {"name": str(untrained_model)}}
    config = write_config(sandbox.folder / "interrupted.yaml", settings)
    log = sandbox.folder / "log"
    process = sandbox.start("-m", "flows.grpo", str(config), log=log, new_session=True)
    while not list(sandbox.runs.glob("*/logs/preflight.log")):
        assert process.poll() is None
        time.sleep(0.1)
    family = process_family(process.pid)
    process.send_signal(signal.SIGINT)
    assert process.wait(30) == 128 + signal.SIGINT
    assert left_of(family, within=5) == []
    [run] = sandbox.runs.glob("*/run.json")
    assert f"python -m flows.resume {run.parent.name}" in log.read_text() and "Traceback" not in log.read_text()
