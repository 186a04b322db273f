"""Worker: vLLM's own server, as TRL wants it for training. Started by `tasks.vllm_server`, which ends it."""

import os
import subprocess
from typing import Any

from trl.scripts.vllm_serve import ScriptArguments, build_command

from tasks.cpu import serve_directly
from tasks.errors import WorkerFailed
from tasks.worker import run_worker


def serve(job: dict[str, Any]) -> dict[str, Any]:
    """Serve the model of `job["arguments"]` until this process group is ended."""
    command = build_command(ScriptArguments(**job["arguments"]), ["--load-format", "safetensors"])
    if job["on_cpu"]:
        command = serve_directly(command)
    # Not in place of this process, which watches for the end of its supervisor. The endpoints by which TRL sends
    # weights are behind vLLM's dev mode.
    code = subprocess.run(command, env=os.environ | {"VLLM_SERVER_DEV_MODE": "1"}).returncode
    raise WorkerFailed(f"vLLM's server ended with exit code {code}", code)


if __name__ == "__main__":
    run_worker(serve)
