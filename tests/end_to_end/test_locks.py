"""Both lock files resolve, are what pyproject.toml asks for, and can be installed from wheels alone.

Asks the package index for metadata; nothing is downloaded or installed.
"""

import os
import shutil
import subprocess
import sys
from pathlib import Path

import pytest
from sandbox import PROJECT

pytestmark = pytest.mark.slow

LOCKS = ("cpu", "cuda")
# Ubuntu 20.04 and later, on the oldest and the newest Python; the last is what a Grace Hopper node runs.
PLACES = [("x86_64-manylinux_2_31", "3.11"), ("x86_64-manylinux_2_31", "3.14"), ("aarch64-manylinux_2_34", "3.12")]


def uv(arguments: str) -> str:
    """What `uv pip …` says, in the project; the test fails where it fails, but for the lack of a network."""
    command = [str(Path(sys.executable).with_name("uv")), "pip", *arguments.split()]
    # The system's certificates, by the old name and the new one: where a proxy has one of its own, pip takes them too.
    environment = os.environ | {"UV_NATIVE_TLS": "1", "UV_SYSTEM_CERTS": "1"}
    done = subprocess.run(command, cwd=PROJECT, env=environment, capture_output=True, text=True)
    if "client error (Connect)" in done.stderr:
        pytest.skip("the package index cannot be reached")
    assert done.returncode == 0, done.stderr[-2000:]
    return done.stderr


@pytest.mark.parametrize("lock", LOCKS)
def test_a_lock_is_what_make_lock_would_write(lock: str, tmp_path: Path):
    """With the versions that it has: those that have come out since do not matter, one that is gone does."""
    shipped = PROJECT / "deployments" / f"requirements-{lock}.lock"
    resolved = Path(shutil.copy(shipped, tmp_path))
    how = "--universal --python-version 3.11 --no-header --quiet --override deployments/overrides.txt"
    how += " --override deployments/overrides-cpu.txt" if lock == "cpu" else ""
    uv(f"compile pyproject.toml --extra {lock} --extra dev {how} -o {resolved}")
    assert resolved.read_text() == shipped.read_text()


@pytest.mark.parametrize(("platform", "python"), PLACES, ids=str)
@pytest.mark.parametrize("lock", LOCKS)
def test_every_package_of_a_lock_has_a_wheel(lock: str, platform: str, python: str, tmp_path: Path):
    where = f"--python-platform {platform} --python-version {python} --target {tmp_path}"
    said = uv(f"install --dry-run --no-deps --only-binary :all: {where} -r deployments/requirements-{lock}.lock")
    assert "vllm" in said and "torch==2.13.0" in said
