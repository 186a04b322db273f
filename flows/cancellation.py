"""A cancellation that Prefect does not hand on.

The worker's runner hears of cancellations by a stream of events, and asks every ten seconds while that is away. When
three answers fail, as when the server is started anew, it gives that up for good: the run goes on, and could not be
cancelled any more. So a deployment's run asks, too, and where nobody else has acted ends itself.
"""

import contextlib
import contextvars
import os
import signal
import sys
import threading
from collections.abc import Iterator
from typing import Any
from uuid import UUID

import httpx
from prefect.client.orchestration import get_client
from prefect.exceptions import PrefectException
from prefect.runtime import deployment, flow_run
from prefect.settings import PREFECT_CLIENT_MAX_RETRIES, temporary_settings

EVERY = 10.0  # seconds; the runner, where it still listens, acts within one


class RunCancelled(Exception):
    """The flow run was cancelled, and ended by itself."""


@contextlib.contextmanager
def heeding_cancellation() -> Iterator[None]:
    """End what is done here, as SIGTERM does, when its flow run has been Cancelling for a while; raises RunCancelled.

    To Prefect's engine such a signal would be a crash, and a crashed run goes on by itself.
    """
    if deployment.id is None:
        yield
        return
    asked, over, ours = threading.Event(), threading.Event(), threading.Event()
    before = signal.getsignal(signal.SIGTERM)

    def note(number: int, frame: Any) -> None:
        asked.set()  # whoever it was: a second signal would disturb the end that the first one has begun
        if not callable(before):
            sys.exit(128 + signal.SIGTERM)
        before(number, frame)

    # In a copy of the context, since by it the thread knows which server to ask.
    arguments = (_watch, UUID(flow_run.id), asked, over, ours)
    thread = threading.Thread(target=contextvars.copy_context().run, args=arguments, daemon=True)
    signal.signal(signal.SIGTERM, note)
    thread.start()
    try:
        yield
    except BaseException:
        if ours.is_set():
            raise RunCancelled("cancelled; the run has ended itself") from None
        raise
    finally:
        over.set()
        thread.join(5)
        signal.signal(signal.SIGTERM, before)


def _watch(run: UUID, asked: threading.Event, over: threading.Event, ours: threading.Event) -> None:
    with temporary_settings({PREFECT_CLIENT_MAX_RETRIES: 0}), get_client(sync_client=True) as client:
        seen = 0
        while seen < 2:
            if over.wait(EVERY):
                return
            with contextlib.suppress(httpx.HTTPError, PrefectException):  # the server is away; asked again later
                state = client.read_flow_run(run).state
                seen = seen + 1 if state is not None and state.is_cancelling() else 0
    if not asked.is_set():
        ours.set()
        os.kill(os.getpid(), signal.SIGTERM)
