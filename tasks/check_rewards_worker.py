"""Worker: the reward gate on the training rows. Started by `tasks.check_rewards`."""

from dataclasses import asdict
from pathlib import Path
from typing import Any

from rewards.registry import is_registered, load_reward
from tasks.config import Config
from tasks.dataset import Rows
from tasks.errors import UserError
from tasks.reward_gate import LoadedReward, check
from tasks.worker import run_worker

CHARACTERS_PER_TOKEN = 8  # at the most, of what a model writes


def gate(job: dict[str, Any]) -> dict[str, Any]:
    """The gate's table in two forms, its failures, and what each exploit earns."""
    config = Config.model_validate(job["config"])
    rewards = [
        LoadedReward(
            name=reward.label,
            function=_load(reward.name, reward.parameters),
            weight=reward.weight,
            registered=reward.name if is_registered(reward.name) else None,
        )
        for reward in config.rewards.functions
    ]
    report = check(
        rewards,
        Rows(Path(job["rows"])),
        gold_template=config.rewards.gold_template,
        opening=config.prompt.opening,
        conversational=config.prompt.conversational,
        own_cases=config.rewards.cases,
        exploit_limit=config.rewards.exploit_limit,
        longest=CHARACTERS_PER_TOKEN * config.training.trl("max_completion_length"),
        progress=lambda what: print(what, flush=True),
    )
    print(report.to_text(), flush=True)
    return {
        "markdown": report.to_markdown(),
        "table": [asdict(row) for row in report.rows],
        "checks": len(report.rows),
        "failures": report.failures,
        "exploit_shares": report.exploit_shares,
    }


def _load(name: str, parameters: dict[str, Any]) -> Any:
    try:
        return load_reward(name, parameters)
    except ValueError as error:
        raise UserError(f"rewards.functions: {error}") from None


if __name__ == "__main__":
    run_worker(gate)
