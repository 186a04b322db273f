"""What a run has to show before it is registered: its data, its training, and the scores before and after."""

from collections.abc import Mapping
from dataclasses import dataclass
from functools import cached_property
from typing import Any

import pandas as pd

from tasks.statistics import Comparison, compare


@dataclass(frozen=True)
class Outcome:
    """The results of the stages up to `evaluate`."""

    data: Mapping[str, Any]
    """The manifest of the dataset."""
    trained: Mapping[str, Any]
    """What the training stage gave."""
    before: Mapping[str, Any]
    """The summary of the start model's evaluation; `results` is its Parquet file with a row for each question."""
    after: Mapping[str, Any]
    """The same of the trained model."""

    @cached_property
    def gain(self) -> Comparison:
        """The trained model against the start model, question by question."""
        return compare(pd.read_parquet(self.before["results"]), pd.read_parquet(self.after["results"]))
