"""A cancellation that Prefect does not hand on.

The worker's runner hears of cancellations by a stream of events, and asks every ten seconds while that is away. When
three answers fail, as when the server is started anew, it gives that up for good: the run goes on, and could not be
cancelled any more. So a deployment's run asks, too, and where nobody else has acted ends itself.
"""

import contextlib
import contextvars
import os
import signal
import threading
from collections.abc import Iterator
from uuid import UUID

import httpx
from prefect._internal.control_listener import get_intent
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
    over, ours = threading.Event(), threading.Event()
    # In a copy of the context, since by it the thread knows which server to ask.
    arguments = (_watch, UUID(flow_run.id), over, ours)
    thread = threading.Thread(target=contextvars.copy_context().run, args=arguments, daemon=True)
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


def _watch(run: UUID, over: threading.Event, ours: threading.Event) -> None:
    with temporary_settings({PREFECT_CLIENT_MAX_RETRIES: 0}), get_client(sync_client=True) as client:
        seen = 0
        while seen < 2:
            if over.wait(EVERY):
                return
            with contextlib.suppress(httpx.HTTPError, PrefectException):  # the server is away; asked again later
                state = client.read_flow_run(run).state
                seen = seen + 1 if state is not None and state.is_cancelling() else 0
    # Not where the runner has announced its own: a second signal would disturb the end that the first one has begun.
    # (By a handler of our own for SIGTERM Prefect would no longer take the runner's for a cancellation.)
    if get_intent() is None:
        ours.set()
        os.kill(os.getpid(), signal.SIGTERM)
