"""What is tried when memory runs out, in which order, and that the result stays the same."""

import pytest
import torch

from tasks.config import Config
from tasks.errors import OutOfMemory, UserError
from tasks.memory import Relief, Signs, is_out_of_memory, smaller_evaluation, smaller_step, smaller_training_share


def config(**training: object) -> Config:
    return Config.model_validate({"training": {"save_steps": 16} | training})


class Fails:
    """Work that has not enough memory until a condition is met; it remembers the configurations that it was given."""

    def __init__(self, enough, for_vllm: bool = False) -> None:
        self.enough, self.for_vllm = enough, for_vllm
        self.seen: list[Config] = []

    def __call__(self, settings: Config) -> dict[str, object]:
        self.seen.append(settings)
        if not self.enough(settings):
            raise OutOfMemory("CUDA out of memory", 4, self.for_vllm)
        return {"steps": 3}


def relieve(path, work, given: Config, ways=(smaller_step, smaller_training_share)):
    lines: list[str] = []
    return Relief(path, ways).run(given, work, lines.append), lines


@pytest.mark.parametrize(
    "given",
    [
        {"per_device_train_batch_size": 24, "num_generations": 8, "gradient_accumulation_steps": 2},
        {"per_device_train_batch_size": 24, "num_generations": 8, "steps_per_generation": 4},
        {"per_device_train_batch_size": 24, "num_generations": 8, "generation_batch_size": 96},
        {"per_device_train_batch_size": 9, "num_generations": 3, "gradient_accumulation_steps": 4},
        {"num_generations": 8, "gradient_accumulation_steps": 4, "num_iterations": 2},
    ],
)
def test_the_batch_of_a_device_shrinks_and_groups_and_effective_batch_stay(tmp_path, given):
    work = Fails(lambda settings: settings.training.device_batch == 1)
    result, lines = relieve(tmp_path / "memory.json", work, config(**given))
    first, *others = work.seen
    assert others and len(lines) == len(others) == len(result["memory_changes"])
    sizes = [settings.training.device_batch for settings in work.seen]
    assert sizes == sorted(set(sizes), reverse=True)
    for settings in others:
        was, now = first.training, settings.training
        assert now.device_batch * now.accumulation == was.device_batch * was.accumulation
        assert now.generation_batch == was.generation_batch
        assert now.cycle_steps == was.cycle_steps
        assert now.grpo["num_generations"] == was.grpo["num_generations"]
    assert lines[0].startswith("WARNING memory ran out (CUDA out of memory); trying again with training.per_device_tra")


def test_then_vllm_gets_less_and_then_a_sentence_says_what_was_tried(tmp_path):
    given = config(per_device_train_batch_size=2, num_generations=2, use_vllm=True, vllm_gpu_memory_utilization=0.3)
    work = Fails(lambda settings: False)
    with pytest.raises(UserError) as caught:
        relieve(tmp_path / "memory.json", work, given)
    tried = [
        (one.training.device_batch, one.training.accumulation, one.training.grpo["vllm_gpu_memory_utilization"])
        for one in work.seen
    ]
    assert tried == [(2, 1, 0.3), (1, 2, 0.3), (1, 2, 0.2), (1, 2, 0.133)]
    said = str(caught.value)
    assert "training.per_device_train_batch_size 2 → 1, training.gradient_accumulation_steps 1 → 2" in said
    assert "training.vllm_gpu_memory_utilization 0.3 → 0.2" in said and "shorter training.max_completion_length" in said


def test_where_vllm_finds_less_than_its_share_the_batch_is_left_alone(tmp_path):
    given = config(use_vllm=True)
    work = Fails(lambda settings: settings.training.grpo.get("vllm_gpu_memory_utilization") == 0.2, for_vllm=True)
    result, _ = relieve(tmp_path / "memory.json", work, given)
    assert result["memory_changes"] == ["training.vllm_gpu_memory_utilization 0.3 → 0.2"]


def test_where_vllm_says_what_is_free_it_gets_that_much_at_once(tmp_path):
    given = config(use_vllm=True, vllm_gpu_memory_utilization=0.85)
    said = "Free memory on device cuda:0 (18.5/24.0 GiB) on startup is less than desired GPU memory utilization (0.85, "

    def work(settings: Config) -> dict[str, object]:
        if settings.training.grpo["vllm_gpu_memory_utilization"] > 18.5 / 24:
            raise OutOfMemory(said, 4, for_vllm=True)
        return {}

    result, _ = relieve(tmp_path / "memory.json", work, given)
    assert result["memory_changes"] == ["training.vllm_gpu_memory_utilization 0.85 → 0.741"]


def test_a_share_that_holds_no_completion_is_a_sentence_and_not_made_smaller():
    signs = Signs()
    signs.line("(EngineCore pid=6) ERROR 11-30 10:00:00 ValueError: No available memory for the cache blocks. Try")
    signs.line("RuntimeError: Engine core initialization failed. See root cause above. Failed core proc(s): {}")
    found = signs.diagnosis("tasks.evaluate_worker", 1, None)
    assert isinstance(found, UserError) and "raise evaluation.vllm_memory" in str(found)


def test_a_servers_share_is_left_alone_where_the_trainers_memory_ran_out(tmp_path):
    server = {"use_vllm": True, "vllm_mode": "server", "vllm_server": {"memory": 0.9}}
    given = config(per_device_train_batch_size=2, num_generations=2, **server)
    ways, lines = (smaller_step, smaller_training_share), []
    with pytest.raises(UserError, match=r"Tried: training.per_device_train_batch_size 2 → 1, \S+ 1 → 2\. Take"):
        Relief(tmp_path / "a.json", ways, vllm_apart=True).run(given, Fails(lambda settings: False), lines.append)
    own = Fails(lambda settings: settings.training.vllm_server.memory == 0.6, for_vllm=True)
    found = Relief(tmp_path / "b.json", ways, vllm_apart=True).run(given, own, lines.append)
    assert found["memory_changes"] == ["training.vllm_server.memory 0.9 → 0.6"]


def test_a_later_attempt_begins_with_what_did(tmp_path):
    given = config(per_device_train_batch_size=8)
    relieve(tmp_path / "memory.json", Fails(lambda settings: settings.training.device_batch == 2), given)
    again = Fails(lambda settings: True)
    result, lines = relieve(tmp_path / "memory.json", again, given)
    assert [settings.training.device_batch for settings in again.seen] == [2] and lines == []
    assert len(result["memory_changes"]) == 2


def test_an_evaluation_answers_fewer_questions_at_a_time(tmp_path):
    given = Config.model_validate({"evaluation": {"engine": "transformers", "batch_size": 6}})
    work = Fails(lambda settings: settings.evaluation.batch_size == 1)
    result, _ = relieve(tmp_path / "memory.json", work, given, (smaller_evaluation,))
    assert [settings.evaluation.batch_size for settings in work.seen] == [6, 3, 1]
    assert result["memory_changes"] == ["evaluation.batch_size 6 → 3", "evaluation.batch_size 3 → 1"]


@pytest.mark.parametrize(
    ("use_cpu", "change"),
    [(True, "evaluation.vllm_kv_cache_gib 2 → 1"), (False, "evaluation.vllm_memory 0.85 → 0.567")],
)
def test_vllm_in_an_evaluation_gets_less(tmp_path, use_cpu, change, monkeypatch):
    monkeypatch.setattr("tasks.memory.choose_engine", lambda config: ("vllm", "as in this test"))
    given = config(use_cpu=use_cpu)
    fails = Fails(lambda settings: settings.evaluation != given.evaluation)
    result, _ = relieve(tmp_path / "memory.json", fails, given, (smaller_evaluation,))
    assert result["memory_changes"] == [change]


def test_what_other_errors_say_is_not_taken_for_lacking_memory():
    with pytest.raises(RuntimeError) as real:
        torch.empty(1 << 60, dtype=torch.uint8)
    assert is_out_of_memory(real.value)
    chained = ValueError("the reward failed")
    chained.__cause__ = MemoryError()
    assert is_out_of_memory(chained)
    assert is_out_of_memory(torch.OutOfMemoryError("CUDA out of memory. Tried to allocate 2 GiB"))
    asleep = "CUDA Error: out of memory at /workspace/csrc/cumem_allocator.cpp:119"  # vLLM's, as it wakes up
    for said in (
        "CUDA error: out of memory",
        asleep,
        "CUBLAS_STATUS_ALLOC_FAILED when calling cublasCreate",
        "std::bad_alloc",
    ):
        assert is_out_of_memory(RuntimeError(said))
    assert not is_out_of_memory(RuntimeError("Cuda failure 217 'peer access is not supported'"))
    for other in (RuntimeError("mat1 and mat2 shapes cannot be multiplied"), OSError(28, "No space left on device")):
        assert not is_out_of_memory(other)


def test_the_cause_is_found_in_the_log_of_an_engine_of_several_processes():
    """The worker's own word, and then that of everybody who waited for it."""
    signs = Signs()
    for line in (
        "(Worker_TP1 pid=7) ERROR 11-30 10:00:00 ValueError: Free memory on device cuda:1 (3.1/79.2 GiB) on startup is "
        "less than desired GPU memory utilization (0.9, 71.3 GiB).",
        "(EngineCore pid=6) ERROR 11-30 10:00:01 Exception: WorkerProc initialization failed due to an exception in a",
        "Exception: WorkerProc initialization failed due to an exception in a background process.",
        "RuntimeError: Engine core initialization failed. See root cause above. Failed core proc(s): {}",
    ):
        signs.line(line)
    found = signs.diagnosis("tasks.vllm_server_worker", 1, None)
    assert found is not None and found.for_vllm and "Free memory on device cuda:1" in found.reason


@pytest.mark.parametrize(
    ("line", "lacks"),
    [
        ("Cuda failure 2 'out of memory'", True),
        ("Cuda failure 217 'peer access is not supported between these two devices'", False),
        ("RuntimeError: cuDNN error: CUDNN_STATUS_ALLOC_FAILED", True),
        ("MemoryError", True),
        ("numpy._core._exceptions._ArrayMemoryError: Unable to allocate 2 TiB for an array", True),
        ("ValueError: too many values", False),
    ],
)
def test_what_an_engine_in_a_process_of_its_own_says_of_memory(line, lacks):
    signs = Signs()
    signs.line(line)
    assert (signs.diagnosis("tasks.evaluate_worker", 1, None) is not None) == lacks


def test_a_lack_of_memory_that_was_got_over_long_before_is_no_cause():
    signs = Signs()
    signs.line("MemoryError")
    for step in range(300):
        signs.line(f"step {step}/300  reward 1.0")
    signs.line("KeyError: 'x'")
    assert signs.diagnosis("tasks.train_worker", 1, None) is None
