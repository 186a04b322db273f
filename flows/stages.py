"""How one stage runs as a Prefect task: done once per run, retried where that can help, refused in one sentence."""

import functools
import logging
import re
from collections.abc import Callable, Sequence
from contextlib import nullcontext
from dataclasses import dataclass, replace
from typing import Any, Concatenate, ParamSpec

from mlflow.exceptions import MlflowException
from prefect import State, get_run_logger, task
from prefect.cache_policies import NO_CACHE
from prefect.exceptions import FailedRun
from prefect.states import Cancelled, Failed

from flows.cancellation import RunCancelled, heeding_cancellation
from flows.gpu import gpu_slot
from flows.leaving import leaving_in_time
from tasks.config import Config, load
from tasks.errors import DISK_FULL, UserError, WorkerFailed, first_line, is_disk_full
from tasks.run import Run

P = ParamSpec("P")
REFUSED = "Refused"


@dataclass(frozen=True)
class Context:
    """What every stage gets: the run's folder and its configuration."""

    run: Run
    config: Config

    def pinned(self, model: dict[str, Any]) -> "Context":
        """The same with the commit that the preflight has found of a hub model, lest later stages find a newer one."""
        if model["revision"] is None:
            return self
        return replace(self, config=load(self.config.dump(), {"model.revision": model["revision"]}))


class StageFailed(Exception):
    """A stage did not succeed; the message is what a person should read."""


def stage(
    name: str, *, retries: int = 0, delays: Sequence[float] = (), gpu: bool = False
) -> Callable[[Callable[Concatenate[Context, P], dict[str, Any]]], Callable[Concatenate[Context, P], dict[str, Any]]]:
    """Make a function of a `Context` into the Prefect task `name`.

    What it returns is kept in the run folder, so an attempt that finds it there does not do the stage again, whatever
    ended the attempt before. A UserError becomes the state Refused, which is not retried; a worker that failed or a
    connection that did not come about is retried. Neither shows a traceback. One that uses the `gpu` waits until no
    other run does.
    """

    def decorate(function: Callable[Concatenate[Context, P], dict[str, Any]]) -> Any:
        @functools.wraps(function)
        def once(context: Context, *args: P.args, **kwargs: P.kwargs) -> Any:
            done = context.run.result(name)
            if done is not None:
                get_run_logger().info("%s was finished by an earlier attempt", name)
                return done
            get_run_logger().info("%s begins", name)
            try:
                with gpu_slot(context.config) if gpu else nullcontext():
                    return context.run.finish(name, function(context, *args, **kwargs))
            except UserError as error:
                return Failed(name=REFUSED, message=str(error))
            except (WorkerFailed, ConnectionError) as error:
                return Failed(message=str(error))  # a traceback of this process would say no more
            except MlflowException as error:
                return Failed(message=of_mlflow(error))
            except OSError as error:
                if not is_disk_full(error):
                    raise
                return Failed(name=REFUSED, message=f"{error}: {DISK_FULL}")

        run_task = task(
            name=name,
            cache_policy=NO_CACHE,
            retries=retries,
            retry_delay_seconds=list(delays) or None,
            retry_condition_fn=_can_heal,
        )(once)

        @functools.wraps(function)
        def call(context: Context, *args: P.args, **kwargs: P.kwargs) -> dict[str, Any]:
            state: State[dict[str, Any]] = run_task(context, *args, return_state=True, **kwargs)
            if state.is_completed():
                return state.result()
            raise StageFailed(f"{name}: {state.message}")

        return call

    return decorate


def _can_heal(_task: Any, _task_run: Any, state: State) -> bool:
    return state.name != REFUSED


def run_stages(work: Callable[[], State], last_word: str) -> State:
    """What a flow does in its stages, and the state that it ends in; `last_word` is for a person who ended it."""
    try:
        with leaving_in_time(last_word), heeding_cancellation():
            return work()
    except (StageFailed, UserError) as failure:
        return Failed(message=str(failure))
    except MlflowException as error:
        return Failed(message=f"{of_mlflow(error)}; {last_word}")
    except RunCancelled as cancelled:
        return Cancelled(message=str(cancelled))


def of_mlflow(error: MlflowException) -> str:
    """What MLflow says, without what it says it in."""
    return f"MLflow did not take the record ({first_line(error, 300)})"


class _NoRepetition(logging.Filter):
    """Drops Prefect's report of a returned state with an empty traceback; the state itself is logged next."""

    def filter(self, record: logging.LogRecord) -> bool:
        return not str(record.msg).startswith("Task run failed with state")


def reports_failure(record: logging.LogRecord) -> bool:
    """Whether this is Prefect's report that a run has failed."""
    return re.match(rf"Finished in state ({REFUSED}|Failed|Crashed|TimedOut)\(", str(record.msg)) is not None


class _FailureIsAnError(logging.Filter):
    """Raises Prefect's report that a flow run has failed, which it logs as information, to an error's level."""

    def filter(self, record: logging.LogRecord) -> bool:
        if reports_failure(record):
            record.levelno, record.levelname = logging.ERROR, logging.getLevelName(logging.ERROR)
        return True


class _NoTraceback(logging.Filter):
    """Drops the traceback that a worker's process logs of a run that has failed; the state before it has said why."""

    def filter(self, record: logging.LogRecord) -> bool:
        return not (record.exc_info and isinstance(record.exc_info[1], FailedRun))


logging.getLogger("prefect.task_runs").addFilter(_NoRepetition())
logging.getLogger("prefect.flow_runs").addFilter(_FailureIsAnError())
for name in ("prefect.flow_runs", "prefect.engine"):
    logging.getLogger(name).addFilter(_NoTraceback())


def log_line(line: str) -> None:
    """Hand a line of a worker's output to the Prefect log, at the level that it begins with."""
    level = logging.WARNING if line.startswith("WARNING ") else logging.INFO
    get_run_logger().log(level, line.removeprefix("WARNING "))
