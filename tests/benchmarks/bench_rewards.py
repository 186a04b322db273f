"""The five GSM8K rewards against Math-Verify on the same completions, in one process.

    python tests/benchmarks/bench_rewards.py [COMPLETIONS]

Math-Verify parses gold and answer and compares them, as TRL's `accuracy_reward` does. Half of the completions are
right, half are wrong, all keep the format. Both sides take the best of three passes.
"""

import sys
import time
from collections.abc import Callable

from math_verify import parse, verify

from rewards import (
    correctness_reward_func,
    int_reward_func,
    soft_format_reward_func,
    strict_format_reward_func,
    xmlcount_reward_func,
)
from tasks.config import SampleSettings
from tasks.reward_golds import GOLD_TEMPLATE, fill
from tasks.samples import make_problems

AIM = 50.0
FIVE = (
    correctness_reward_func,
    int_reward_func,
    soft_format_reward_func,
    strict_format_reward_func,
    xmlcount_reward_func,
)


def main(count: int) -> int:
    problems = make_problems(SampleSettings(train=count, test=1, steps=2))["train"]
    golds = [problem["answer"].rpartition("#### ")[2] for problem in problems]
    texts = []
    for number, (problem, gold) in enumerate(zip(problems, golds, strict=True)):
        rationale = problem["answer"].partition("####")[0].strip()
        texts.append(fill(GOLD_TEMPLATE, {"rationale": rationale, "answer": gold if number % 2 else f"{gold}1"}))
    completions = [[{"role": "assistant", "content": text}] for text in texts]
    prompts = [""] * count

    def ours() -> float:
        values = [reward(prompts, completions, answer=golds) for reward in FIVE]
        return sum(values[0]) / 2.0

    def math_verify() -> float:
        return sum(
            float(verify(parse(gold, parsing_timeout=None), parse(text, parsing_timeout=None), timeout_seconds=None))
            for gold, text in zip(golds, texts, strict=True)
        )

    rates = {}
    for name, scored in (("five rewards", ours), ("Math-Verify", math_verify)):
        seconds, right = best_of_three(scored)
        rates[name] = count / seconds
        print(f"{name:14} {rates[name]:>10,.0f} completions/s  ({right:.0f} of {count} right)")
    ratio = rates["five rewards"] / rates["Math-Verify"]
    print(f"ratio {ratio:.0f} (aim: at least {AIM:.0f})")
    return 0 if ratio >= AIM else 1


def best_of_three(scored: Callable[[], float]) -> tuple[float, float]:
    """The seconds of the fastest pass, and what it gave."""
    best, given = float("inf"), 0.0
    for _ in range(3):
        started = time.perf_counter()
        given = scored()
        best = min(best, time.perf_counter() - started)
    return best, given


if __name__ == "__main__":
    sys.exit(main(int(sys.argv[1]) if len(sys.argv) > 1 else 2000))
