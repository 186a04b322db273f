import json
import time
from concurrent.futures import ThreadPoolExecutor
from importlib.metadata import version
from itertools import count
from pathlib import Path
from threading import Lock

import mlflow
import pandas as pd
import pytest
import torch
from mlflow.artifacts import download_artifacts
from peft import LoraConfig, PeftModel, get_peft_model
from tokenizers import Tokenizer, decoders, models, pre_tokenizers
from transformers import AutoModelForCausalLM, AutoTokenizer, LlamaConfig, LlamaForCausalLM, PreTrainedTokenizerFast

from tasks import card, promotion
from tasks import register as register_stage
from tasks.config import Config
from tasks.errors import UserError
from tasks.outcome import Outcome
from tasks.register import register
from tasks.register_worker import build
from tasks.run import Run
from tasks.statistics import mcnemar_exact
from tasks.summary import summary
from tasks.tracking import Tracker

CHAT = (
    "{% for message in messages %}{{ message['role'] }}: {{ message['content'] }}<end>{% endfor %}"
    "{% if add_generation_prompt %}assistant: {% endif %}"
)
DATA = {"digest": "d" * 64, "source": "120 word problems", "revision": None, "counts": {"train": 80, "test": 40}}


def make_base(folder: Path) -> None:
    """A Llama of two layers that speaks in bytes."""
    letters = sorted(pre_tokenizers.ByteLevel.alphabet())
    tokenizer = Tokenizer(models.BPE({letter: number for number, letter in enumerate([*letters, "<end>"])}, []))
    tokenizer.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
    tokenizer.decoder = decoders.ByteLevel()
    fast = PreTrainedTokenizerFast(tokenizer_object=tokenizer, eos_token="<end>", pad_token="<end>")
    fast.chat_template = CHAT
    fast.save_pretrained(folder)
    torch.manual_seed(0)
    config = LlamaConfig(
        vocab_size=257,
        hidden_size=64,
        intermediate_size=128,
        num_hidden_layers=2,
        num_attention_heads=4,
        num_key_value_heads=2,
        bos_token_id=256,
        eos_token_id=256,
        pad_token_id=256,
    )
    LlamaForCausalLM(config).save_pretrained(folder)


def make_adapter(base: Path, folder: Path, lora_b) -> None:
    settings = LoraConfig(r=4, target_modules=["q_proj", "v_proj"], task_type="CAUSAL_LM")
    model = get_peft_model(LlamaForCausalLM.from_pretrained(base), settings)
    for name, weights in model.named_parameters():
        if "lora_B" in name:
            lora_b(weights.data)
    model.save_pretrained(folder)


@pytest.fixture(scope="module")
def weights(tmp_path_factory):
    """Folders of a start model, of adapters that are trained, untrained and diverged, and of fully trained weights."""
    folder = tmp_path_factory.mktemp("weights")
    make_base(folder / "base")
    make_adapter(folder / "base", folder / "trained", lambda b: b.normal_(std=0.5))
    make_adapter(folder / "base", folder / "untrained", lambda b: b.zero_())
    make_adapter(folder / "base", folder / "diverged", lambda b: b.fill_(torch.nan))
    full = LlamaForCausalLM.from_pretrained(folder / "base")
    full.lm_head.weight.data += 0.1
    full.save_pretrained(folder / "full")
    return folder


@pytest.fixture
def in_process(monkeypatch):
    """The worker's work without its process, which takes seconds to import torch.

    One job at a time: transformers changes its own classes while it loads a model, and of two loads that overlap in one
    process the second would leave them changed, for every later test.
    """
    alone = Lock()

    def run_job(module, job, folder, **_):
        with alone:
            return build(job)

    monkeypatch.setattr(register_stage, "run_job", run_job)


def results(correct=(), reward=None, questions="q") -> pd.DataFrame:
    """Per-question results; `correct` holds one digit per question."""
    n = len(reward) if reward is not None else len(correct)
    table = pd.DataFrame(
        {
            "id": [f"{questions}{number}" for number in range(n)],
            "question": [f"What is {number} + 1?" for number in range(n)],
            "answer": [str(number + 1) for number in range(n)],
            "completion": "some words",
            "tokens": 7,
            "finished": True,
            "reward": list(reward) if reward is not None else [2.0 * int(one) for one in correct],
        }
    )
    if reward is None:
        table["correct"] = table["correct_flexible"] = [one == "1" for one in correct]
    return table


class Finished:
    """A run whose model is trained and evaluated, and waits to be registered."""

    def __init__(self, weights, id, before, after, *, adapter="trained", settings=None):
        self.run = Run.open(id)
        values = {"registry": {"name": "sums"}, "prompt": {"opening": "<reasoning>\n"}} | (settings or {})
        values["training"] = {"max_completion_length": 12} | values.get("training", {})
        self.config = Config.model_validate(values)
        self.tracker = Tracker.open(self.config.registry, self.run, name=id, params={}, tags={})
        self.trained = {
            "adapter": str(weights / adapter) if adapter else None,
            "model": None,
            "base": str(weights / "base"),
            "base_revision": None,
            "step": 10,
            "steps": 15,
            "memory_changes": [],
        }
        self.before, self.after = self._evaluated("before", before), self._evaluated("after", after)

    def _evaluated(self, name, table):
        path = self.run.folder / f"{name}.parquet"
        table.to_parquet(path)
        correct_by = "correctness" if "correct" in table else None
        return summary(table) | {"results": str(path), "correct_by": correct_by}

    def register(self):
        return register(
            self.run,
            self.config,
            self.tracker,
            Outcome(DATA, self.trained, self.before, self.after),
            on_line=print,
        )

    @property
    def aliases(self):
        aliases = self.tracker.client.get_registered_model("sums").aliases
        return {alias: str(version) for alias, version in aliases.items()}

    def versions(self):
        return self.tracker.client.search_model_versions("name = 'sums'")

    def version(self, number):
        return self.tracker.client.get_model_version("sums", str(number))

    def download(self, number, folder):
        where = self.tracker.client.get_model_version_download_uri("sums", str(number))
        return Path(download_artifacts(where, dst_path=str(folder), tracking_uri=self.tracker.uri))


WEAK, MIDDLING, STRONG = "0" * 36 + "1" * 4, "0" * 28 + "1" * 12, "0" * 4 + "1" * 36


def test_through_a_server_a_version_loads_everywhere(weights, runs, mlflow_server, tmp_path, monkeypatch):
    settings = {"registry": {"name": "sums", "tracking_uri": mlflow_server.uri, "experiment": "served"}}
    one = Finished(weights, "served", results(WEAK), results(STRONG), settings=settings)
    given = one.register()

    assert (given["version"], given["outcome"], given["alias"]) == ("1", "promoted", "champion")
    assert one.aliases == {"champion": "1"}
    record = one.version(1)
    assert record.run_id == one.tracker.run_id and record.status == "READY"
    assert record.tags["data_digest"] == DATA["digest"] and len(record.tags["config_digest"]) == 64
    for words in ("10.0 % ± 4.7", "90.0 % ± 4.7", "p < 0.0001", "120 word problems", "had no champion"):
        assert words in record.description
    mlflow_run = one.tracker.client.get_run(one.tracker.run_id)
    assert mlflow_run.data.tags["outcome"] == "promoted"
    [output] = mlflow_run.outputs.model_outputs
    assert one.tracker.client.get_logged_model(output.model_id).artifact_location == record.source
    assert list(mlflow_server.folder.glob("artifacts/**/model.safetensors"))  # it went through the server

    folder = one.download(1, tmp_path / "copy")
    tokenizer = AutoTokenizer.from_pretrained(folder / "model")
    merged = AutoModelForCausalLM.from_pretrained(folder / "model").eval()
    base = AutoModelForCausalLM.from_pretrained(weights / "base").eval()
    ids = tokenizer("What is 1 + 1?", return_tensors="pt").input_ids
    plain = base(ids).logits
    adapted = PeftModel.from_pretrained(base, folder / "peft").eval()(ids).logits
    assert torch.allclose(merged(ids).logits, adapted, atol=1e-4)
    assert not torch.allclose(plain, adapted, atol=1e-2)

    monkeypatch.setattr("mlflow.tracking._tracking_service.utils._tracking_uri", mlflow_server.uri)
    pipeline = mlflow.transformers.load_model("models:/sums@champion")
    [[answer]] = pipeline(["user: hi"], max_new_tokens=5, do_sample=False, return_full_text=False)
    expected = merged.generate(**tokenizer("user: hi", return_tensors="pt"), max_new_tokens=5, do_sample=False)[
        0, len("user: hi") :
    ]
    assert answer["generated_text"] == tokenizer.decode(expected, skip_special_tokens=True)
    served = mlflow.pyfunc.load_model("models:/sums@champion")
    assert served.predict("user: hi", params={"max_new_tokens": 5}) == [answer["generated_text"]]
    assert served.metadata.signature.params.to_dict()[0]["default"] == 12
    example = json.loads((folder / "input_example.json").read_text())
    assert example["inputs"] == "user: What is 0 + 1?<end>assistant: <reasoning>\n"

    required = (folder / "requirements.txt").read_text().split()
    assert f"transformers=={version('transformers')}" in required
    assert f"torch=={version('torch').partition('+')[0]}" in required and f"peft=={version('peft')}" in required
    text = (folder / "model" / "README.md").read_text()
    for words in ("library_name: transformers", "+80.0 points", "correctness", "d" * 64, "max_completion_length: 12"):
        assert words in text
    assert pd.read_parquet(folder / "evaluation" / "after.parquet")["correct"].sum() == 36


def test_an_adapter_alone_loads_by_mlflow_and_carries_no_base_weights(weights, runs, in_process, tmp_path):
    settings = {"registry": {"name": "sums", "merged": False}}
    one = Finished(weights, "alone", results(WEAK), results(STRONG), settings=settings)
    one.register()
    folder = one.download(1, tmp_path / "copy")
    assert [path.relative_to(folder).as_posix() for path in folder.rglob("*.safetensors")] == [
        "peft/adapter_model.safetensors"
    ]
    assert isinstance(mlflow.transformers.load_model(str(folder)).model, PeftModel)
    assert len(mlflow.pyfunc.load_model(str(folder)).predict("user: hi")) == 1
    assert "library_name: peft" in (folder / "peft" / "README.md").read_text()


def test_fully_trained_weights_are_registered_without_an_adapter(weights, runs, in_process, tmp_path):
    one = Finished(weights, "full", results(WEAK), results(STRONG), adapter=None, settings={"training": {"lora": None}})
    one.trained["model"] = str(weights / "full")
    one.register()
    folder = one.download(1, tmp_path / "copy")
    saved = AutoModelForCausalLM.from_pretrained(folder / "model").lm_head.weight
    assert torch.equal(saved, AutoModelForCausalLM.from_pretrained(weights / "full").lm_head.weight)
    assert not (folder / "peft").exists()


def test_the_adapter_is_merged_in_the_precision_of_the_base_model(weights, runs, in_process, tmp_path):
    one = Finished(weights, "half", results(WEAK), results(STRONG))
    AutoModelForCausalLM.from_pretrained(weights / "base", dtype=torch.bfloat16).save_pretrained(tmp_path / "base")
    AutoTokenizer.from_pretrained(weights / "base").save_pretrained(tmp_path / "base")
    one.trained["base"] = str(tmp_path / "base")
    one.register()
    folder = one.download(1, tmp_path / "copy")
    assert AutoModelForCausalLM.from_pretrained(folder / "model", dtype="auto").dtype == torch.bfloat16


@pytest.mark.parametrize("kind", ["adapter", "model"])
def test_weights_that_training_left_alone_are_refused(weights, runs, in_process, kind):
    one = Finished(
        weights,
        "untrained",
        results(WEAK),
        results(WEAK),
        adapter="untrained" if kind == "adapter" else None,
        settings={"training": {"lora": {"r": 4} if kind == "adapter" else None}},
    )
    one.trained["model"] = None if kind == "adapter" else one.trained["base"]
    with pytest.raises(UserError, match="training has not changed the model"):
        one.register()
    assert one.versions() == [] and register_stage._own_model(one.tracker) is None
    assert one.tracker.client.get_run(one.tracker.run_id).data.tags["outcome"] == "unchanged"


def test_weights_that_are_no_numbers_are_refused(weights, runs, in_process):
    one = Finished(weights, "diverged", results(WEAK), results(WEAK), adapter="diverged")
    with pytest.raises(UserError, match=r"not finite .* diverged"):
        one.register()
    assert one.versions() == []


class TestPromotion:
    @pytest.fixture(autouse=True)
    def _in_process(self, in_process, monkeypatch, weights, runs):
        self.weights = weights

    def finished(self, id, before, after, **more):
        return Finished(self.weights, id, before, after, **more)

    def test_the_first_version_is_champion_and_says_if_it_is_no_better_than_its_start(self):
        one = self.finished("one", results(MIDDLING), results(WEAK))
        given = one.register()
        assert (given["outcome"], given["compared_with"]) == ("promoted", "")
        assert "no better than the model it started from: -20.0 points" in one.version(1).description

    def test_a_significantly_better_version_takes_the_place_of_the_champion(self):
        self.finished("one", results(WEAK), results(MIDDLING)).register()
        two = self.finished("two", results(WEAK), results(STRONG))
        given = two.register()
        assert (given["outcome"], given["alias"], given["compared_with"]) == ("promoted", "champion", "1")
        assert two.aliases == {"champion": "2", "previous": "1"}
        assert "against version 1, +60.0 points on 40 questions: 24 better, 0 worse" in two.version(2).description

    def test_a_version_that_may_be_better_by_luck_is_the_challenger(self):
        self.finished("one", results(WEAK), results(MIDDLING)).register()
        luckier = "0" * 24 + "1" * 16
        two = self.finished("two", results(WEAK), results(luckier))
        assert two.register()["outcome"] == "challenger"
        assert two.aliases == {"champion": "1", "challenger": "2"}
        assert "not better at p < 0.05: against version 1, +10.0 points" in two.version(2).description
        bold = {"registry": {"name": "sums", "significance": 0.2}}
        three = self.finished("three", results(WEAK), results(luckier), settings=bold)
        assert three.register()["outcome"] == "promoted"  # 4 of 4, p = 0.125

    def test_a_version_that_lost_against_its_start_model_is_the_challenger_however_good_it_is(self):
        self.finished("one", results(WEAK), results(WEAK)).register()
        two = self.finished("two", results("1" * 40), results(STRONG))
        given = two.register()
        assert given["outcome"] == "challenger" and "no better than the model it started from" in given["reason"]

    @pytest.mark.parametrize("other", ["id", "gold"])
    def test_answers_to_other_questions_are_not_compared(self, other):
        self.finished("one", results(WEAK), results(WEAK)).register()
        tables = [results(correct, questions="x" if other == "id" else "q") for correct in (WEAK, STRONG)]
        if other == "gold":
            for table in tables:
                table.loc[0, "answer"] = "17"
        given = self.finished("two", *tables).register()
        assert given["outcome"] == "challenger" and "evaluated on other questions" in given["reason"]

    def test_a_champion_that_was_registered_by_hand_is_not_compared(self, tmp_path):
        two = self.finished("two", results(WEAK), results(STRONG))
        two.tracker.client.create_registered_model("sums")
        two.tracker.client.create_model_version("sums", (tmp_path / "by-hand").as_uri())
        two.tracker.client.set_registered_model_alias("sums", "champion", "1")
        given = two.register()
        assert given["outcome"] == "challenger" and "keeps no answers" in given["reason"]

    def test_without_a_gold_the_mean_reward_decides(self):
        low, high = [-80.0 - n % 7 for n in range(40)], [-30.0 - n % 5 for n in range(40)]
        settings = {
            "data": {"gold": "none", "answer_column": None},
            "rewards": {"gold_template": None, "functions": [{"name": "length"}]},
            "registry": {"name": "sums"},
        }
        self.finished("one", results(reward=low), results(reward=low), settings=settings).register()
        two = self.finished("two", results(reward=low), results(reward=high), settings=settings)
        assert two.register()["outcome"] == "promoted"
        assert "paired permutation test, p = 0.0002" in two.version(2).description

        settings = settings | {"rewards": {"gold_template": None, "functions": [{"name": "length", "target": 100}]}}
        better = results(reward=[1.0] * 40)
        three = self.finished("three", results(reward=low), better, settings=settings)
        given = three.register()
        assert given["outcome"] == "challenger" and "judged by other rewards" in given["reason"]

    def test_what_is_right_by_another_reward_is_not_compared_and_by_other_weights_it_is(self, tmp_path):
        (tmp_path / "near.py").write_text("def near(**_): ...\n")
        near, right = {"name": f"{tmp_path}/near.py:near"}, {"name": "correctness"}
        self.finished("one", results(WEAK), results(MIDDLING), settings={"rewards": {"functions": [right]}}).register()
        two = self.finished("two", results(WEAK), results(STRONG), settings={"rewards": {"functions": [near, right]}})
        two.after["correct_by"] = "near"
        given = two.register()
        assert given["outcome"] == "challenger" and "judged by other rewards" in given["reason"]
        weighted = {"rewards": {"functions": [near, right | {"weight": 0.5}]}}
        three = self.finished("three", results(WEAK), results(STRONG), settings=weighted)
        assert three.register()["outcome"] == "promoted"

    def test_registering_again_changes_nothing_even_after_another_took_over(self, monkeypatch):
        one = self.finished("one", results(WEAK), results(MIDDLING))
        first = one.register()
        two = self.finished("two", results(WEAK), results(STRONG))
        two.register()
        for name in ("create_model_version", "log_model_artifacts", "set_registered_model_alias"):
            monkeypatch.delattr(mlflow.MlflowClient, name)
        assert one.register() == first
        assert two.aliases == {"champion": "2", "previous": "1"} and len(two.versions()) == 2
        assert not (one.run.folder / "register").exists()


class Killed(BaseException):
    pass


class DyingClient:
    """An MLflow client whose process is killed at its n-th call: before it, or after it with the answer lost."""

    def __init__(self, client, fatal, after):
        self._client, self._left, self._after = client, fatal, after

    def __getattr__(self, name):
        real = getattr(self._client, name)
        if not callable(real):
            return real

        def call(*args, **kwargs):
            self._left -= 1
            if self._left == 0 and not self._after:
                raise Killed
            answer = real(*args, **kwargs)
            if self._left == 0:
                raise Killed
            return answer

        return call


@pytest.mark.parametrize("after", [False, True])
def test_killed_again_and_again_it_ends_with_one_version_and_one_set_of_artifacts(weights, runs, in_process, after):
    Finished(weights, "one", results(WEAK), results(MIDDLING)).register()
    two = Finished(weights, "two", results(WEAK), results(STRONG))
    client = two.tracker.client
    for fatal in count(1):
        two.tracker.client = DyingClient(client, fatal, after)
        try:
            given = two.register()
            break
        except Killed:
            continue
    two.tracker.client = client
    assert fatal > 10
    assert (given["version"], given["outcome"]) == ("2", "promoted")
    assert len(two.versions()) == 2
    assert two.aliases == {"champion": "2", "previous": "1"}
    logged = client.search_logged_models([two.tracker.experiment_id], "tags.flow_run_id = 'two'")
    assert [model.status for model in logged] == ["READY"]
    assert len(client.get_run(two.tracker.run_id).outputs.model_outputs) == 1
    assert len(list((runs / "mlartifacts").rglob("model/model.safetensors"))) == 2
    assert client.get_run(two.tracker.run_id).data.tags["outcome"] == "promoted"


def test_killed_in_the_middle_of_an_upload_it_is_made_whole(weights, runs, in_process, monkeypatch, tmp_path):
    one = Finished(weights, "one", results(WEAK), results(STRONG))

    def half(self, model_id, local_dir, artifact_path=None):
        self.log_model_artifact(model_id, f"{local_dir}/MLmodel")
        raise Killed

    with monkeypatch.context() as patched, pytest.raises(Killed):
        patched.setattr(mlflow.MlflowClient, "log_model_artifacts", half)
        one.register()
    one.register()
    assert len(one.tracker.client.search_logged_models([one.tracker.experiment_id])) == 1
    assert AutoModelForCausalLM.from_pretrained(one.download(1, tmp_path / "copy") / "model")


def test_a_request_that_mlflow_repeats_makes_no_second_version(weights, runs, in_process, monkeypatch):
    one = Finished(weights, "one", results(WEAK), results(STRONG))
    for name in ("create_model_version", "create_logged_model"):
        real = getattr(mlflow.MlflowClient, name)
        monkeypatch.setattr(
            mlflow.MlflowClient, name, lambda *args, real=real, **more: (real(*args, **more), real(*args, **more))[1]
        )
    given = one.register()
    assert [str(found.version) for found in one.versions()] == [given["version"]]
    assert len(one.tracker.client.search_logged_models([one.tracker.experiment_id])) == 1


def test_of_two_first_versions_at_once_one_becomes_champion(weights, runs, in_process, monkeypatch):
    decide = promotion.decide

    def slowly(*arguments, **named):
        decision = decide(*arguments, **named)
        time.sleep(0.5)
        return decision

    monkeypatch.setattr(promotion, "decide", slowly)
    both = [Finished(weights, id, results("0" * 40), results("1" * 30 + "0" * 10)) for id in ("one", "other")]
    with ThreadPoolExecutor() as threads:
        outcomes = list(threads.map(lambda run: run.register()["outcome"], both))
    assert sorted(outcomes) == ["challenger", "promoted"]
    assert sorted(both[0].aliases) == ["challenger", "champion"]


def test_a_long_description_is_cut_to_what_the_database_holds():
    assert len(card.description("Why.", "x" * 9000)) == 5000
    assert card.description("Why.", "x") == "Why.\n\nx"


def test_passwords_do_not_reach_the_card():
    config = Config.model_validate({"registry": {"tracking_uri": "http://me:secret@host"}})
    assert "secret" not in card.model_card(config, "facts") and "http://host" in card.model_card(config, "facts")


def test_a_decision_needs_no_model_at_all(runs):
    tracker = Tracker.open(Config().registry, Run.open("r"), name="r", params={}, tags={})
    tracker.client.create_registered_model("sums")
    gain = mcnemar_exact([False], [True])
    found = promotion.decide(tracker.client, "sums", results=results("1"), gain=gain, judge="", significance=0.05)
    assert found == promotion.Decision("champion", "sums had no champion to compare with.", None)
