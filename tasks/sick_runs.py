"""Recognises a training run that learns nothing or is falling apart, from the metrics that TRL logs.

A symptom must last for `watch.steps` logged steps before it counts, so that a single odd batch is no alarm.
Two things stop a run, since no later step can mend them: values that are not finite (which need not last), and groups
that are all equal. The rest is told once, with what to change.
"""

import math
from collections import deque
from collections.abc import Callable, Mapping
from dataclasses import dataclass

from tasks.config import WatchSettings

Metrics = Mapping[str, float]


@dataclass(frozen=True)
class Finding:
    """What is wrong with a run, in words, and whether it is hopeless."""

    symptom: str
    advice: str
    hopeless: bool

    def __str__(self) -> str:
        return f"{self.symptom}. {self.advice}"


class Watch:
    """Sees the metrics of each logged step, and says of each symptom once that it has lasted."""

    def __init__(self, settings: WatchSettings, scaled_gradients: bool = False) -> None:
        """With `scaled_gradients`, as float16 needs them, a gradient that is no number now and then is in order: the
        step is left out, and the scale lowered until they fit."""
        self.settings = settings
        self._strict = ("loss", "reward") if scaled_gradients else ("loss", "grad_norm", "reward")
        self._recent: deque[Metrics] = deque(maxlen=settings.steps)
        self._told: set[str] = set()

    def see(self, step: int, metrics: Metrics) -> list[Finding]:
        """What has become clear with the metrics of `step`, by TRL's names."""
        broken = self._broken(step, metrics)
        if broken:
            return [broken]
        self._recent.append(metrics)
        found = []
        if len(self._recent) == self.settings.steps:
            for name, check in _LASTING.items():
                finding = check(self.settings, list(self._recent))
                if finding and name not in self._told:
                    self._told.add(name)
                    found.append(finding)
        return found

    def _broken(self, step: int, metrics: Metrics) -> Finding | None:
        for name in self._strict:
            value = metrics.get(name)
            if value is not None and not math.isfinite(value):
                return broken(f"{name} is {value} at step {step}")
        return None


def broken(what: str, certain: bool = True) -> Finding:
    """The diagnosis of a model whose weights have left the range of numbers; `what` shows it."""
    return Finding(
        f"{what}: {'' if certain else 'most likely '}the weights are no numbers any more",
        "Lower training.learning_rate or training.max_grad_norm; instead of float16 set model.dtype=float32",
        hopeless=True,
    )


def _no_gradient(settings: WatchSettings, recent: list[Metrics]) -> Finding | None:
    norms = [metrics.get("grad_norm", 0.0) for metrics in recent]
    if any(math.isfinite(norm) for norm in norms):
        return None
    return broken(f"grad_norm has been {norms[-1]} for {len(recent)} steps")


def _no_spread(settings: WatchSettings, recent: list[Metrics]) -> Finding | None:
    share = settings.max_equal_groups
    shares = [metrics.get("frac_reward_zero_std", 0.0) for metrics in recent]
    if min(shares) < share:
        return None
    hopeless = min(shares) >= 1.0
    how_many = "every group" if hopeless else f"{share:.0%} of the groups or more"
    symptom = f"for {len(recent)} steps the completions of {how_many} have earned the same, so they teach nothing"
    rewards = {metrics["reward"] for metrics in recent if "reward" in metrics}
    if len(rewards) == 1:
        symptom += f" (the mean reward is {rewards.pop():g} all the time)"
    return Finding(
        symptom,
        "Ask for what the model can do now and then: easier questions, examples in the prompt, a reward with degrees; "
        "raise training.num_generations or training.temperature",
        hopeless,
    )


@dataclass(frozen=True)
class _Threshold:
    """A metric that stays above, or below, a setting of `watch`."""

    metric: str
    setting: str
    above: bool
    symptom: str
    """With `{limit}` and `{steps}`."""
    advice: str

    def __call__(self, settings: WatchSettings, recent: list[Metrics]) -> Finding | None:
        limit = getattr(settings, self.setting)
        for metrics in recent:
            value = metrics.get(self.metric)
            if value is None or not (value > limit if self.above else value < limit):
                return None
        return Finding(self.symptom.format(limit=limit, steps=len(recent)), self.advice, hopeless=False)


_LASTING: dict[str, Callable[[WatchSettings, list[Metrics]], Finding | None]] = {
    "gradient": _no_gradient,
    "spread": _no_spread,
    "entropy": _Threshold(
        "entropy",
        "min_entropy",
        above=False,
        symptom="the entropy has been below {limit:g} for {steps} steps: the model writes the same again and again",
        advice="Raise training.temperature or training.beta, or lower training.learning_rate",
    ),
    "kl": _Threshold(
        "kl",
        "max_kl",
        above=True,
        symptom="the KL divergence from the start model has been above {limit:g} for {steps} steps",
        advice="Raise training.beta or lower training.learning_rate",
    ),
    "length": _Threshold(
        "completions/clipped_ratio",
        "max_clipped_completions",
        above=True,
        symptom="for {steps} steps more than {limit:.0%} of the completions were cut off before their end",
        advice="Raise training.max_completion_length, or ask for shorter answers",
    ),
    "clipping": _Threshold(
        "clip_ratio/region_mean",
        "max_clip_ratio",
        above=True,
        symptom="for {steps} steps the clipping of the policy ratio has held back more than {limit:.0%} of the tokens",
        advice="Lower training.learning_rate or training.num_iterations",
    ),
}
