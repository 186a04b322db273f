"""The ways a stage can fail: by the user's mistake, by something that may heal, or for want of memory."""

import errno

DISK_FULL = "free some of the disk, or set GRPO_RUNS to a folder on a larger one, and go on with python -m flows.resume"


class UserError(ValueError):
    """A mistake that only the user can mend.

    The message is one clear sentence: what is wrong, where, and what to do. It is shown as it is, without a
    traceback, and never retried.
    """


class WorkerFailed(RuntimeError):
    """A worker process ended without a result. `returncode` is negative for a signal, as in `subprocess`."""

    def __init__(self, message: str, returncode: int) -> None:
        super().__init__(message)
        self.returncode = returncode


class OutOfMemory(WorkerFailed):
    """A worker had not enough memory; it may do with less to do at a time (`tasks.memory`).

    `reason` says whose memory it was; `for_vllm` whether vLLM found less than the share that it was to take.
    """

    def __init__(self, reason: str, returncode: int, for_vllm: bool = False) -> None:
        super().__init__(reason, returncode)
        self.reason = reason
        self.for_vllm = for_vllm


def first_line(error: BaseException, length: int = 200) -> str:
    """What an error says in its first line, or else what it is."""
    first, *more = (str(error).strip() or type(error).__name__).splitlines()
    if first.endswith(":") and more:  # a heading
        first = f"{first} {more[0].strip()}"
    return first[:length]


def is_disk_full(error: BaseException) -> bool:
    """Whether an error is that a file could not be written for want of space; safetensors raises one of its own."""
    return (isinstance(error, OSError) and error.errno == errno.ENOSPC) or "No space left on device" in str(error)
