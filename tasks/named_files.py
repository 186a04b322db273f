"""The files that a configuration names, looked for before any stage begins."""

from tasks.config import Config
from tasks.errors import UserError


def check_files(config: Config) -> None:
    """Raise UserError for a file that the configuration names and a later stage would miss."""
    named = {"rewards.cases": config.rewards.cases, "training.accelerate_config": config.training.accelerate_config}
    for number, reward in enumerate(config.rewards.functions):
        named[f"rewards.functions.{number}.name"] = reward.file
    for setting, path in named.items():
        if path is not None and not path.is_file():
            raise UserError(f"{setting}: there is no file {path}; correct the path")
