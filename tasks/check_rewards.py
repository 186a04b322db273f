"""Stage: the rewards prove themselves on the data before anything is trained (`tasks.reward_gate`)."""

from collections.abc import Callable
from importlib.metadata import version
from pathlib import Path
from typing import Any

from rewards.registry import is_registered
from tasks.config import Config
from tasks.errors import UserError
from tasks.run import Run, digest, read_json, source_digest, stored, write_json
from tasks.supervise import run_job


def check_rewards(
    run: Run, config: Config, data: dict[str, Any], on_line: Callable[[str], None] = lambda _: None
) -> dict[str, Any]:
    """Run the reward gate on the training rows of the manifest `data` in a child, since it runs the user's code.

    What has passed once with the same rows, rewards and code has passed; that is known only of the project's own
    rewards, since a user's may call anything.

    Gives `{"markdown", "table", "checks", "failures", "exploit_shares"}`: the table of all checks in two forms, and of
    each exploit the share of the maximum that it earns. Raises UserError with a line for each failure.
    """
    folder = run.folder / "check_rewards"
    if not all(is_registered(reward.name) for reward in config.rewards.functions):
        return _checked(run, config, data, folder, on_line)

    def make(place: Path) -> None:
        write_json(place / "result.json", _checked(run, config, data, folder, on_line))

    result: dict[str, Any] = read_json(stored("checked_rewards", _key(config, data), make) / "result.json")
    if not folder.exists():
        on_line(f"the rewards have passed {result['checks']} checks on these rows before")
        folder.mkdir()
        (folder / "report.md").write_text(result["markdown"], encoding="utf-8")
    return result


def _checked(
    run: Run, config: Config, data: dict[str, Any], folder: Path, on_line: Callable[[str], None]
) -> dict[str, Any]:
    result = run_job(
        "tasks.check_rewards_worker",
        {"config": config.dump(), "rows": str(Path(data["folder"]) / "train.parquet")},
        folder,
        log=run.log_file("check_rewards"),
        on_line=on_line,
        time_limit=config.rewards.time_limit,
        limit_setting="rewards.time_limit",
        limit_advice="mend the reward that it was at if that hangs, as a regular expression that tries everything "
        "does; else raise the limit",
    )
    (folder / "report.md").write_text(result["markdown"], encoding="utf-8")
    if result["failures"]:
        raise UserError("\n".join(result["failures"]))
    return result


def _key(config: Config, data: dict[str, Any]) -> str:
    cases = config.rewards.cases
    return digest(
        {
            "rows": data["sha256"]["train"],
            "rewards": config.rewards.model_dump(mode="json", exclude={"time_limit"}),
            "cases": cases.read_text(encoding="utf-8", errors="replace") if cases and cases.is_file() else None,
            "prompt": [config.prompt.opening, config.prompt.conversational],
            "longest": config.training.trl("max_completion_length"),
            "code": source_digest(
                "rewards/*.py",
                "rewards/cases/*",
                "tasks/reward_*.py",
                "tasks/check_rewards_worker.py",
                "tasks/dataset.py",
            ),
            "math_verify": version("math-verify"),
        }
    )
