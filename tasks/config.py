"""The configuration of a run: one pydantic model, read from a sparse YAML file and dotted overrides.

Everything that can be said about a run stands here, each field explained where it is. `load` gives the resolved
configuration; it is stored with the run and logged to MLflow.
"""

import copy
import json
import os
import re
from difflib import get_close_matches
from pathlib import Path
from typing import Annotated, Any, Literal, Self, get_args

import yaml
from pydantic import (
    BaseModel,
    ConfigDict,
    Field,
    ValidationError,
    field_validator,
    model_validator,
)

from rewards.registry import REGISTRY, check_parameters, is_model_name, is_registered
from rewards.traits import traits_of
from tasks.errors import UserError
from tasks.run import PROJECT, write_whole
from tasks.trl_fields import SUCCESSORS, check_field, table

Stage = Literal["ingest", "validate", "check_rewards", "baseline", "train", "evaluate", "register"]
STAGES: tuple[Stage, ...] = get_args(Stage)

# A short sample of what reward and prompt belong together; GSM8K's classic recipe.
XML_GOLD = "<reasoning>\n{rationale}\n</reasoning>\n<answer>\n{answer}\n</answer>"


class Section(BaseModel):
    """A part of the configuration. Unknown names are refused, and nothing is converted silently."""

    model_config = ConfigDict(extra="forbid", validate_default=True)


class SampleSettings(Section):
    """Word problems made on the spot, for the demo and the tests (`tasks.samples`)."""

    train: int = Field(2000, ge=1, description="Training problems to make (validation is taken out of them).")
    test: int = Field(400, ge=1, description="Test problems to make; none shares its text with a training one.")
    steps: Literal[1, 2] = Field(1, description="The most arithmetic steps that a problem needs.")
    seed: int = Field(0, description="The same seed makes the same problems.")


class DataSettings(Section):
    """Where questions come from and how they are divided.

    One source counts: `path` before `samples` before `name`.
    """

    name: str | None = Field("openai/gsm8k", description="A dataset on the hub; null where another source counts.")
    subset: str | None = Field("main", description="The hub dataset's configuration name.")
    revision: str | None = Field(None, description="A commit or tag of the hub dataset; null takes the newest.")
    path: Path | None = Field(
        None,
        description="A folder with train and test files, or one file that is then divided. JSONL or Parquet, "
        "plain or gzip. Relative to the YAML file, or to the working folder in an override.",
    )
    samples: SampleSettings | None = Field(None, description="Make word problems instead of reading any.")
    train_split: str = Field("train", description="The split, or the file's stem, to train on.")
    test_split: str = Field("test", description="The split, or the file's stem, that only evaluation sees.")
    question_column: str = Field("question", description="The column that becomes `question`.")
    answer_column: str | None = Field(
        "answer", description="The column with the worked solution and the gold; null where there is no gold."
    )
    gold: Literal["hash", "plain", "none"] = Field(
        "hash",
        description="Where the gold stands: behind `####` at the end of the answer, as the whole answer, or "
        "nowhere (then the run is judged by its mean reward).",
    )
    validation_share: float = Field(
        0.05, gt=0, lt=1, description="The share of train held out for choosing; by hash of the question."
    )
    test_share: float = Field(
        0.1, gt=0, lt=1, description="The share that becomes test when `path` is one file; by hash of the question."
    )
    max_samples: int | None = Field(None, ge=1, description="Train on the first so many questions only.")
    expected_rows: dict[Literal["train", "test"], int] | None = Field(
        None, description="Row counts that the source must have, before validation is taken out."
    )

    @model_validator(mode="after")
    def _what_does_not_count_is_not_recorded(self) -> Self:
        if self.path is not None:
            self.samples = None
        if self.path is not None or self.samples is not None:
            self.name = self.revision = None
        elif self.name is None:
            raise ValueError("name is null, and neither path nor samples says where questions come from; give one")
        return self

    @model_validator(mode="after")
    def _gold_needs_a_column(self) -> Self:
        if self.gold != "none" and self.answer_column is None:
            raise ValueError("answer_column is null, so gold must be none")
        return self


class ExpectationSettings(BaseModel):
    """One expectation of Great Expectations: its type, where it holds, and its own arguments."""

    model_config = ConfigDict(extra="allow")

    type: str = Field(pattern="^expect_", description="For example expect_column_values_to_be_in_set.")
    split: Literal["train", "test"] | None = Field(None, description="Where it holds; null: in both.")

    @property
    def options(self) -> dict[str, Any]:
        return dict(self.__pydantic_extra__ or {})


class ValidationSettings(Section):
    """What the data gate holds the rows to, and what becomes of those that do not fit."""

    question_characters: tuple[int, int] = Field((10, 4000), description="Shortest and longest question.")
    answer_characters: tuple[int, int] = Field((1, 8000), description="Shortest and longest answer.")
    annotations: bool = Field(True, description="Compute GSM8K's calculator annotations <<3*4=12>> again.")
    max_shared_ngrams: float | None = Field(
        0.8,
        ge=0.5,
        le=1,
        description="The most of a test question's sequences of eight words that train may hold. Null sets no limit, "
        "for questions that are made from templates (`data.samples` has none anyway).",
    )
    expectations: list[ExpectationSettings] = Field(
        [],
        description="More expectations, of any type that Great Expectations knows, with its arguments: "
        "{type: expect_column_values_to_be_in_set, column: level, value_set: [easy, hard], split: train}.",
    )
    on_bad_rows: Literal["stop", "drop"] = Field(
        "stop",
        description="Stop the run, or leave the rows out that do not fit and keep them in a file with the reasons. Of "
        "rows that stand twice the first is kept, of those in train and test the one in test.",
    )
    max_dropped_share: float = Field(
        0.01, gt=0, lt=1, description="The most of train or of test that may be left out, as a share."
    )
    max_rows_named: int = Field(5, ge=1, description="How many rows a failed expectation names.")

    @field_validator("question_characters", "answer_characters")
    @classmethod
    def _shortest_before_longest(cls, limits: tuple[int, int]) -> tuple[int, int]:
        if not 0 <= limits[0] <= limits[1]:
            raise ValueError(f"must be the shortest and then the longest, not {list(limits)}")
        return limits


class Example(Section):
    """One few-shot example, shown to the model as an earlier turn."""

    question: str
    answer: str = Field(description="The whole assistant turn, in the format that is asked for.")


class PromptSettings(Section):
    """How a question becomes a prompt. Training, baseline and evaluation share it, token for token."""

    system: str | None = Field(None, description="The system prompt; null sends none.")
    template: str = Field("{question}", description="The user turn; {question} is replaced.")
    examples: list[Example] = Field([], description="Few-shot examples, as turns before the question.")
    opening: str = Field("", description="What the assistant's turn already holds when the model takes over.")
    conversational: bool = Field(True, description="Apply the chat template; false sends the plain text.")
    max_tokens: int | None = Field(None, ge=1, description="The longest prompt, in tokens; null sets no limit.")
    on_too_long: Literal["drop", "stop"] = Field(
        "drop", description="Leave longer prompts out (and count them), or stop the run."
    )

    @field_validator("template")
    @classmethod
    def _template_holds_the_question(cls, template: str) -> str:
        if "{question}" not in template:
            raise ValueError("must contain {question}")
        return template


_SECRET = re.compile(r"api_?key|secret|passw|credential|authorization|private_?key|access_?key|_token$|^token$|_key$")


def secret_among(values: Any) -> str | None:
    """The name of a parameter, at whatever depth, that holds what looks like a secret."""
    if isinstance(values, list):
        return next((found for value in values if (found := secret_among(value))), None)
    if not isinstance(values, dict):
        return None
    for name, value in values.items():
        words = re.sub(r"(?<=[a-z])(?=[A-Z])|-", "_", str(name)).lower()
        # A token may be one of text, such as the end of an answer; what is secret is long and has no spaces.
        if isinstance(value, str) and _SECRET.search(words) and re.fullmatch(r"\S{8,}|(?i:bearer) \S+", value):
            return str(name)
        if found := secret_among(value):
            return found
    return None


class RewardSettings(BaseModel):
    """One reward function: its name, its weight, and any parameters of its own."""

    model_config = ConfigDict(extra="allow")

    name: str = Field(
        description="A name of `rewards.registry`, a dotted path (`package.module:function`), a file beside the "
        "configuration (`my_rewards.py:function`), or a reward model on the hub."
    )
    weight: float = Field(1.0, allow_inf_nan=False, description="What its value is multiplied with in the sum.")

    @property
    def parameters(self) -> dict[str, Any]:
        return dict(self.__pydantic_extra__ or {})

    @property
    def label(self) -> str:
        """The short name, for metrics: `my_rewards.py:brevity` is `brevity`, and `org/judge-0.6B` is `judge-0.6B`."""
        if is_model_name(self.name):
            return Path(self.name).name
        return self.name.replace(":", "/").rsplit("/", 1)[-1].rsplit(".", 1)[-1]

    @property
    def file(self) -> Path | None:
        """The file that it lies in, where it is a function of the user's in one."""
        location, _, _ = self.name.rpartition(":")
        return Path(location) if location.endswith(".py") else None

    @model_validator(mode="after")
    def _no_parameter_is_a_secret(self) -> Self:
        name = secret_among(self.parameters)
        if name:
            raise ValueError(
                f"the parameter {name} of the reward {self.label} looks like a secret, and the configuration is "
                "written into logs, MLflow and the model card; read it from the environment in the reward"
            )
        return self

    @model_validator(mode="after")
    def _parameters_exist(self) -> Self:
        if is_registered(self.name):
            check_parameters(self.name, self.parameters)
        elif not re.search(r"[.:/]", self.name):  # what has one is the user's code, which only check_rewards imports
            near = get_close_matches(self.name, REGISTRY, n=1)
            hint = f"; did you mean {near[0]}?" if near else f"; there are {', '.join(REGISTRY)}"
            raise ValueError(f"there is no reward {self.name!r}{hint}")
        return self


class RewardsSettings(Section):
    """What the model is rewarded for, and the gate that the rewards pass before training."""

    functions: Annotated[list[RewardSettings], Field(min_length=1)] = Field(
        [
            RewardSettings(name=name, weight=1.0)
            for name in ("correctness", "int", "soft_format", "strict_format", "xmlcount")
        ],
        description="The reward is their weighted sum.",
    )
    gold_template: str | None = Field(
        XML_GOLD,
        description="A perfect completion, from the row's columns: every training gold written so must earn full "
        "marks from every reward. Null checks none.",
    )
    cases: Path | None = Field(None, description="Cases of your own (JSONL or YAML) that the rewards must meet.")
    exploit_limit: float | None = Field(
        None,
        gt=0,
        le=1,
        description="The most, as a share of the maximum, that a degenerate completion may earn if that is more than "
        "an honest but wrong answer earns; null only reports.",
    )
    time_limit: float = Field(600, gt=0, description="Seconds that checking the rewards may take.")


class ModelSettings(Section):
    """The model to start from."""

    name: str = Field(
        "Qwen/Qwen2.5-1.5B-Instruct",
        min_length=1,
        description="A hub id, a local folder, or `gguf:PACKAGE/FILE` for a GGUF file inside an installed package.",
    )
    revision: str | None = Field(None, description="A commit or tag of the hub model; null takes the newest.")
    dtype: Literal["auto", "bfloat16", "float16", "float32"] = Field(
        "auto",
        description="auto: bfloat16 where the device computes in it, else float16 on a GPU, float32 on a CPU; the "
        "weights of a model that is trained as a whole (training.lora: null) are in float32 all the same.",
    )
    trust_remote_code: bool = Field(False, description="Run Python code that comes with the model. Read it first.")


class ServerSettings(Section):
    """A vLLM server that the pipeline starts for training, on GPUs of its own."""

    gpus: int = Field(1, ge=1, description="GPUs that generate, by tensor parallelism, beside `training.processes`.")
    memory: float = Field(
        0.8,
        gt=0,
        lt=1,
        description="The share of their memory that vLLM may take; weights from the trainer take some GiB beside it.",
    )
    start_seconds: float = Field(600, gt=0, description="How long it may take to be ready.")


# The adapter's fields that are not peft's own where they are not set: the attention of the common architectures.
LORA_DEFAULTS: dict[str, Any] = {
    "r": 16,
    "lora_alpha": 32,
    "target_modules": ["q_proj", "k_proj", "v_proj", "o_proj"],
}


class TrainingSettings(BaseModel):
    """TRL's `GRPOConfig`, any field of it, with the LoRA adapter and the processes.

    What is not set keeps TRL's default, except for what stands in `PIPELINE_DEFAULTS`.
    """

    model_config = ConfigDict(extra="allow", validate_default=True)

    lora: dict[str, Any] | None = Field(
        LORA_DEFAULTS,
        description="Any field of peft's `LoraConfig`; null trains all weights. What is not set is peft's default, but "
        "r 16, lora_alpha 32 and target_modules the projections of attention (with target_parameters, none; null lets "
        "peft choose).",
    )
    processes: int = Field(1, ge=1, description="Processes that train together: one per GPU, or one on a CPU.")
    vllm_server: ServerSettings | None = Field(
        None,
        description="Start a vLLM server on other GPUs for the time of training. Null with vllm_mode=server takes the "
        "one at vllm_server_host and vllm_server_port (or vllm_server_base_url) that you have started.",
    )
    accelerate_config: Path | None = Field(None, description="A configuration of `accelerate launch` to use.")
    time_limit: float | None = Field(None, gt=0, description="Seconds that one attempt at training may take.")
    grace: float = Field(
        20,
        ge=0,
        description="Seconds for a last checkpoint when the run is to end; Prefect kills a cancelled one after 30.",
    )
    keep_checkpoints: bool = Field(
        False, description="Keep the checkpoints (`save_total_limit` of them) when the run has been registered."
    )
    concurrency_limit: str | None = Field(
        "auto",
        description="The Prefect concurrency limit of which every stage that generates or trains holds a slot, so that "
        "a GPU serves one run at a time. auto: `gpu`, and none on a CPU; null holds none. It counts where a Prefect "
        "server is configured.",
    )
    cpu_shortcuts: bool = Field(True, description="On a CPU, leave out work that cannot change a result (`tasks.cpu`).")

    @model_validator(mode="before")
    @classmethod
    def _fields_of_grpo_config(cls, values: Any) -> Any:
        if not isinstance(values, dict):
            return values
        own = cls.model_fields
        checked = {
            name: value if name in own else check_field("grpo", "training", name, value)
            for name, value in values.items()
        }
        lora = checked.get("lora")
        if isinstance(lora, dict):
            of_user = {name: check_field("lora", "training.lora", name, value) for name, value in lora.items()}
            defaults = dict(LORA_DEFAULTS)
            if of_user.get("target_parameters"):
                del defaults["target_modules"]
            checked["lora"] = defaults | of_user
        return checked

    @property
    def grpo(self) -> dict[str, Any]:
        """The keyword arguments for `GRPOConfig`, the pipeline's defaults included."""
        return PIPELINE_DEFAULTS | dict(self.__pydantic_extra__ or {})

    def trl(self, name: str) -> Any:
        """The field `name` of `GRPOConfig` as the trainer will have it: as it is set, or TRL's default."""
        grpo = self.grpo
        return grpo[name] if name in grpo else table()["grpo"][name]["default"]

    @property
    def on_cpu(self) -> bool:
        """Whether a GPU is left alone, should there be one."""
        return bool(self.trl("use_cpu"))

    @property
    def vllm(self) -> Literal["colocate", "server"] | None:
        """Where vLLM writes the completions: in the trainer's process or in one of its own. None: transformers does."""
        if not self.trl("use_vllm"):
            return None
        mode: Literal["colocate", "server"] = self.trl("vllm_mode")
        return mode

    @property
    def device_batch(self) -> int:
        """Completions that one process takes at one time."""
        size: int = self.trl("per_device_train_batch_size")
        return size

    @property
    def accumulation(self) -> int:
        """Batches that are taken before the weights change."""
        steps: int = self.trl("gradient_accumulation_steps")
        return steps

    @property
    def step_size(self) -> int:
        """Completions that all processes together take at one time."""
        return self.device_batch * self.processes

    @property
    def generation_batch(self) -> int:
        """Completions that are generated at one time, before they are trained on."""
        per_generation = self.trl("steps_per_generation") or self.accumulation
        batch: int = self.trl("generation_batch_size") or self.step_size * per_generation
        return batch

    @property
    def cycle_steps(self) -> float:
        """Optimizer steps from one generation to the next."""
        return self._cycle_batches / self.accumulation

    def ends_cycle(self, step: int) -> bool:
        """Whether a generation cycle ends with the optimizer step `step`; only there is nothing lost by stopping."""
        return step * self.accumulation % self._cycle_batches == 0

    @property
    def keeps_old_logps(self) -> bool:
        """Whether TRL scores completions once before it learns from them: where vLLM's probabilities are corrected for,
        or where the weights change between generation and learning."""
        corrects = self.vllm is not None and self.trl("vllm_importance_sampling_correction")
        return bool(corrects) or self.accumulation % self._cycle_batches != 0

    @property
    def _cycle_batches(self) -> int:
        iterations: int = self.trl("num_iterations")
        return self.generation_batch // self.step_size * iterations

    @model_validator(mode="after")
    def _server_is_asked_for_in_full(self) -> Self:
        if self.trl("vllm_mode") == "server" and not self.vllm:
            raise ValueError("training.vllm_mode is server, which needs training.use_vllm=true; set both or neither")
        if self.vllm_server is None:
            return self
        if self.vllm != "server":
            raise ValueError("training.vllm_server needs training.use_vllm=true and training.vllm_mode=server")
        for name in ("vllm_server_host", "vllm_server_port", "vllm_server_base_url", "vllm_group_port"):
            if name in self.grpo:
                raise ValueError(f"training.{name} is chosen by the pipeline, which starts training.vllm_server itself")
        return self

    @model_validator(mode="after")
    def _tensor_parallel_processes_divide(self) -> Self:
        size = self.trl("vllm_tensor_parallel_size") or 1
        if self.vllm == "colocate" and self.processes % size:
            raise ValueError(
                f"training.vllm_tensor_parallel_size ({size}) does not divide training.processes ({self.processes}), "
                "among which vLLM divides the model; make it a divisor"
            )
        return self

    @model_validator(mode="after")
    def _generation_is_what_the_other_settings_say(self) -> Self:
        for name in self.trl("generation_kwargs") or {}:
            if field := OF_GENERATION.get(name):
                raise ValueError(f"training.generation_kwargs has {name}, which training.{field} says; give it there")
            if name == "stop_strings" and not self.vllm:
                raise ValueError(
                    "training.generation_kwargs has stop_strings, for which TRL gives transformers no tokenizer; take "
                    "it out, or set training.use_vllm=true, whose name for it is stop"
                )
        if self.trl("vllm_structured_outputs_regex") and not self.vllm:
            raise ValueError(
                "training.vllm_structured_outputs_regex is set, but without training.use_vllm=true nothing heeds it; "
                "set that, or remove it"
            )
        return self

    @model_validator(mode="after")
    def _an_adapter_fits_the_base_again(self) -> Self:
        beginning = (self.lora or {}).get("init_lora_weights")
        if isinstance(beginning, str) and beginning.startswith("pissa_niter"):
            raise ValueError(
                f"training.lora.init_lora_weights is {beginning!r}, which changes the base weights by a random "
                "approximation, so that a saved adapter would not fit them when it is loaded; take pissa"
            )
        return self

    @model_validator(mode="after")
    def _a_cpu_has_one_process(self) -> Self:
        if self.on_cpu and self.processes > 1:
            raise ValueError(
                f"training.processes is {self.processes}, but training.use_cpu trains in one process, which takes all "
                "cores; set training.processes=1"
            )
        return self

    @model_validator(mode="after")
    def _groups_divide_the_batch(self) -> Self:
        grpo = self.grpo
        if "generation_batch_size" in grpo and "steps_per_generation" in grpo:
            raise ValueError("training.generation_batch_size and training.steps_per_generation exclude each other")
        group, step, batch = self.trl("num_generations"), self.step_size, self.generation_batch
        if batch % step:
            raise ValueError(
                f"training.generation_batch_size ({batch}) must be a multiple of training.per_device_train_batch_size "
                f"times training.processes ({step})"
            )
        if batch % group:
            raise ValueError(
                f"training.num_generations ({group}) does not divide the generation batch of {batch} completions "
                f"(per_device_train_batch_size × processes × steps per generation); choose a divisor of {batch}, or "
                f"make the batch a multiple of {group}"
            )
        save = self.trl("save_steps")
        if self.trl("save_strategy") == "steps" and save >= 1 and not self.ends_cycle(int(save)):
            raise ValueError(
                f"training.save_steps ({save:g}) must be a multiple of the generation cycle of {self.cycle_steps:g} "
                "steps: a run resumed inside a cycle would generate anew and differ from the uninterrupted one"
            )
        return self


# What TRL, or we, go by the setting of, though `generation_kwargs` would undo it.
OF_GENERATION = {
    "temperature": "temperature",
    "max_new_tokens": "max_completion_length",
    "max_tokens": "max_completion_length",
    "max_length": "max_completion_length",
    "num_return_sequences": "num_generations",
    "n": "num_generations",
}

# Where the pipeline's default differs from TRL's.
PIPELINE_DEFAULTS: dict[str, Any] = {
    "logging_steps": 1,
    "save_strategy": "steps",
    "save_steps": 50,
    "save_total_limit": 3,
    "gradient_checkpointing": False,
    "seed": 0,
}


class WatchSettings(Section):
    """When a training run counts as sick (`tasks.sick_runs`): thresholds that must be passed for `steps` steps."""

    stop: bool = Field(True, description="Stop a hopeless run; false only warns.")
    steps: int = Field(20, ge=2, description="Logged steps in a row that a symptom must last.")
    max_equal_groups: float = Field(
        0.8, gt=0, le=1, description="Warn at this share of groups without spread; all of them stop the run."
    )
    min_entropy: float = Field(0.01, ge=0, description="Warn below this mean entropy per token, in nats.")
    max_kl: float = Field(2.0, gt=0, description="Warn above this divergence from the start model (with beta).")
    max_clipped_completions: float = Field(0.8, gt=0, le=1, description="Warn above this share cut off at their end.")
    max_clip_ratio: float = Field(0.5, gt=0, le=1, description="Warn above this share of tokens with a clipped ratio.")


class EvaluationSettings(Section):
    """Evaluation before, during and after training, all by one protocol: greedy, and sampled besides if asked for."""

    engine: Literal["auto", "vllm", "transformers"] = Field(
        "auto", description="What generates; auto takes vLLM where it is installed and says so."
    )
    limit: int | None = Field(None, ge=1, description="Score the first so many test questions only.")
    validation_limit: int = Field(64, ge=1, description="Validation questions scored during training.")
    every_steps: int | None = Field(
        None,
        ge=1,
        description="Score validation every so many steps and keep the best weights; null: never, and keep the last.",
    )
    max_new_tokens: int | None = Field(
        None, ge=1, description="The longest completion, in tokens; null takes training.max_completion_length."
    )
    correct_by: str | None = Field(
        None,
        description="The reward whose full marks mean a right answer; null takes the first that declares its maximum "
        "and the column of the gold.",
    )
    samples: int | None = Field(
        None,
        ge=2,
        description="So many sampled completions per test question besides the greedy one, for pass@k and the answer "
        "of their majority; null: none. Models are promoted by the greedy ones.",
    )
    temperature: float = Field(0.7, gt=0, le=2, description="Of the sampled completions.")
    top_p: float = Field(1.0, gt=0, le=1, description="Of the sampled completions.")
    processes: int | None = Field(
        None,
        ge=1,
        description="Processes that share the questions, each with the whole model and, on GPUs, one of them; null "
        "takes the GPUs that training has (training.processes and those of its vllm_server), and one process on a CPU.",
    )
    batch_size: int = Field(16, ge=1, description="Prompts at a time with transformers.")
    vllm_memory: float = Field(0.85, gt=0, lt=1, description="The share of the GPU's memory that vLLM may take.")
    vllm_kv_cache_gib: int = Field(2, ge=1, description="GiB of RAM for vLLM's KV cache on a CPU.")
    examples: int = Field(4, ge=0, description="Questions shown with their answers before and after.")
    time_limit: float | None = Field(None, gt=0, description="Seconds that one evaluation may take.")


class RegistrySettings(Section):
    """Where results are recorded, and when a model is promoted."""

    name: str = Field(
        "grpo-gsm8k", pattern=r"^[^/:]+$", description="The registered model's name in MLflow; no slash, no colon."
    )
    experiment: str = Field("grpo-gsm8k", max_length=500, description="The MLflow experiment.")
    tracking_uri: str | None = Field(
        None, description="The MLflow server; null takes MLFLOW_TRACKING_URI, else a SQLite file in the runs folder."
    )
    significance: float = Field(
        0.05, gt=0, lt=1, description="A challenger is promoted if it is better with a p value below this."
    )
    merged: bool = Field(True, description="Log the merged model besides the adapter.")

    @field_validator("name", "experiment")
    @classmethod
    def _is_a_name(cls, name: str) -> str:
        if not name.strip(" ."):
            raise ValueError(f"{name!r} is no name; give it letters or digits")
        return name


class Config(Section):
    """A whole run."""

    data: DataSettings = DataSettings()
    validation: ValidationSettings = ValidationSettings()
    prompt: PromptSettings = PromptSettings()
    rewards: RewardsSettings = RewardsSettings()
    model: ModelSettings = ModelSettings()
    training: TrainingSettings = TrainingSettings()
    watch: WatchSettings = WatchSettings()
    evaluation: EvaluationSettings = EvaluationSettings()
    registry: RegistrySettings = RegistrySettings()

    @model_validator(mode="after")
    def _parts_fit_together(self) -> Self:
        names = [reward.label for reward in self.rewards.functions]
        if len(names) != len(set(names)):
            raise ValueError("rewards.functions names a reward twice; give it once, with the weights added up")
        if all(is_model_name(reward.name) for reward in self.rewards.functions):
            raise ValueError(
                "rewards.functions has only reward models, which training alone asks, so that nothing would say "
                "whether the model has become better; add a function"
            )
        chosen = self.evaluation.correct_by
        if chosen is not None and chosen not in names:
            raise ValueError(f"evaluation.correct_by is {chosen!r}, but rewards.functions has only {', '.join(names)}")
        if self.data.gold == "none":
            for reward in self.rewards.functions:
                if is_registered(reward.name) and traits_of(REGISTRY[reward.name]).gold_column == "answer":
                    raise ValueError(f"the reward {reward.name} compares with a gold, but data.gold is none; remove it")
            if self.rewards.gold_template is not None:
                raise ValueError("rewards.gold_template writes golds, but data.gold is none; set it to null")
        if self.prompt.opening and not self.prompt.conversational:
            raise ValueError("prompt.opening needs prompt.conversational; put the text into prompt.template instead")
        return self

    @property
    def max_new_tokens(self) -> int:
        """The longest completion in an evaluation, in tokens."""
        return self.evaluation.max_new_tokens or self.training.trl("max_completion_length")

    @property
    def evaluation_processes(self) -> int:
        """How many processes share the questions of an evaluation."""
        if self.evaluation.processes:
            return self.evaluation.processes
        if self.training.on_cpu:
            return 1
        server = self.training.vllm_server
        return self.training.processes + (server.gpus if server else 0)

    @property
    def concurrency_limit(self) -> str | None:
        """The name of the limit that `training.concurrency_limit` means."""
        name = self.training.concurrency_limit
        return (None if self.training.on_cpu else "gpu") if name == "auto" else name

    def dump(self) -> dict[str, Any]:
        """The resolved configuration as plain JSON values."""
        return self.model_dump(mode="json")

    def write(self, path: Path) -> None:
        """Half of a configuration would be another one, so it is written whole."""
        write_whole(path, yaml.dump(self.dump(), Dumper=_Dumper, sort_keys=False, allow_unicode=True))


class _Loader(yaml.SafeLoader):
    """YAML as its version 1.2 reads numbers, with keys that are text, each once.

    PyYAML keeps to version 1.1, where `5e-6` and `1e5` are text, 010 is eight, 1:30 is ninety and 2024-01-01 a date.
    """

    def construct_mapping(self, node: yaml.MappingNode, deep: bool = False) -> dict[Any, Any]:
        seen = set()
        for key, _ in node.value:
            if key.tag == "tag:yaml.org,2002:merge":
                continue
            if not isinstance(key, yaml.ScalarNode) or not isinstance(self.construct_object(key), str):
                raise _fault("a key must be text; quote it", key)
            if key.value in seen:
                raise _fault(f"the key {key.value!r} stands twice", key)
            seen.add(key.value)
        return super().construct_mapping(node, deep)

    def construct_number(self, node: yaml.ScalarNode) -> int:
        try:
            return int(node.value)
        except ValueError:  # of thousands of digits
            raise _fault("a number is too long", node) from None


def _fault(problem: str, node: yaml.Node) -> yaml.constructor.ConstructorError:
    return yaml.constructor.ConstructorError(None, None, problem, node.start_mark)


_Loader.yaml_implicit_resolvers = {
    first: [(tag, pattern) for tag, pattern in resolvers if tag.rpartition(":")[2] not in ("timestamp", "int", "float")]
    for first, resolvers in yaml.SafeLoader.yaml_implicit_resolvers.items()
}
_Loader.add_implicit_resolver("tag:yaml.org,2002:int", re.compile(r"^[-+]?[0-9]+$"), list("-+0123456789"))
_Loader.add_implicit_resolver(
    "tag:yaml.org,2002:float",
    re.compile(r"^[-+]?(?:[0-9]+\.?[0-9]*|\.[0-9]+)(?:[eE][-+]?[0-9]+)?$|^[-+]?\.(?:inf|Inf|INF)$|^\.(?:nan|NaN|NAN)$"),
    list("-+.0123456789"),
)
_Loader.add_constructor("tag:yaml.org,2002:int", _Loader.construct_number)


class _Dumper(yaml.SafeDumper):
    """Puts quotes around text that `_Loader` would take for something else."""

    yaml_implicit_resolvers = _Loader.yaml_implicit_resolvers


PATHS = ("data.path", "rewards.cases", "training.accelerate_config")


def load(source: str | Path | dict[str, Any], overrides: dict[str, Any] | None = None) -> Config:
    """The resolved configuration of a YAML file (or its content) with dotted overrides on top.

    `overrides` maps `section.key` to a value. Relative paths in the file are relative to the file, those in overrides
    to the working folder. Raises UserError with one sentence that names the setting.
    """
    if isinstance(source, dict):
        values, folder, where = json.loads(json.dumps(source)), Path.cwd(), "the configuration"
    else:
        path = Path(source)
        if not os.path.exists(path) and os.path.exists(PROJECT / path):
            path = PROJECT / path  # a deployment names deployments/….yaml, wherever its worker was started
        values, folder, where = read_yaml(path), path.absolute().parent, str(source)
    for dotted in PATHS:
        _make_absolute(values, dotted, folder)
    _make_model_absolute(values, folder)
    _make_rewards_absolute(values, folder)
    if not overrides:
        return _validated(values, where)
    changed = copy.deepcopy(values)
    for dotted, value in overrides.items():
        _set(changed, dotted, copy.deepcopy(value))

    def overridden(dotted: str) -> bool:  # itself, or its whole section
        return dotted in overrides or dotted.partition(".")[0] in overrides

    for dotted in filter(overridden, PATHS):
        _make_absolute(changed, dotted, Path.cwd())
    if overridden("model.name"):
        _make_model_absolute(changed, Path.cwd())
    if overridden("rewards.functions"):
        _make_rewards_absolute(changed, Path.cwd())
    try:
        return _validated(changed, f"the overrides on {where}")
    except UserError:
        _validated(values, where)  # where the file alone is wrong, say so
        raise


def _validated(values: dict[str, Any], where: str) -> Config:
    try:
        return Config.model_validate(values)
    except ValidationError as error:
        raise UserError(f"{where}: {_one_sentence(error)}") from None


def parse_override(text: str) -> tuple[str, Any]:
    """`training.learning_rate=1e-5` as a name and a value; the value is read as YAML."""
    name, equals, value = text.partition("=")
    if not equals or len(name.split(".")) < 2 or not all(part.strip() for part in name.split(".")):
        near = f"training.{text}" if name in table()["grpo"] and value else "training.learning_rate=1e-5"
        if name in SUCCESSORS:
            raise UserError(f"{text!r} is no override: {name} is {SUCCESSORS[name]} here; write section.key=value")
        raise UserError(f"{text!r} is no override: write section.key=value, for example {near}")
    if not value.strip():
        raise UserError(f"{text!r} gives no value; write {name}=null to unset it")
    try:
        return name.strip(), yaml.load(value, _Loader)
    except yaml.YAMLError:
        raise UserError(f"{name}: the value {value!r} is not valid YAML; quote it") from None


def read_yaml(path: Path) -> dict[str, Any]:
    """The values of a YAML file, not yet looked at. Raises UserError."""
    try:
        values = yaml.load(path.read_text(encoding="utf-8"), _Loader)
    except FileNotFoundError:
        raise UserError(f"there is no configuration file {path}; look into deployments/ for those that ship") from None
    except yaml.YAMLError as error:
        mark = getattr(error, "problem_mark", None)
        line = f" on line {mark.line + 1}" if mark else ""
        raise UserError(f"{path} is not valid YAML{line}: {getattr(error, 'problem', None) or error}") from None
    except (OSError, ValueError) as error:  # a folder, no leave to read it, bytes that are no text, an impossible name
        raise UserError(f"{path} cannot be read as a configuration: {error}") from None
    if values is None:
        return {}
    if not isinstance(values, dict):
        raise UserError(f"{path} must hold a mapping of sections, not {type(values).__name__}")
    try:
        json.dumps(values)
    except ValueError:
        raise UserError(f"{path} holds an anchor that contains itself; write out what it stands for") from None
    return values


def _set(values: dict[str, Any], dotted: str, value: Any) -> None:
    *parents, last = dotted.split(".")
    for name in parents:
        if values.get(name) is None:
            values[name] = {}
        values = values[name]
        if not isinstance(values, dict):
            raise UserError(f"{dotted}: {name} is not a section, so nothing inside it can be set")
    values[last] = value


def _make_absolute(values: dict[str, Any], dotted: str, folder: Path) -> None:
    section, name = dotted.split(".")
    part = values.get(section)
    if isinstance(part, dict) and isinstance(part.get(name), str):
        if not part[name].strip():
            raise UserError(f"{dotted} is empty; give a path, or null for none")
        part[name] = _absolute(part[name], folder)


def _absolute(path: str, folder: Path) -> str:
    return os.path.normpath(folder / os.path.expanduser(path))


def _make_model_absolute(values: dict[str, Any], folder: Path) -> None:
    """A model may be a folder, or else a name on the hub, which looks the same."""
    model = values.get("model")
    name = model.get("name") if isinstance(model, dict) else None
    if isinstance(model, dict) and isinstance(name, str) and os.path.isdir(_absolute(name, folder)):
        model["name"] = _absolute(name, folder)


def _make_rewards_absolute(values: dict[str, Any], folder: Path) -> None:
    """A reward of the form `file.py:function`, or the folder of a reward model, lies beside the configuration."""
    rewards = values.get("rewards")
    functions = rewards.get("functions") if isinstance(rewards, dict) else None
    for reward in functions if isinstance(functions, list) else []:
        name = reward.get("name") if isinstance(reward, dict) else None
        if isinstance(name, str) and (
            re.search(r"\.py:\w+$", name) or ("/" in name and os.path.isdir(_absolute(name, folder)))
        ):
            reward["name"] = _absolute(name, folder)


def _one_sentence(error: ValidationError) -> str:
    """The first thing that is wrong, with its dotted name and, for a misspelt one, the nearest that exists."""
    first = error.errors()[0]
    where = ".".join(str(part) for part in first["loc"])
    message = first["msg"].removeprefix("Value error, ")
    if first["type"] == "extra_forbidden":
        return f"{where} is not a setting{_near(first['loc'])}"
    if first["type"] == "value_error":
        # A message that begins with a dotted name says itself where it belongs.
        return message if not where or re.match(r"[a-z_]+\.[a-z_.]+ ", message) else f"{where}: {message}"
    shown = json.dumps(first["input"], default=str)
    return f"{where} is {shown[:80]}, but: {message[0].lower()}{message[1:]}"


def _near(location: tuple[int | str, ...]) -> str:
    model: type[BaseModel] = Config
    for part in location[:-1]:
        field = model.model_fields.get(str(part))
        inner = [t for t in (field.annotation, *get_args(field.annotation)) if _is_model(t)] if field else []
        if not inner:
            return ""
        model = inner[0]
    dotted = ".".join(str(part) for part in location[:-1])
    near = get_close_matches(str(location[-1]), list(model.model_fields), n=1)
    if not near and not dotted:
        grpo = table()["grpo"]
        if location[-1] in grpo:
            return f"; it belongs into a section: training.{location[-1]}"
        return f"; the sections are {', '.join(Config.model_fields)}"
    return f"; did you mean {dotted + '.' if dotted else ''}{near[0]}?" if near else ""


def _is_model(annotation: Any) -> bool:
    return isinstance(annotation, type) and issubclass(annotation, BaseModel)
