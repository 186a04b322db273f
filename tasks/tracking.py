"""The record of a run in MLflow: one MLflow run per flow run, whatever dies in between.

All goes through `MlflowClient` with the run's id, never through the fluent `start_run`, which ends the run when the
process ends. Metrics are first written to a file (`tasks.metrics`) and sent from there, each value of a step once.
"""

import json
import logging
import math
import os
import posixpath
import re
import time
from collections.abc import Iterator, Mapping
from contextlib import contextmanager, nullcontext
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Literal
from urllib.parse import urlsplit

import pandas as pd
from mlflow import MlflowClient
from mlflow.entities import Metric, Param, RunTag
from mlflow.entities import Run as MlflowRun
from mlflow.exceptions import MlflowException
from mlflow.utils.credentials import get_default_host_creds
from mlflow.utils.mlflow_tags import MLFLOW_LOGGED_ARTIFACTS
from mlflow.utils.rest_utils import http_request
from mlflow.utils.validation import MAX_ENTITY_KEY_LENGTH, MAX_PARAM_VAL_LENGTH

from tasks import metrics as metrics_file
from tasks.config import RegistrySettings
from tasks.errors import UserError, first_line
from tasks.run import Run, one_at_a_time, read_json, runs_root, write_json
from tasks.statistics import Comparison

logger = logging.getLogger(__name__)

CURSOR = "mlflow.json"  # in the run folder: what has been sent
PAUSE = 10.0  # seconds between two tries to reach a server that is away


def tracking_uri(registry: RegistrySettings) -> str:
    """The MLflow server or database of a run: configured, else MLFLOW_TRACKING_URI, else a SQLite file with the runs.

    The path of a SQLite file is made absolute, so that it means the same in every process.
    """
    uri = registry.tracking_uri or os.environ.get("MLFLOW_TRACKING_URI") or f"sqlite:///{runs_root() / 'mlflow.db'}"
    if database := _sqlite_file(uri):
        return f"sqlite:///{database.absolute()}"
    return uri.rstrip("/")


def _sqlite_file(uri: str) -> Path | None:
    return Path(uri.removeprefix("sqlite:///")) if uri.startswith("sqlite:///") else None


def check_reachable(uri: str) -> None:
    """Raise UserError, within about ten seconds, if nothing can be recorded at `uri`."""
    scheme = urlsplit(uri).scheme
    if scheme in ("http", "https"):
        _check_server(uri)
    elif scheme in ("", "file"):
        raise UserError(
            f"registry.tracking_uri: {uri} is a folder, and MLflow gives up its file store; "
            "write sqlite:////FOLDER/mlflow.db, or the address of an MLflow server"
        )
    elif not scheme.startswith("databricks"):
        _check_database(uri)


def _check_server(uri: str) -> None:
    mend = "start it, or correct registry.tracking_uri or MLFLOW_TRACKING_URI"
    try:
        # Not /health, which says nothing of access and database; and not MlflowClient, which tries for minutes.
        answer = http_request(
            get_default_host_creds(uri),
            "/api/2.0/mlflow/experiments/search",
            "GET",
            params={"max_results": 1},
            max_retries=0,
            timeout=5,
            raise_on_status=False,
        )
    except MlflowException:
        raise UserError(f"the MLflow server {without_password(uri)} does not answer; {mend}") from None
    if answer.status_code != 200:
        said = " ".join(answer.text.split())[:100]
        raise UserError(
            f"{without_password(uri)} does not let us search its experiments, as an MLflow server would "
            f"(HTTP {answer.status_code}: {said}); {mend}, or the server's own settings of access and allowed hosts"
        )


def _check_database(uri: str) -> None:
    import sqlalchemy

    try:
        if database := _sqlite_file(uri):
            database.parent.mkdir(parents=True, exist_ok=True)
        # First without MLflow, which tries for minutes.
        sqlalchemy.inspect(sqlalchemy.create_engine(uri)).get_table_names()
        open_client(uri)
    except (sqlalchemy.exc.SQLAlchemyError, MlflowException, ImportError, OSError) as error:
        raise UserError(
            f"the MLflow database {without_password(uri)} cannot be opened ({first_line(error)}); "
            "correct registry.tracking_uri or MLFLOW_TRACKING_URI"
        ) from None


def open_client(uri: str) -> MlflowClient:
    """MLflow's client of `uri`; a SQLite file that is new gets its tables first.

    One process at a time: MLflow builds its tables by dozens of migrations, and two at once break each other's.
    """
    database = _sqlite_file(uri)
    if database is None:
        return MlflowClient(tracking_uri=uri, registry_uri=uri)
    with one_at_a_time(database.with_name(f"{database.name}.lock")):
        client = MlflowClient(tracking_uri=uri, registry_uri=uri)
        client.search_experiments(max_results=1)
        return client


def without_password(text: str) -> str:
    """`text` without the user and password that an address in it may hold."""
    return re.sub(r"://[^/@\s]+@", "://", text)


def flatten(values: Mapping[str, Any]) -> dict[str, str]:
    """Nested configuration values as MLflow parameters: `{"rewards": [{"name": "int"}]}` is `rewards.0.name: int`.

    Names and values are cut to what MLflow takes, and passwords in addresses are left out.
    """
    flat: dict[str, str] = {}

    def walk(prefix: str, value: Any) -> None:
        if isinstance(value, Mapping | list) and value:
            inner = value.items() if isinstance(value, Mapping) else enumerate(value)
            for key, part in inner:
                walk(f"{prefix}.{key}" if prefix else str(key), part)
        else:
            text = without_password(value if isinstance(value, str) else json.dumps(value, ensure_ascii=False))
            flat[legal_name(prefix)] = (
                text if len(text) <= MAX_PARAM_VAL_LENGTH else text[: MAX_PARAM_VAL_LENGTH - 1] + "…"
            )

    walk("", values)
    return flat


def legal_name(name: str) -> str:
    """`name` as MLflow takes it for a metric or parameter: letters, digits, `_-. :/`, and a normal path."""
    return posixpath.normpath(re.sub(r"[^/\w.\- :]", "_", name)).lstrip("/.")[:MAX_ENTITY_KEY_LENGTH] or "_"


@contextmanager
def _impatient() -> Iterator[None]:
    """One short try for each request; MLflow reads these settings from the environment at every request."""
    quick = {"MLFLOW_HTTP_REQUEST_MAX_RETRIES": "0", "MLFLOW_HTTP_REQUEST_TIMEOUT": "10"}
    before = {name: os.environ.get(name) for name in quick}
    os.environ.update(quick)
    try:
        yield
    finally:
        for name, value in before.items():
            if value is None:
                del os.environ[name]
            else:
                os.environ[name] = value


@dataclass
class Tracker:
    """One MLflow run. Every method may be called again after a kill, and leaves nothing twice."""

    client: MlflowClient
    uri: str
    run: Run
    experiment_id: str
    run_id: str
    _silent_until: float = field(default=0.0, repr=False)

    @classmethod
    def open(
        cls,
        registry: RegistrySettings,
        run: Run,
        *,
        name: str,
        params: Mapping[str, Any],
        tags: Mapping[str, str],
    ) -> "Tracker":
        """The MLflow run of this flow run: found by its tag `flow_run_id`, else created; RUNNING in either case.

        `params` is the resolved configuration, nested; it is logged once. `tags` may differ from attempt to attempt.
        Raises UserError if the experiment was deleted, MlflowException if the server does not answer for minutes.
        """
        uri = tracking_uri(registry)
        client = open_client(uri)
        experiment = _experiment(client, registry.experiment, uri)
        tracker = cls(client, uri, run, experiment, _run_id(client, experiment, run, name))
        found = client.get_run(tracker.run_id)
        # A kill between two batches leaves some parameters out; those that are there cannot be logged anew.
        missing = [Param(key, value) for key, value in flatten(params).items() if key not in found.data.params]
        client.log_batch(tracker.run_id, params=missing)
        tracker.tags(tags)
        if found.info.status != "RUNNING":
            client.update_run(tracker.run_id, status="RUNNING")
        return tracker

    @property
    def link(self) -> str:
        """Where to look at the run: an address of the MLflow UI, or where the database is."""
        return self._link(f"experiments/{self.experiment_id}/runs/{self.run_id}", f"run {self.run_id}")

    def version_link(self, name: str, version: str) -> str:
        """Where to look at a registered version."""
        return self._link(f"models/{name}/versions/{version}", f"{name} version {version}")

    def _link(self, page: str, words: str) -> str:
        shown = without_password(self.uri)
        return f"{shown}/#/{page}" if shown.startswith("http") else f"{words} in {shown}"

    def metrics(self, values: Mapping[str, float], step: int = 0) -> None:
        """Log `values` at `step`; what was logged for that step before stays. A server that is away gets it later."""
        metrics_file.append(self._own_metrics, step, values)
        self.forward(self._own_metrics)

    def evaluation(self, name: str, summary: Mapping[str, Any], step: int = 0) -> None:
        """Log the numbers of an evaluation's summary as `name/accuracy`, `name/accuracy_stderr` and so on, and what
        engine answered as the tag `name_engine`."""
        numbers = {key: value for key, value in summary.items() if isinstance(value, int | float)}
        self.metrics({f"{name}/{key}": value for key, value in numbers.items()}, step)
        self.tags({f"{name}_engine": summary["engine"]})

    def comparison(self, result: Comparison, step: int = 0) -> None:
        """Log what the final evaluation gained over the baseline: `eval/delta`, `eval/p_value` and the counts."""
        values = {"delta": result.delta, "p_value": result.p_value, "gained": result.gained, "lost": result.lost}
        self.metrics({f"eval/{key}": value for key, value in values.items()}, step)

    def forward(self, path: Path, *, final: bool = False) -> None:
        """Send what the metrics file `path` (in the run folder) holds and MLflow does not have yet.

        Meant to be called every second or so: it does nothing when nothing is new, and when the server is away it
        gives up quickly, warns once and tries again on later calls. With `final` it tries for as long as MLflow does
        by default, minutes, and then raises MlflowException. Values that are not finite are left out: the database
        cannot hold an infinity, and MLflow would show 1.8e308.
        """
        if not final and time.monotonic() < self._silent_until:
            return
        try:
            with nullcontext() if final else _impatient():
                self._send(path)
        except MlflowException as error:
            if final:
                raise
            if not self._silent_until:
                logger.warning(
                    "MLflow cannot be reached (%s); metrics are kept in %s and sent later",
                    first_line(error),
                    path,
                )
            self._silent_until = time.monotonic() + PAUSE
        else:
            self._silent_until = 0.0

    @property
    def _own_metrics(self) -> Path:
        return self.run.folder / "metrics.jsonl"

    @property
    def _cursor_file(self) -> Path:
        return self.run.folder / CURSOR

    def _cursor(self) -> dict[str, Any]:
        """What has been sent: the next byte of each file, and of each metric the highest step."""
        cursor = _read_cursor(self._cursor_file)
        if cursor and cursor["run_id"] == self.run_id:
            return cursor
        return {"run_id": self.run_id, "next": {}, "highest": {}}

    def _send(self, path: Path) -> None:
        cursor = self._cursor()
        key = os.path.relpath(path, self.run.folder)
        highest: dict[str, int] = cursor["highest"]
        points: list[Metric] = []
        end = start = cursor["next"].get(key, 0)
        for entry in metrics_file.read(path, start):
            for name, value in entry.metrics.items():
                legal = legal_name(name)
                # A metric's steps only rise until the run is resumed, and then start at a checkpoint, which is lower.
                if math.isfinite(value) and entry.step > highest.get(legal, -1):
                    points.append(Metric(legal, value, int(entry.time * 1000), entry.step))
                    highest[legal] = entry.step
            end = entry.end
        if end == start:
            return
        # A kill between these two sends the points again. That does no harm: their values, steps and times come from
        # the file, and MLflow keeps one of two equal points.
        self.client.log_batch(self.run_id, metrics=points)
        cursor["next"][key] = end
        write_json(self._cursor_file, cursor)

    def tags(self, values: Mapping[str, str]) -> None:
        """Set tags of the run; a tag that is there takes the new value."""
        self.client.log_batch(self.run_id, tags=[RunTag(key, str(value)) for key, value in values.items()])

    def artifact(self, path: Path, folder: str | None = None) -> None:
        """Upload a file, or a folder with all in it, into `folder` of the run's artifacts."""
        self.client.log_artifact(self.run_id, str(path), folder)

    def table(self, frame: pd.DataFrame, name: str) -> None:
        """Show `frame` as the table `name` (`….json`) in MLflow.

        It replaces a table of that name. MLflow's own `log_table` would append, and double the rows on a retry.
        """
        path = self.run.folder / "tables" / name
        path.parent.mkdir(parents=True, exist_ok=True)
        frame.to_json(path, orient="split", index=False, date_format="iso")
        self.artifact(path, posixpath.dirname(name) or None)
        shown = json.loads(self.client.get_run(self.run_id).data.tags.get(MLFLOW_LOGGED_ARTIFACTS, "[]"))
        entry = {"path": name, "type": "table"}
        if entry not in shown:
            self.tags({MLFLOW_LOGGED_ARTIFACTS: json.dumps([*shown, entry])})

    @property
    def outcome(self) -> str | None:
        """The tag `outcome`, if a stage of this or of an earlier attempt has set it."""
        return self.client.get_run(self.run_id).data.tags.get("outcome")

    def finish(self, status: Literal["FINISHED", "FAILED", "KILLED"], outcome: str | None = None) -> None:
        """End the run, with its outcome as a tag; None leaves the tag as a stage has set it.

        Metrics that could not be sent when they were logged or forwarded are sent now.
        """
        for name in {*self._cursor()["next"], self._own_metrics.name}:
            self._send(self.run.folder / name)
        if outcome:
            self.tags({"outcome": outcome})
        self.client.set_terminated(self.run_id, status)

    def __enter__(self) -> "Tracker":
        return self

    def __exit__(self, kind: type[BaseException] | None, *_: object) -> None:
        """End the run if what it records has failed, or was cancelled, which arrives as no Exception."""
        if kind is None:
            return
        if issubclass(kind, Exception):
            self._give_up("FAILED", "failed")
        else:
            self._give_up("KILLED", "cancelled")

    def _give_up(self, status: Literal["FAILED", "KILLED"], outcome: str) -> None:
        """End the run because the flow ends, whether or not MLflow can be told of it.

        A run that was killed waits for no server: Prefect leaves it 30 seconds. The outcome "unchanged", which the last
        stage sets, says more than that it failed, and stays.
        """
        try:
            with _impatient() if status == "KILLED" else nullcontext():
                self.finish(status, None if self.outcome == "unchanged" else outcome)
        except Exception as error:  # whatever it is, it shall not hide why the flow ends
            logger.warning(
                "MLflow could not be told that the run has ended (%s); it counts as running there until it is gone on "
                "with",
                first_line(error),
                exc_info=not isinstance(error, MlflowException | OSError),
            )


def forget_metrics(run: Run, *prefixes: str) -> None:
    """Let the run's metrics of these names be sent once more for steps that they were sent for."""
    path = run.folder / CURSOR
    if cursor := _read_cursor(path):
        cursor["highest"] = {name: step for name, step in cursor["highest"].items() if not name.startswith(prefixes)}
        write_json(path, cursor)


def _read_cursor(path: Path) -> dict[str, Any] | None:
    """What has been sent; None where nothing has, or where the file is damaged: all is sent once more then, and MLflow
    keeps one of two equal points."""
    try:
        cursor = read_json(path)
        return {"run_id": str(cursor["run_id"]), "next": dict(cursor["next"]), "highest": dict(cursor["highest"])}
    except (FileNotFoundError, ValueError, KeyError, TypeError):
        return None


def close_abandoned(uri: str, flow_run_id: str, outcome: str) -> None:
    """End the MLflow run of a flow run whose process is gone, if it still counts as running."""
    client = open_client(uri)
    for one in _running(client, f"tags.flow_run_id = '{flow_run_id}'"):
        client.set_tag(one.info.run_id, "outcome", outcome)
        client.set_terminated(one.info.run_id, "KILLED")


def running_flow_runs(uri: str) -> list[str]:
    """The flow runs that MLflow believes to be going on."""
    client = open_client(uri)
    return [one.data.tags["flow_run_id"] for one in _running(client, "tags.flow_run_id != ''")]


def _running(client: MlflowClient, filter_string: str) -> list[MlflowRun]:
    experiments = [one.experiment_id for one in client.search_experiments()]
    return list(client.search_runs(experiments, f"{filter_string} and attributes.status = 'RUNNING'"))


def _experiment(client: MlflowClient, name: str, uri: str) -> str:
    """The id of the experiment, created if it is missing."""
    found = client.get_experiment_by_name(name)
    if found is None:
        # A server decides where artifacts lie; without one MLflow would take the working folder.
        location = None if uri.startswith("http") else (runs_root() / "mlartifacts").as_uri()
        try:
            return client.create_experiment(name, artifact_location=location)
        except MlflowException as error:
            found = client.get_experiment_by_name(name)  # another run may have been faster
            if found is None:
                raise error
    if found.lifecycle_stage == "deleted":
        raise UserError(
            f"the MLflow experiment {name!r} was deleted; restore it (mlflow experiments restore), "
            "or set registry.experiment to another name"
        )
    return found.experiment_id


def _run_id(client: MlflowClient, experiment: str, run: Run, name: str) -> str:
    """The id of the MLflow run tagged with this flow run, created if there is none."""

    def search() -> list[str]:
        filter_string = f"tags.flow_run_id = '{run.id}'"
        found = client.search_runs([experiment], filter_string, order_by=["attributes.start_time ASC"])
        return [one.info.run_id for one in found]

    found = search()
    if not found:
        client.create_run(experiment, tags={"flow_run_id": run.id}, run_name=name)
        found = search()
    # MLflow repeats a request whose answer got lost, so the server may have created two.
    first, *doubled = found
    for one in doubled:
        client.delete_run(one)
    return first
