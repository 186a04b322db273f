"""A cancellation that Prefect does not hand on, or not to the end.

In a process's first seconds, before Prefect listens in it, a cancellation kills it like any signal. The worker reports
a crash, by which the run goes on by itself; so an attempt looks first whether it should not be.

And the worker's runner hears of cancellations by a stream of events, and asks every ten seconds while that is away.
When three answers fail, as when the server is started anew, it gives that up for good: the run goes on, and could not
be cancelled any more. So a deployment's run asks, too, and where nobody else has acted ends itself.
"""

import contextlib
import contextvars
import os
import signal
import threading
from collections.abc import Iterator, Sequence
from uuid import UUID

import httpx
from prefect._internal.control_listener import get_intent
from prefect.client.orchestration import get_client
from prefect.client.schemas.objects import State
from prefect.exceptions import PrefectException
from prefect.runtime import deployment, flow_run
from prefect.settings import PREFECT_CLIENT_MAX_RETRIES, temporary_settings

EVERY = 10.0  # seconds; the runner, where it still listens, acts within one


class RunCancelled(Exception):
    """The flow run was cancelled, and ended by itself."""


@contextlib.contextmanager
def heeding_cancellation() -> Iterator[None]:
    """End what is done here, as SIGTERM does, when its flow run has been Cancelling for a while; raises RunCancelled.

    To Prefect's engine such a signal would be a crash, and a crashed run goes on by itself. Raised at once where the
    attempt before crashed of its cancellation.
    """
    if deployment.id is None:
        yield
        return
    run = UUID(flow_run.id)
    with get_client(sync_client=True) as client:
        if cancelled_by_a_crash(client.read_flow_run_states(run)):
            raise RunCancelled("cancelled in the first seconds of the attempt before")
    over, ours = threading.Event(), threading.Event()
    # In a copy of the context, since by it the thread knows which server to ask.
    arguments = (_watch, run, over, ours)
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


def cancelled_by_a_crash(history: Sequence[State]) -> bool:
    """Whether the attempt before this one was Cancelling when it crashed; `history` has all states of the run."""
    states = sorted(history, key=lambda state: state.timestamp)
    while states and not states[-1].is_final():
        states.pop()
    crashed = False
    while states and states[-1].is_crashed():  # a worker may report it twice
        states.pop()
        crashed = True
    return crashed and bool(states) and states[-1].is_cancelling()


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
