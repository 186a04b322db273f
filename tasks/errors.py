"""The two ways a stage can fail: by the user's mistake, or by something that may heal."""


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
