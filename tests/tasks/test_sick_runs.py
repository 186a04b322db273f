"""A sick run is recognised by what lasts, and a healthy one is left alone."""

import math

import pytest

from tasks.config import WatchSettings
from tasks.sick_runs import Finding, Watch, broken

HEALTHY = {
    "loss": 0.02,
    "grad_norm": 0.3,
    "reward": 1.2,
    "frac_reward_zero_std": 0.25,
    "entropy": 0.4,
    "kl": 0.01,
    "completions/clipped_ratio": 0.1,
    "clip_ratio/region_mean": 0.02,
}


def found(changes: dict[str, float], steps: int = 30, settings: WatchSettings | None = None) -> list[Finding]:
    """What is said of a run that is healthy for ten steps and then has `changes`."""
    watch = Watch(settings or WatchSettings())
    told = []
    for step in range(1, 11 + steps):
        told += watch.see(step, HEALTHY | (changes if step > 10 else {}))
    return told


def test_a_healthy_run_is_left_alone() -> None:
    assert found({}) == []


@pytest.mark.parametrize("name", ["loss", "grad_norm", "reward"])
@pytest.mark.parametrize("value", [math.nan, math.inf])
def test_a_value_that_is_not_finite_is_hopeless_at_once(name: str, value: float) -> None:
    [finding] = found({name: value}, steps=1)
    assert finding.hopeless and f"{name} is {value} at step 11" in str(finding)
    assert "Lower training.learning_rate" in finding.advice


def test_a_gradient_that_float16_cannot_hold_is_no_alarm_unless_it_lasts() -> None:
    """The scale of the gradients begins at 65536, and is halved at every step that is left out for it."""
    watch = Watch(WatchSettings(steps=5), scaled_gradients=True)
    for step in range(1, 5):
        assert watch.see(step, HEALTHY | {"grad_norm": math.inf}) == []
    assert watch.see(5, HEALTHY) == []
    for step in range(6, 10):
        assert watch.see(step, HEALTHY | {"grad_norm": math.nan}) == []
    [finding] = watch.see(10, HEALTHY | {"grad_norm": math.nan})
    assert finding.hopeless and "grad_norm has been nan for 5 steps" in str(finding)
    [finding] = Watch(WatchSettings(), scaled_gradients=True).see(1, HEALTHY | {"loss": math.nan})
    assert finding.hopeless


def test_what_a_gpu_refuses_is_most_likely_no_number() -> None:
    assert "x: most likely the weights are no numbers any more" in str(broken("x", certain=False))


def test_groups_that_are_all_equal_are_hopeless_once_that_lasts() -> None:
    assert found({"frac_reward_zero_std": 1.0, "reward": 0.0}, steps=19) == []
    [finding] = found({"frac_reward_zero_std": 1.0, "reward": 0.0}, steps=20)
    assert finding.hopeless
    assert "for 20 steps the completions of every group have earned the same" in finding.symptom
    assert "the mean reward is 0 all the time" in finding.symptom
    assert "examples in the prompt" in finding.advice and "training.num_generations" in finding.advice


SYMPTOMS = {
    "equal groups": ({"frac_reward_zero_std": 0.85}, "80% of the groups or more"),
    "entropy": ({"entropy": 0.001}, "the entropy has been below 0.01"),
    "kl": ({"kl": 3.0}, "KL divergence from the start model has been above 2"),
    "cut off": ({"completions/clipped_ratio": 0.9}, "more than 80% of the completions were cut off"),
    "clipping": ({"clip_ratio/region_mean": 0.6}, "held back more than 50% of the tokens"),
}


@pytest.mark.parametrize(("changes", "words"), SYMPTOMS.values(), ids=SYMPTOMS.keys())
def test_a_symptom_that_lasts_is_told_once_and_is_not_hopeless(changes: dict[str, float], words: str) -> None:
    [finding] = found(changes, steps=60)
    assert words in finding.symptom and not finding.hopeless and "training." in finding.advice


@pytest.mark.parametrize("changes", [changes for changes, _ in SYMPTOMS.values()], ids=SYMPTOMS.keys())
def test_a_symptom_that_passes_is_no_alarm(changes: dict[str, float]) -> None:
    watch = Watch(WatchSettings(steps=5))
    for step in range(100):
        assert watch.see(step, HEALTHY | (changes if step % 5 else {})) == []


def test_thresholds_are_those_of_the_configuration() -> None:
    assert found({"entropy": 0.1}, settings=WatchSettings(min_entropy=0.2, steps=5)) != []
    assert found({"kl": 3.0}, settings=WatchSettings(max_kl=4.0)) == []


def test_what_trl_does_not_log_is_no_symptom() -> None:
    watch = Watch(WatchSettings(steps=2))
    assert [watch.see(step, {"reward": 1.0}) for step in range(5)] == [[]] * 5
