"""The configuration: what is taken, what is refused, and in which words."""

import re
from pathlib import Path

import pytest
import yaml

from tasks import trl_fields
from tasks.config import Config, load, parse_override
from tasks.errors import UserError
from tasks.run import PROJECT

SHIPPED = sorted((PROJECT / "deployments").glob("*.yaml"))
CONFIGURATIONS = [path for path in SHIPPED if path.name not in ("prefect.yaml", "automations.yaml")]


def write(folder: Path, text: str) -> Path:
    path = folder / "config.yaml"
    path.write_text(text, encoding="utf-8")
    return path


def refusal(folder: Path, text: str, **overrides: object) -> str:
    with pytest.raises(UserError) as caught:
        load(write(folder, text), {name.replace("__", "."): value for name, value in overrides.items()})
    return str(caught.value)


@pytest.mark.parametrize("path", CONFIGURATIONS, ids=lambda path: path.stem)
def test_every_shipped_configuration_loads_as_far_as_the_real_trl_and_peft_configurations(path, tmp_path):
    from tasks.training_arguments import grpo_config, lora_config

    config = load(path, {"training.use_cpu": True, "model.dtype": "float32"})
    arguments = grpo_config(config, output_dir=str(tmp_path))
    assert arguments.num_generations == config.training.grpo["num_generations"]
    assert arguments.generation_batch_size % arguments.num_generations == 0
    lora = lora_config(config)
    assert lora is not None and lora.r == config.training.lora["r"]


def test_the_table_of_fields_is_that_of_the_installed_trl_and_peft():
    assert trl_fields.table() == trl_fields.installed_table(), "run python -m tasks.trl_fields"


def test_every_deployment_names_a_configuration_that_is_there():
    deployments = yaml.safe_load((PROJECT / "deployments" / "prefect.yaml").read_text())["deployments"]
    assert {"gsm8k", "pilot", "demo", "tldr"} <= {one["name"] for one in deployments}
    for one in deployments:
        load(one["parameters"]["config"])


def test_the_classic_recipe_ships_as_it_is_known():
    grpo = load("deployments/gsm8k.yaml").training.grpo
    assert (grpo["learning_rate"], grpo["warmup_steps"], grpo["max_grad_norm"]) == (5e-6, 0.1, 0.1)
    assert (grpo["adam_beta1"], grpo["adam_beta2"], grpo["weight_decay"]) == (0.9, 0.99, 0.1)
    assert {"beta", "loss_type"} <= grpo.keys()


def test_a_dict_valued_field_is_taken(tmp_path):
    config = load(write(tmp_path, "training: {generation_kwargs: {stop: [x]}}"))
    assert config.training.grpo["generation_kwargs"] == {"stop": ["x"]}


def test_an_enum_valued_field_takes_its_names_and_no_others(tmp_path):
    assert load(write(tmp_path, "training: {lr_scheduler_type: cosine}")).training.grpo["lr_scheduler_type"] == "cosine"
    message = refusal(tmp_path, "training: {lr_scheduler_type: cosin}")
    assert "training.lr_scheduler_type is 'cosin'" in message and "did you mean cosine?" in message


def test_an_int_or_float_field_takes_both(tmp_path):
    assert load(write(tmp_path, "training: {warmup_steps: 10}")).training.grpo["warmup_steps"] == 10.0
    assert load(write(tmp_path, "training: {warmup_steps: 0.1}")).training.grpo["warmup_steps"] == 0.1


def test_a_list_valued_field_is_taken(tmp_path):
    config = load(write(tmp_path, "training: {lora: {target_modules: [q_proj, v_proj]}}"))
    assert config.training.lora is not None and config.training.lora["target_modules"] == ["q_proj", "v_proj"]


@pytest.mark.parametrize(
    ("given", "changed"),
    [
        ({}, {}),
        ({"r": 8}, {"r": 8}),
        ({"use_rslora": True, "target_modules": "all-linear"}, {"use_rslora": True, "target_modules": "all-linear"}),
        ({"target_modules": None}, {"target_modules": None}),
    ],
)
def test_a_field_of_the_adapter_leaves_the_others_as_they_are(given, changed):
    attention = {"r": 16, "lora_alpha": 32, "target_modules": ["q_proj", "k_proj", "v_proj", "o_proj"]}
    assert load({"training": {"lora": given}}).training.lora == attention | changed
    assert load({}, {f"training.lora.{name}": value for name, value in given.items()}).training.lora == (
        attention | changed
    )


def test_an_adapter_of_parameters_does_not_take_the_attention_besides():
    experts = {"target_parameters": ["experts.gate_up_proj"]}
    assert load({"training": {"lora": experts}}).training.lora == {"r": 16, "lora_alpha": 32} | experts


def test_what_is_not_set_is_for_every_stage_what_it_is_for_the_trainer(tmp_path):
    from tasks.training_arguments import grpo_config

    config = load({"training": {"use_cpu": True}})
    arguments = grpo_config(config, output_dir=str(tmp_path))
    assert config.max_new_tokens == arguments.max_completion_length == 512
    source = "".join(path.read_text(encoding="utf-8") for path in (PROJECT / "tasks").glob("*.py"))
    reckoned_with = set(re.findall(r'\.trl\("(\w+)"\)', source))
    assert {"max_completion_length", "num_generations", "vllm_gpu_memory_utilization"} <= reckoned_with
    for name in reckoned_with - {"steps_per_generation", "generation_batch_size"}:  # TRL fills them in, from others
        assert (getattr(arguments, name) or None) == (config.training.trl(name) or None), name
    assert arguments.generation_batch_size == config.training.generation_batch


def test_a_number_in_scientific_notation_without_a_dot_is_a_number(tmp_path):
    assert load(write(tmp_path, "training: {learning_rate: 5e-6}")).training.grpo["learning_rate"] == 5e-6
    assert parse_override("training.learning_rate=5e-6") == ("training.learning_rate", 5e-6)


@pytest.mark.parametrize(
    ("old", "new"),
    [
        ("warmup_ratio: 0.1", "training.warmup_steps"),
        ("max_prompt_length: 256", "prompt.max_tokens"),
        ("num_generation: 8", "training.num_generations"),
        ("lora_r: 8", "training.lora.r"),
        ("eval_steps: 10", "evaluation.every_steps"),
        ("reward_weights: [1.0]", "rewards.functions"),
    ],
)
def test_a_name_of_an_older_recipe_is_refused_with_its_successor(tmp_path, old, new):
    message = refusal(tmp_path, f"training: {{{old}}}")
    assert f"training.{old.partition(':')[0]}" in message and new in message


@pytest.mark.parametrize(
    ("text", "words"),
    [
        ("training: {learning_rat: 1.0e-5}", "training.learning_rat is not a field of GRPOConfig; did you mean"),
        ("training: {learning_rate: fast}", "training.learning_rate is 'fast', but must be a number"),
        ("training: {learning_rate: -1.0}", "training.learning_rate is -1.0, but must be at least 0"),
        ("training: {learning_rate: .nan}", "training.learning_rate is nan, but must be a finite number"),
        ("training: {max_steps: 2.5}", "training.max_steps is 2.5, but must be a whole number"),
        ("training: {use_vllm: 3}", "training.use_vllm is 3, but must be true or false"),
        ("training: {beta: null}", "training.beta cannot be null"),
        ("training: {output_dir: here}", "training.output_dir is set by the pipeline"),
        ("training: {lora: {rank: 8}}", "training.lora.rank is not a field of LoraConfig"),
        ("training: {temperature: 0}", "training.temperature is 0.0, but must be more than 0"),
        ("data: {pathh: x}", "data.pathh is not a setting; did you mean data.path?"),
        ("data: {max_samples: 0}", "data.max_samples is 0"),
        ("dat: {}", "dat is not a setting; did you mean data?"),
        ("learning_rate: 1", "it belongs into a section: training.learning_rate"),
        ("prompt: {template: hello}", "prompt.template: must contain {question}"),
        ("rewards: {functions: []}", "rewards.functions is []"),
        ("rewards: {functions: [{name: length, size: 3}]}", "no parameter 'size'"),
        ("data: {gold: none}", "the reward correctness compares with a gold, but data.gold is none"),
        ("data: {gold: none}\nrewards: {functions: [{name: length}]}", "set it to null"),
        ("rewards: {functions: [{name: corectness}]}", "no reward 'corectness'; did you mean correctness?"),
        ("rewards: {functions: [{name: int}, {name: int}]}", "names a reward twice"),
        ("evaluation: {correct_by: nobody}", "evaluation.correct_by is 'nobody'"),
        ("training: {num_generations: 3, per_device_train_batch_size: 8}", "(3) does not divide the generation batch"),
        ("training: {processes: 0}", "training.processes is 0"),
        ("training: {save_steps: 3, num_iterations: 2}", "must be a multiple of the generation cycle"),
        ("registry: {name: 'a/b'}", "registry.name is "),
        ("[1, 2]", "must hold a mapping of sections"),
        ("data: {\n", "is not valid YAML on line"),
        ("training: {5: 2}", "is not valid YAML on line 1: a key must be text; quote it"),
        ("training: {[a, b]: 2}", "a key must be text; quote it"),
        ("data: &all\n  samples: *all", "an anchor that contains itself"),
        (f"data: {{max_samples: {'9' * 5000}}}", "a number is too long"),
        ("model: {revision: 2024-13-45}\ndata: {max_samples: 0}", "data.max_samples is 0"),
        ("training: {max_steps: 0}", "training.max_steps is 0, but must be at least 1, or -1"),
        ("training: {max_steps: -5}", "training.max_steps is -5, but must be at least 1, or -1"),
        ("training: {seed: -1}", "training.seed is -1, but must be at least 0"),
        ("training: {repetition_penalty: 0}", "training.repetition_penalty is 0.0, but must be more than 0"),
        ("training: {log_completions: false}", "training.log_completions is set by the pipeline"),
        ("training: {label_smoothing_factor: 0.1}", "label_smoothing_factor cannot be used here (GRPO has no labels)"),
        ("training: {lora: {layer_replication: [[0, 1]]}}", "training.lora.layer_replication cannot be used here"),
        ("training: {lora: {alora_invocation_tokens: [1]}}", "can neither be merged nor evaluated); remove it"),
        ("training: {lora: {task_type: SEQ_CLS}}", "task_type is 'SEQ_CLS', but only CAUSAL_LM is trained here"),
        ("training: {delta: -1}", "training.delta"),
        ("training: {generation_kwargs: {max_new_tokens: 9}}", "which training.max_completion_length says; give it th"),
        ("training: {generation_kwargs: {stop_strings: [x]}}", "stop_strings, for which TRL gives transformers no tok"),
        ("training: {vllm_structured_outputs_regex: x}", "without training.use_vllm=true nothing heeds it"),
        ("training: {save_only_model: true}", "training.save_only_model is set by the pipeline"),
        ("training: {save_strategy: best}", "training.save_strategy is 'best', but must be one of no, steps, epoch"),
        ("training: {lora: {inference_mode: true}}", "training.lora.inference_mode is set by the pipeline"),
        ("training: {lora: {init_lora_weights: pissa_niter_4}}", "would not fit them when it is loaded; take pissa"),
        ("registry: {name: ' '}", "registry.name: ' ' is no name"),
        ("registry: {name: '..'}", "registry.name: '..' is no name"),
        (f"registry: {{experiment: {'e' * 600}}}", "registry.experiment is "),
        ("data: {name: a, name: b}", "'name' stands twice"),
        ("validation: {question_characters: [400, 10]}", "must be the shortest and then the longest"),
        ("evaluation: {limit: 0}", "evaluation.limit is 0"),
        ("rewards: {functions: [{name: 'a.py:b', judge: {apiKey: sk-12345678}}]}", "the parameter apiKey of the rew"),
        ("training: {num_generations: null}", "training.num_generations cannot be null"),
        ("rewards: {functions: [{name: org/judge}]}", "rewards.functions has only reward models, which training alone"),
        ("data: {path: ''}", "data.path is empty; give a path, or null for none"),
        ("training: {use_vllm: true, vllm_tensor_parallel_size: 2}", "vllm_tensor_parallel_size (2) does not divide"),
        ("data: {name: null}", "data: name is null, and neither path nor samples says where questions come from"),
        ("training: {max_completion_length: null}", "training.max_completion_length cannot be null"),
        (
            "rewards: {functions: [{name: 'a.py:b', openai_api_key: sk-12345678}]}",
            "openai_api_key of the reward b looks like a se",
        ),
    ],
)
def test_a_wrong_setting_is_refused_in_one_sentence_with_its_name(tmp_path, text, words):
    message = refusal(tmp_path, text)
    assert words in message, message
    assert len(message.splitlines()) == 1 and "pydantic" not in message and "Traceback" not in message


@pytest.mark.parametrize(
    ("text", "value"),
    [
        ("010", 10),
        ("5e-6", 5e-6),
        ("1e5", 1e5),
        (".5", 0.5),
        ("-3", -3),
        ("1:30", "1:30"),
        ("2024-01-01", "2024-01-01"),
    ],
)
def test_numbers_are_read_as_they_are_written(text, value):
    assert parse_override(f"model.revision={text}") == ("model.revision", value)


@pytest.mark.parametrize("path", ["x" * 5000, "a\0b", "~nobody-of-this-name/x.yaml"])
def test_a_path_that_cannot_be_one_is_one_sentence(path):
    with pytest.raises(UserError, match="cannot be read as a configuration|there is no configuration file"):
        load(path)
    for name in ("data.path", "model.name", "training.accelerate_config"):
        load({}, {name: path})  # whether it is there is for the stage to say that needs it


def test_a_section_may_be_merged_from_an_anchor(tmp_path):
    text = "training: {<<: &base {max_steps: 3, beta: 0.1}, beta: 0.2}"
    assert load(write(tmp_path, text)).training.grpo["max_steps"] == 3
    assert load(write(tmp_path, text)).training.grpo["beta"] == 0.2


@pytest.mark.parametrize("text", ["12e4567", "09", "1e5", "-.5", "2024-01-01", "1:30", "null", "yes", "0x1f", "~"])
def test_text_that_looks_like_something_else_is_stored_as_text(tmp_path, text):
    config = load({"data": {"revision": text}})
    config.write(tmp_path / "config.yaml")
    assert load(tmp_path / "config.yaml").data.revision == text


def test_a_home_folder_is_that_in_every_path(monkeypatch, tmp_path):
    monkeypatch.setenv("HOME", str(tmp_path))
    config = load({}, {"data.path": "~/rows", "rewards.functions": [{"name": "~/mine.py:brevity"}]})
    assert config.data.path == tmp_path / "rows" and config.rewards.functions[0].file == tmp_path / "mine.py"


def test_what_cannot_be_null_is_not_offered_as_null(tmp_path):
    message = refusal(tmp_path, "training: {num_generations: 3.5}")
    assert message.endswith("training.num_generations is 3.5, but must be a whole number")


def test_only_the_source_that_counts_is_recorded(tmp_path):
    rows, samples = {"data.path": str(tmp_path)}, {"data.samples": {"train": 10}}
    for overrides, counts in (({}, "name"), (samples, "samples"), (rows, "path"), (rows | samples, "path")):
        config = load({}, overrides)
        stored = load(config.dump()).data
        assert stored == config.data
        assert [name for name in ("path", "samples", "name") if getattr(stored, name) is not None] == [counts]


def test_a_refusal_says_whether_the_file_or_the_overrides_are_wrong(tmp_path):
    right, wrong = "training: {max_steps: 3}", "training: {max_step: 3}"
    assert refusal(tmp_path, right, training__beta="x").startswith(f"the overrides on {tmp_path}/config.yaml: training")
    assert refusal(tmp_path, wrong, training__beta=0.1).startswith(f"{tmp_path}/config.yaml: training.max_step ")


def test_divisibility_counts_the_configured_processes(tmp_path):
    text = "training: {num_generations: 16, per_device_train_batch_size: 4, processes: %d}"
    assert load(write(tmp_path, text % 4)).training.processes == 4
    assert "does not divide the generation batch of 8" in refusal(tmp_path, text % 2)


def test_a_missing_file_is_one_sentence(tmp_path):
    with pytest.raises(UserError, match="there is no configuration file"):
        load(tmp_path / "none.yaml")


def test_an_override_wins_over_the_file_and_may_make_a_section(tmp_path):
    path = write(tmp_path, "training: {learning_rate: 1.0e-5}")
    config = load(path, {"training.learning_rate": 2e-5, "data.path": "x"})
    assert config.training.grpo["learning_rate"] == 2e-5
    assert config.data.path == Path.cwd() / "x"


def test_a_path_in_a_file_is_relative_to_the_file(tmp_path):
    (tmp_path / "inside").mkdir()
    config = load(write(tmp_path / "inside", "data: {path: ../rows.jsonl}"))
    assert config.data.path == tmp_path / "rows.jsonl"


def test_a_reward_file_lies_beside_the_configuration(tmp_path):
    config = load(write(tmp_path, "rewards: {functions: [{name: 'mine.py:brevity', weight: 0.5, cap: 3}]}"))
    [reward] = config.rewards.functions
    assert (reward.name, reward.label) == (f"{tmp_path}/mine.py:brevity", "brevity")
    assert (reward.weight, reward.parameters) == (0.5, {"cap": 3})
    moved = load(write(tmp_path, ""), {"rewards.functions": [{"name": "mine.py:brevity"}]})
    assert moved.rewards.functions[0].name == f"{Path.cwd()}/mine.py:brevity"


@pytest.mark.parametrize("text", ["learning_rate=1", "training.learning_rate", "=3", ".x=3", "data.=3", "data..path=x"])
def test_an_override_without_a_dotted_name_and_a_value_is_refused(text):
    with pytest.raises(UserError, match="is no override"):
        parse_override(text)


def test_an_override_without_a_value_is_refused_rather_than_read_as_null():
    with pytest.raises(UserError, match=r"gives no value; write data\.path=null to unset it"):
        parse_override("data.path=")


def test_what_was_resolved_loads_again_to_the_same(tmp_path):
    config = load("deployments/demo.yaml", {"training.learning_rate": 1e-5})
    config.write(tmp_path / "config.yaml")
    assert load(tmp_path / "config.yaml") == config
    assert Config.model_validate(config.dump()) == config


def test_the_pilot_is_the_gsm8k_recipe_on_a_few_questions():
    full, pilot = load("deployments/gsm8k.yaml"), load("deployments/pilot.yaml")
    assert (pilot.prompt, pilot.model, pilot.rewards) == (full.prompt, full.model, full.rewards)
    assert pilot.data.max_samples == 64
    same = ("learning_rate", "num_generations", "per_device_train_batch_size", "max_completion_length", "loss_type")
    assert {name: pilot.training.grpo[name] for name in same} == {name: full.training.grpo[name] for name in same}


@pytest.mark.parametrize(
    ("text", "words"),
    [
        ("warmup_ratio=0.1", "warmup_ratio is training.warmup_steps (a value below 1 is a share of all steps) here"),
        ("learning_rate=1e-6", "write section.key=value, for example training.learning_rate=1e-6"),
        ("limit=3", "write section.key=value, for example training.learning_rate=1e-5"),
    ],
)
def test_an_override_without_its_section_is_shown_with_it_where_that_is_known(text, words):
    with pytest.raises(UserError) as caught:
        parse_override(text)
    assert words in str(caught.value)
