"""The names that an MLflow run of a task with golds promises to hold."""

REWARDS = ("correctness", "int", "soft_format", "strict_format", "xmlcount")
METRICS = (
    *(
        f"{when}/{measure}{ending}"
        for when in ("baseline", "eval")
        for measure in ("accuracy", "accuracy_flexible", "reward")
        for ending in ("", "_stderr")
    ),
    *("eval/delta", "eval/p_value", "validation/accuracy", "validation/reward"),
    *("train/reward", "train/reward_std", "train/loss", "train/completions/mean_length"),
    *(f"train/rewards/{name}/mean" for name in REWARDS),
)
TAGS = ("flow_run_id", "data_digest", "config_digest", "code_version", "outcome")
