import http.server
import json
import logging
import socket
import sqlite3
import subprocess
import sys
import threading
import time
from pathlib import Path

import pandas as pd
import pytest
from mlflow import MlflowClient
from mlflow.utils.validation import _validate_metric_name

from tasks import metrics, tracking
from tasks.config import RegistrySettings
from tasks.errors import UserError
from tasks.run import Run
from tasks.statistics import mcnemar_exact
from tasks.tracking import Tracker, check_reachable, flatten, forget_metrics, legal_name, tracking_uri


def settings(**values):
    return RegistrySettings.model_validate(values)


def open_tracker(run_id="flow-run-1", params=None, tags=None, **registry):
    return Tracker.open(
        settings(**registry), Run.open(run_id), name="brave-otter", params=params or {"a": 1}, tags=tags or {}
    )


def history(tracker, name):
    """All points of a metric that MLflow has, as (step, value)."""
    return sorted((point.step, point.value) for point in tracker.client.get_metric_history(tracker.run_id, name))


def write_steps(path: Path, steps, name="train/reward", offset=0.0):
    path.parent.mkdir(parents=True, exist_ok=True)
    for step in steps:
        metrics.append(path, step, {name: step + offset})


class TestAddress:
    def test_the_configuration_goes_before_the_environment_before_a_file(self, runs, monkeypatch):
        assert tracking_uri(settings()) == f"sqlite:///{runs}/mlflow.db"
        monkeypatch.setenv("MLFLOW_TRACKING_URI", "http://elsewhere:5000/")
        assert tracking_uri(settings()) == "http://elsewhere:5000"
        assert tracking_uri(settings(tracking_uri="http://here:5000")) == "http://here:5000"

    def test_a_relative_sqlite_file_is_made_absolute(self, tmp_path, monkeypatch):
        monkeypatch.chdir(tmp_path)
        assert tracking_uri(settings(tracking_uri="sqlite:///my.db")) == f"sqlite:///{tmp_path}/my.db"

    def test_a_database_and_a_running_server_are_reachable(self, runs, mlflow_server):
        check_reachable(tracking_uri(settings()))
        check_reachable(f"sqlite:///{runs}/new/folder/mlflow.db")
        check_reachable(mlflow_server.uri)

    def test_first_runs_that_begin_at_once_share_a_new_database(self, runs):
        code = "import sys; from tasks.tracking import check_reachable; print(); input(); check_reachable(sys.argv[1])"
        command = [sys.executable, "-u", "-c", code, f"sqlite:///{runs}/new.db"]
        pipes = {"stdin": subprocess.PIPE, "stdout": subprocess.PIPE, "stderr": subprocess.PIPE, "text": True}
        begun = [subprocess.Popen(command, **pipes) for _ in range(3)]
        for one in begun:
            one.stdout.readline()  # it has imported all; from here on they run side by side
        for one in begun:
            one.stdin.write("\n")
            one.stdin.flush()
        said = [one.communicate()[1] for one in begun]
        assert [one.returncode for one in begun] == [0, 0, 0], said

    def test_a_database_of_another_mlflow_is_refused_with_its_mend(self, runs):
        uri = tracking_uri(settings())
        check_reachable(uri)
        with sqlite3.connect(runs / "mlflow.db") as database:
            database.execute("update alembic_version set version_num = '451aebb31d03'")
        code = "import sys; from tasks.tracking import check_reachable; check_reachable(sys.argv[1])"
        done = subprocess.run([sys.executable, "-c", code, uri], capture_output=True, text=True)
        assert "UserError: the MLflow database" in done.stderr and "mlflow db upgrade" in done.stderr

    def test_a_server_that_is_down_is_refused_at_once_and_without_its_password(self):
        with socket.socket() as free:
            free.bind(("127.0.0.1", 0))
            port = free.getsockname()[1]
        started = time.monotonic()
        with pytest.raises(UserError, match=f"server http://127.0.0.1:{port} does not answer") as refusal:
            check_reachable(f"http://user:secret@127.0.0.1:{port}")
        assert time.monotonic() - started < 5
        assert "secret" not in str(refusal.value) and "\n" not in str(refusal.value)

    def test_a_server_that_never_answers_is_refused_within_ten_seconds(self):
        with socket.socket() as silent:
            silent.bind(("127.0.0.1", 0))
            silent.listen()
            started = time.monotonic()
            with pytest.raises(UserError, match="does not answer"):
                check_reachable(f"http://127.0.0.1:{silent.getsockname()[1]}")
            assert time.monotonic() - started < 10

    @pytest.mark.parametrize(("status", "text"), [(404, "Not Found"), (403, "Invalid Host header"), (503, "Database")])
    def test_a_server_that_gives_no_experiments_is_refused_with_its_words(self, status, text):
        class Refusing(http.server.BaseHTTPRequestHandler):
            def do_GET(self):
                self.send_response(status)
                self.end_headers()
                self.wfile.write(text.encode())

            def log_message(self, *_):
                pass

        with http.server.HTTPServer(("127.0.0.1", 0), Refusing) as other:
            threading.Thread(target=other.handle_request, daemon=True).start()
            with pytest.raises(UserError, match=f"HTTP {status}: {text}"):
                check_reachable(f"http://127.0.0.1:{other.server_port}")

    def test_a_folder_and_a_broken_database_are_refused(self, tmp_path):
        with pytest.raises(UserError, match="file store"):
            check_reachable(str(tmp_path))
        (tmp_path / "broken.db").write_text("this is no database, and that is enough of it" * 100)
        with pytest.raises(UserError, match="cannot be opened"):
            check_reachable(f"sqlite:///{tmp_path}/broken.db")


class TestNames:
    @pytest.mark.parametrize(
        ("name", "legal"),
        [
            ("train/rewards/xmlcount/mean", "train/rewards/xmlcount/mean"),
            ("train/rewards/a+b(c)/mean", "train/rewards/a_b_c_/mean"),
            ("/odd//path/../name", "odd/name"),
            ("rank.layers.*", "rank.layers._"),
            ("..", "_"),
        ],
    )
    def test_any_name_becomes_one_that_mlflow_takes(self, name, legal):
        assert legal_name(name) == legal
        _validate_metric_name(legal)

    def test_the_configuration_becomes_dotted_parameters(self):
        values = {"data": {"path": None}, "rewards": [{"name": "int", "weight": 1.0}], "lora": {}, "text": "ä"}
        assert flatten(values) == {
            "data.path": "null",
            "rewards.0.name": "int",
            "rewards.0.weight": "1.0",
            "lora": "{}",
            "text": "ä",
        }

    def test_passwords_in_addresses_are_not_recorded(self):
        assert flatten({"uri": "http://me:secret@host:5000"}) == {"uri": "http://host:5000"}


class TestRun:
    def test_a_resumed_flow_run_finds_its_mlflow_run_and_sets_it_running(self, runs):
        first = open_tracker(tags={"code_version": "1"})
        first.finish("FAILED", "failed")
        second = open_tracker(tags={"code_version": "2"})
        assert second.run_id == first.run_id
        record = second.client.get_run(second.run_id)
        assert record.info.status == "RUNNING" and record.info.run_name == "brave-otter"
        assert record.data.tags["flow_run_id"] == "flow-run-1" and record.data.tags["code_version"] == "2"
        assert open_tracker("flow-run-2").run_id != first.run_id

    def test_all_parameters_are_there_after_a_kill_between_two_batches_and_none_changes(self, runs):
        params = {"section": {f"p{number}": number for number in range(250)}, "long": "x" * 10_000}
        tracker = open_tracker(params={"section": {"p0": "first"}})
        open_tracker(params=params)
        recorded = tracker.client.get_run(tracker.run_id).data.params
        assert len(recorded) == 251 and recorded["section.p249"] == "249"
        assert recorded["section.p0"] == "first"
        assert recorded["long"] == "x" * 5999 + "…"

    def test_two_mlflow_runs_of_one_flow_run_become_one(self, runs):
        tracker = open_tracker()
        tracker.client.create_run(tracker.experiment_id, tags={"flow_run_id": "flow-run-1"})
        assert open_tracker().run_id == tracker.run_id
        assert len(tracker.client.search_runs([tracker.experiment_id])) == 1

    def test_an_experiment_that_another_run_creates_meanwhile_is_taken(self, runs, monkeypatch):
        existing = open_tracker().experiment_id
        look_up, answers = MlflowClient.get_experiment_by_name, [None]
        monkeypatch.setattr(
            MlflowClient,
            "get_experiment_by_name",
            lambda self, name: answers.pop() if answers else look_up(self, name),
        )
        assert open_tracker("flow-run-2").experiment_id == existing

    def test_a_deleted_experiment_is_refused(self, runs):
        tracker = open_tracker()
        tracker.client.delete_experiment(tracker.experiment_id)
        with pytest.raises(UserError, match="experiment 'grpo-gsm8k' was deleted"):
            open_tracker("flow-run-2")

    def test_artifacts_lie_with_the_runs(self, runs, tmp_path):
        tracker = open_tracker()
        (tmp_path / "report.md").write_text("words")
        tracker.artifact(tmp_path / "report.md", "report")
        [found] = (runs / "mlartifacts").rglob("report.md")
        assert found.read_text() == "words"

    def test_the_end_is_recorded_with_its_outcome(self, runs):
        tracker = open_tracker()
        tracker.tags({"outcome": "challenger"})
        tracker.finish("FINISHED")
        record = tracker.client.get_run(tracker.run_id)
        assert (record.info.status, record.data.tags["outcome"]) == ("FINISHED", "challenger")
        tracker.finish("KILLED", "cancelled")
        record = tracker.client.get_run(tracker.run_id)
        assert (record.info.status, record.data.tags["outcome"]) == ("KILLED", "cancelled")

    def test_a_table_logged_twice_is_not_doubled(self, runs):
        tracker = open_tracker()
        for _ in range(2):
            tracker.table(pd.DataFrame({"question": ["1+1?", "2+2?"], "answer": [2, 4]}), "samples/step-1.json")
        shown = json.loads(Path(tracker.client.download_artifacts(tracker.run_id, "samples/step-1.json")).read_text())
        assert shown == {"columns": ["question", "answer"], "data": [["1+1?", 2], ["2+2?", 4]]}
        assert json.loads(tracker.client.get_run(tracker.run_id).data.tags["mlflow.loggedArtifacts"]) == [
            {"path": "samples/step-1.json", "type": "table"}
        ]


class TestMetrics:
    def test_each_step_is_sent_once_however_often_it_is_forwarded(self, runs):
        tracker = open_tracker()
        path = tracker.run.folder / "train" / "metrics.jsonl"
        write_steps(path, [1, 2])
        tracker.forward(path)
        tracker.forward(path)
        write_steps(path, [3])
        open_tracker().forward(path)
        assert history(tracker, "train/reward") == [(1, 1.0), (2, 2.0), (3, 3.0)]

    def test_steps_that_a_resumed_run_does_again_keep_their_first_value(self, runs):
        tracker = open_tracker()
        path = tracker.run.folder / "train" / "metrics.jsonl"
        write_steps(path, [1, 2, 3, 4])
        write_steps(path, [2], "validation/accuracy")
        tracker.forward(path)
        write_steps(path, [3, 4, 5], offset=0.5)
        write_steps(path, [4], "validation/accuracy")
        open_tracker().forward(path)
        assert history(tracker, "train/reward") == [(1, 1.0), (2, 2.0), (3, 3.0), (4, 4.0), (5, 5.5)]
        assert history(tracker, "validation/accuracy") == [(2, 2.0), (4, 4.0)]

    def test_a_kill_between_sending_and_noting_it_doubles_nothing(self, runs):
        tracker = open_tracker()
        path = tracker.run.folder / "train" / "metrics.jsonl"
        write_steps(path, [1, 2])
        tracker.forward(path)
        noted = (tracker.run.folder / "mlflow.json").read_text()
        write_steps(path, [3, 4])
        tracker.forward(path)
        (tracker.run.folder / "mlflow.json").write_text(noted)
        write_steps(path, [4, 5], offset=0.5)
        tracker.forward(path)
        assert history(tracker, "train/reward") == [(1, 1.0), (2, 2.0), (3, 3.0), (4, 4.0), (5, 5.5)]

    @pytest.mark.parametrize("damage", ["", "[]", '{"run_id": "x", "next": 3}'])
    def test_where_the_note_of_what_was_sent_is_damaged_nothing_is_doubled(self, runs, damage):
        tracker = open_tracker()
        path = tracker.run.folder / "train" / "metrics.jsonl"
        write_steps(path, [1, 2, 3])
        write_steps(path, [3], offset=0.5)
        tracker.forward(path)
        (tracker.run.folder / "mlflow.json").write_text(damage)
        forget_metrics(tracker.run, "baseline/")
        write_steps(path, [4])
        tracker.forward(path)
        assert history(tracker, "train/reward") == [(1, 1.0), (2, 2.0), (3, 3.0), (4, 4.0)]

    def test_a_line_that_is_still_being_written_waits(self, runs, caplog):
        tracker = open_tracker()
        path = tracker.run.folder / "train" / "metrics.jsonl"
        write_steps(path, [1])
        whole = '{"step": 2, "time": 5.0, "metrics": {"train/reward": 2.0}}\n'
        with path.open("a") as file:
            file.write(whole[:20])
        tracker.forward(path)
        assert history(tracker, "train/reward") == [(1, 1.0)]
        with path.open("a") as file:
            file.write(whole[20:])
        tracker.forward(path)
        assert history(tracker, "train/reward") == [(1, 1.0), (2, 2.0)]
        assert not [record for record in caplog.records if record.name == "tasks.metrics"]  # nothing was skipped

    def test_half_a_line_of_a_killed_trainer_costs_only_itself(self, runs):
        tracker = open_tracker()
        path = tracker.run.folder / "train" / "metrics.jsonl"
        write_steps(path, [1])
        with path.open("a") as file:
            file.write('{"step": 2, "ti')
        write_steps(path, [2, 3])
        tracker.forward(path, final=True)
        assert history(tracker, "train/reward") == [(1, 1.0), (2, 2.0), (3, 3.0)]

    def test_values_that_are_not_finite_are_left_out(self, runs):
        tracker = open_tracker()
        path = tracker.run.folder / "metrics-of-a-trainer.jsonl"
        metrics.append(path, 1, {"train/kl": float("nan"), "train/loss": float("inf"), "train/reward": 1.0})
        tracker.forward(path)
        assert set(tracker.client.get_run(tracker.run_id).data.metrics) == {"train/reward"}

    def test_thousands_of_points_go_at_once(self, runs):
        tracker = open_tracker()
        path = tracker.run.folder / "many.jsonl"
        lines = [
            json.dumps({"step": step, "time": 1.0, "metrics": {f"train/m{number}": step for number in range(40)}})
            for step in range(60)
        ]
        path.write_text("\n".join(lines) + "\n")
        tracker.forward(path, final=True)
        assert history(tracker, "train/m39") == [(step, float(step)) for step in range(60)]

    def test_metrics_of_a_stage_that_is_done_again_keep_their_first_value(self, runs):
        tracker = open_tracker()
        tracker.evaluation("baseline", {"accuracy": 0.25, "n": 64, "engine": "vllm"})
        open_tracker().evaluation("baseline", {"accuracy": 0.75, "n": 64, "engine": "vllm"})
        tracker.comparison(mcnemar_exact([False, True], [True, True]), step=7)
        assert history(tracker, "baseline/accuracy") == [(0, 0.25)]
        assert history(tracker, "eval/delta") == [(7, 0.5)]
        assert history(tracker, "eval/p_value") == [(7, 1.0)]

    def test_a_server_that_is_away_costs_little_and_nothing_is_lost(self, runs, mlflow_server, monkeypatch, caplog):
        monkeypatch.setattr(tracking, "PAUSE", 0.0)
        tracker = open_tracker(tracking_uri=mlflow_server.uri, experiment="outage")
        path = tracker.run.folder / "train" / "metrics.jsonl"
        write_steps(path, [1])
        tracker.forward(path)
        mlflow_server.stop()
        try:
            started = time.monotonic()
            with caplog.at_level(logging.WARNING):
                for step in (2, 3):
                    write_steps(path, [step])
                    tracker.forward(path)
            assert time.monotonic() - started < 5
            assert [record.levelname for record in caplog.records if record.name == "tasks.tracking"] == ["WARNING"]
            monkeypatch.setenv("MLFLOW_HTTP_REQUEST_MAX_RETRIES", "0")
            with pytest.raises(Exception, match="API request"):
                tracker.forward(path, final=True)
        finally:
            mlflow_server.start()
        write_steps(path, [4])
        tracker.forward(path, final=True)
        assert history(tracker, "train/reward") == [(1, 1.0), (2, 2.0), (3, 3.0), (4, 4.0)]

    def test_what_could_not_be_sent_is_sent_at_the_end_at_the_latest(self, runs, monkeypatch):
        tracker = open_tracker()
        path = tracker.run.folder / "train" / "metrics.jsonl"
        write_steps(path, [1])
        tracker.forward(path)

        def away(*_, **__):
            raise tracking.MlflowException("away")

        with monkeypatch.context() as patched:
            patched.setattr(tracker.client, "log_batch", away)
            write_steps(path, [2])
            tracker.forward(path)
            tracker.metrics({"eval/accuracy": 0.5}, step=2)
        tracker.finish("KILLED", "cancelled")
        assert history(tracker, "train/reward") == [(1, 1.0), (2, 2.0)]
        assert history(tracker, "eval/accuracy") == [(2, 0.5)]

    def test_between_two_tries_to_reach_a_server_there_is_a_pause(self, runs, monkeypatch):
        tracker = open_tracker()
        path = tracker.run.folder / "train" / "metrics.jsonl"
        write_steps(path, [1])
        tries = []

        def away(*_, **__):
            tries.append(1)
            raise tracking.MlflowException("away")

        monkeypatch.setattr(tracker.client, "log_batch", away)
        tracker.forward(path)
        tracker.forward(path)
        assert len(tries) == 1


def test_the_metrics_file_gives_the_first_value_of_each_step(tmp_path):
    path = tmp_path / "metrics.jsonl"
    write_steps(path, [1, 2, 3])
    write_steps(path, [2, 3, 4], offset=0.5)
    assert metrics.series(path, "train/reward") == [(1, 1.0), (2, 2.0), (3, 3.0), (4, 4.5)]
    assert metrics.series(tmp_path / "missing.jsonl", "train/reward") == []


def test_links_lead_to_the_ui_of_a_server_and_name_the_file_of_a_database(runs, mlflow_server):
    tracker = open_tracker(tracking_uri=mlflow_server.uri, experiment="links")
    assert tracker.link == f"{mlflow_server.uri}/#/experiments/{tracker.experiment_id}/runs/{tracker.run_id}"
    assert tracker.version_link("m", "3") == f"{mlflow_server.uri}/#/models/m/versions/3"
    assert f"sqlite:///{runs}/mlflow.db" in open_tracker().link


def test_what_the_flow_imports_brings_no_torch():
    program = "import sys, tasks.tracking, tasks.register, tasks.report; print('torch' in sys.modules)"
    done = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True)
    assert done.stdout.strip() == "False", done.stderr
