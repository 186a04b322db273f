"""Stage: the rewards prove themselves on the data before anything is trained (`tasks.reward_gate`)."""

from collections.abc import Callable
from pathlib import Path
from typing import Any

from tasks.config import Config
from tasks.errors import UserError
from tasks.run import Run
from tasks.supervise import run_job


def check_rewards(run: Run, config: Config, data: Path, on_line: Callable[[str], None]) -> dict[str, Any]:
    """Run the reward gate on `data/train.parquet` in a child, since it runs the user's code.

    Gives `{"markdown", "table", "checks", "failures", "exploit_shares"}`: the table of all checks in two forms, and of
    each exploit the share of the maximum that it earns. Raises UserError with a line for each failure.
    """
    folder = run.folder / "check_rewards"
    result = run_job(
        "tasks.check_rewards_worker",
        {"config": config.dump(), "rows": str(data / "train.parquet")},
        folder,
        log=run.log_file("check_rewards"),
        on_line=on_line,
        time_limit=config.rewards.time_limit,
        limit_setting="rewards.time_limit",
    )
    (folder / "report.md").write_text(result["markdown"], encoding="utf-8")
    if result["failures"]:
        raise UserError("\n".join(result["failures"]))
    return result
