"""The end of a flow's process, in time whatever has become of the Prefect server."""

import contextlib
import os
import signal
import sys
import threading
from collections.abc import Iterator
from typing import NoReturn

import psutil
from prefect.settings import get_current_settings


def leave(code: int) -> NoReturn:
    """Exit, within some seconds at the most."""
    leave_within(15, code)
    sys.exit(code)


def leave_within(seconds: float, code: int) -> None:
    """End this process and all that it started, with the exit code `code`, if it has not ended by itself by then.

    At its end Prefect reports the state of the run and what is left of logs and events, and for minutes tries to reach
    a server that is gone, as the one is that it has started for this process when both are asked to end.
    """

    def end() -> None:
        for child in psutil.Process().children(recursive=True):
            with contextlib.suppress(psutil.NoSuchProcess):
                child.kill()
        os._exit(code)

    timer = threading.Timer(seconds, end)
    timer.daemon = True
    timer.start()


@contextlib.contextmanager
def leaving_in_time(last_word: str) -> Iterator[None]:
    """Leave within ten seconds once what is done here is cancelled, with a word on what can be done then.

    Prefect grants thirty seconds in all. The temporary server of a run without one gets a terminal's signals, too, and
    so is gone as a rule: for it five do, after which Prefect would begin to complain.
    """
    try:
        yield
    except Exception:
        raise
    except BaseException as ended:  # a cancellation arrives as TerminationSignal, which is no Exception
        print(last_word, file=sys.stderr)
        by = signal.SIGINT if isinstance(ended, KeyboardInterrupt) else signal.SIGTERM
        leave_within(10 if get_current_settings().api.url else 5, 128 + by)
        raise
