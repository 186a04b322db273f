"""Where a run keeps what it made: the run folder, and the store of what runs share.

runs/
  <flow run id>/        one run: run.json, config.yaml, results/<stage>.json, logs/, train/, evaluate/, report.md …
  store/<kind>/<digest> data, models and baselines, by the digest of all that they depend on
  mlflow.db, mlartifacts  the tracking store where no MLflow server is configured
"""

import fcntl
import hashlib
import json
import os
import shutil
import subprocess
import tempfile
import time
from collections import Counter
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import IO, Any

from tasks.errors import UserError
from tasks.torn import first_torn
from tasks.whole import is_whole

# The locks of this process; the system gives them back when it ends.
_claimed: dict[Path, IO[str]] = {}

PROJECT = Path(__file__).resolve().parent.parent


def runs_root() -> Path:
    """The folder of all runs: `GRPO_RUNS`, or `runs/` beside the code."""
    return Path(os.environ.get("GRPO_RUNS") or PROJECT / "runs").absolute()


def write_whole(path: Path, text: str) -> None:
    """Write `text` so that a reader sees either all of it or what was there before."""
    temporary = path.with_name(f".{path.name}.{os.getpid()}")
    with temporary.open("w", encoding="utf-8") as file:
        file.write(text)
        file.flush()
        os.fsync(file.fileno())  # a machine that loses its power would else have the new name without the content
    temporary.replace(path)


def write_json(path: Path, value: Any) -> None:
    """Write `value` as JSON, whole or not at all."""
    write_whole(path, json.dumps(value, indent=1, ensure_ascii=False) + "\n")


def read_json(path: Path) -> Any:
    return json.loads(path.read_text(encoding="utf-8"))


@dataclass(frozen=True)
class Run:
    """One run's folder, keyed by its flow-run id, so that a retry of any kind finds what was done before."""

    id: str
    folder: Path

    @classmethod
    def open(cls, id: str) -> "Run":
        folder = runs_root() / id
        try:
            for part in ("results", "logs"):
                (folder / part).mkdir(parents=True, exist_ok=True)
        except OSError as error:
            raise UserError(
                f"the run folder {folder} cannot be made ({error.strerror}); "
                "set GRPO_RUNS to a folder that you may write to"
            ) from None
        return cls(id, folder)

    def claim(self, on_wait: Callable[[str], None] | None = None) -> None:
        """Hold the run for this process until it ends, however it ends.

        If another one holds it, raise UserError, or with `on_wait` tell it that and wait for the other's end: a server
        that was away takes a run for dead that went on without it, and starts another attempt.
        """
        if self.folder in _claimed:
            return
        try:
            _claimed[self.folder] = self._hold(on_wait)
        except OSError as error:
            raise self.unwritable(error) from None

    def unwritable(self, error: OSError) -> UserError:
        """What to tell the user where a file of the run cannot be written."""
        return UserError(
            f"the run folder {self.folder} cannot be written to ({error.strerror}); "
            "free some of its disk, or set GRPO_RUNS to a folder that you may write to"
        )

    def _hold(self, on_wait: Callable[[str], None] | None) -> IO[str]:
        """The run's lock, once it is ours."""
        file = (self.folder / "lock").open("a+")
        told = False
        while True:
            try:
                fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
                break
            except BlockingIOError:
                file.seek(0)
                going_on = f"the run {self.id} is going on in the process {file.read().strip()}"
                if on_wait is None:
                    raise UserError(f"{going_on}; wait for its end, or cancel it") from None
                if not told:
                    on_wait(f"{going_on}; waiting for its end")
                    told = True
                time.sleep(1)
        file.truncate(0)
        file.write(f"{os.getpid()}\n")
        file.flush()
        return file

    def release(self) -> None:
        """Give the run back before this process ends."""
        _claimed.pop(self.folder).close()

    def result(self, stage: str) -> dict[str, Any] | None:
        """What a finished stage left; None where it is not finished, or where that is gone or cannot be read."""
        try:
            found: dict[str, Any] = read_json(self.folder / "results" / f"{stage}.json")
        except (FileNotFoundError, json.JSONDecodeError, UnicodeDecodeError):
            return None
        return found if still_there(found) else None

    def finish(self, stage: str, result: dict[str, Any]) -> dict[str, Any]:
        """Record that `stage` is done; it is not done again after this."""
        write_json(self.folder / "results" / f"{stage}.json", result)
        return result

    def forget(self, *stages: str) -> list[str]:
        """Let these stages be done again; gives those that were finished."""
        done = [stage for stage in stages if self.result(stage) is not None]
        for stage in done:
            (self.folder / "results" / f"{stage}.json").unlink()
        return done

    def log_file(self, stage: str) -> Path:
        """A fresh log file for this attempt; `<stage>.log` links to the newest."""
        folder = self.folder / "logs"
        attempt = 1 + len(list(folder.glob(f"{stage}-*.log")))
        path = folder / f"{stage}-{attempt}.log"
        path.touch()
        link = folder / f"{stage}.log"
        link.unlink(missing_ok=True)
        link.symlink_to(path.name)
        return path

    def attempts(self) -> dict[str, int]:
        """How often each stage that is done by a program was begun."""
        names = sorted(path.stem for path in (self.folder / "logs").glob("*-*.log"))
        # Without the shares of an evaluation.
        return dict(Counter(name.rpartition("-")[0] for name in names if "." not in name))

    def link(self, name: str, target: Path) -> None:
        """Show something of the store in the run folder."""
        link = self.folder / name
        link.unlink(missing_ok=True)
        link.symlink_to(os.path.relpath(target, self.folder))


def stored(kind: str, key: str, make: Callable[[Path], None]) -> Path:
    """The folder `store/<kind>/<key>`, made by `make(folder)` if it is not there yet, or has a torn file.

    `make` fills a temporary folder that takes its place only when whole, so a killed run leaves nothing half-done and
    two runs that make the same thing do not disturb each other.
    """
    final = runs_root() / "store" / kind / key
    if final.is_dir() and not is_whole(final):
        shutil.rmtree(final, ignore_errors=True)  # another run may be doing so, too
    if final.is_dir():
        os.utime(final)  # `tasks.prune` removes what has not been used for long
        return final
    final.parent.mkdir(parents=True, exist_ok=True)
    temporary = Path(tempfile.mkdtemp(prefix=f".{key[:12]}-", dir=final.parent))
    try:
        make(temporary)
        temporary.chmod(0o755)
        try:
            temporary.rename(final)
        except OSError:
            if not final.is_dir():  # else another run was faster, and made the same
                raise
    finally:
        shutil.rmtree(temporary, ignore_errors=True)
    return final


@contextmanager
def one_at_a_time(lock: Path) -> Iterator[None]:
    """Hold the file `lock` for what is done here; another process that wants it waits."""
    with lock.open("a") as file:
        fcntl.flock(file, fcntl.LOCK_EX)
        yield


def still_there(value: Any) -> bool:
    """Whether all files that a stage's result names are still there and whole, and of folders the files right in them;
    `tasks.prune` may have removed some."""
    if isinstance(value, dict):
        return all(still_there(part) for part in value.values())
    if isinstance(value, list):
        return all(still_there(part) for part in value)
    root = f"{runs_root()}{os.sep}"
    if not (isinstance(value, str) and value.startswith(root) and "\n" not in value):
        return True
    path = Path(value)
    return path.exists() and first_torn(path.iterdir() if path.is_dir() else [path]) is None


def digest(value: Any) -> str:
    """sha256 of a JSON value, independent of the order of keys."""
    return hashlib.sha256(json.dumps(value, sort_keys=True, ensure_ascii=False).encode()).hexdigest()


def source_digest(*patterns: str) -> str:
    """sha256 over the project's source files that match `patterns`: what a cached result depends on besides its
    inputs. Files are read, not imported, since some of them import torch."""
    files = sorted({file for pattern in patterns for file in PROJECT.glob(pattern)})
    assert files, f"no source file matches {patterns}"
    return digest({str(file.relative_to(PROJECT)): file.read_text(encoding="utf-8") for file in files})


def code_version() -> str:
    """The commit of the code, with `+changes` where files differ from it, or a digest of it outside of git."""
    try:
        commit = subprocess.run(
            ["git", "describe", "--always", "--abbrev=12", "--dirty=+changes", "--exclude=*"],
            cwd=PROJECT, capture_output=True, text=True, check=True,
        )  # fmt: skip
        return commit.stdout.strip()
    except (OSError, subprocess.CalledProcessError):
        return source_digest("flows/*.py", "rewards/*.py", "tasks/*.py")[:12]


def require_disk(folder: Path, gib: float, what: str) -> None:
    """Raise UserError if less than `gib` GiB are free where `folder` lies."""
    folder.mkdir(parents=True, exist_ok=True)
    free = shutil.disk_usage(folder).free / 2**30
    if free < gib:
        raise UserError(
            f"{what} needs about {gib:.1f} GiB on the disk of {folder}, where only {free:.1f} GiB are free; "
            "free some, or set GRPO_RUNS to a folder on a larger disk"
        )
