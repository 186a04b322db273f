"""What the checks of the reward gate share: a reward to check, calling it as TRL would, and the report."""

import asyncio
import textwrap
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from types import SimpleNamespace
from typing import Any

from rewards.calling import Reward, is_async
from rewards.traits import Traits, is_declared, traits_of
from rewards.wrapper import guard
from tasks.dataset import TRL_COLUMNS
from tasks.markdown import cell

Row = Mapping[str, Any]

TOLERANCE = 1e-9  # of a reward's value: 3 * 0.3 is full marks of 0.9
NARROWEST = 30  # columns of a table's details

# The fields of transformers' TrainerState before the first step; the gate does without transformers, and with it torch.
_BEFORE_TRAINING = {
    "epoch": 0.0,
    "global_step": 0,
    "max_steps": 1,
    "logging_steps": 1,
    "eval_steps": 1,
    "save_steps": 1,
    "train_batch_size": 1,
    "num_train_epochs": 1,
    "num_input_tokens_seen": 0,
    "total_flos": 0.0,
    "best_metric": None,
    "best_global_step": None,
    "best_model_checkpoint": None,
    "is_local_process_zero": True,
    "is_world_process_zero": True,
    "is_hyper_param_search": False,
}


@dataclass(frozen=True)
class LoadedReward:
    """A reward of a run, as the configuration names it and `rewards.registry.load_reward` gives it."""

    name: str
    function: Reward | str
    """The function with its parameters bound, not yet guarded; a string is a reward model's name."""
    weight: float = 1.0
    registered: str | None = None
    """The short name, for one of the project's own rewards."""


@dataclass(frozen=True)
class GateRow:
    check: str
    reward: str
    result: str
    """`ok`, `failed`, `note` or `skipped`."""
    detail: str


@dataclass
class GateReport:
    """The table of all checks, and a sentence for each that must stop the run."""

    rows: list[GateRow] = field(default_factory=list)
    failures: list[str] = field(default_factory=list)
    exploit_shares: dict[str, float] = field(default_factory=dict)
    """The share of the maximum reward that each exploit earns, where a maximum is known."""

    @property
    def ok(self) -> bool:
        return not self.failures

    def add(self, check: str, reward: str, result: str, detail: str) -> None:
        self.rows.append(GateRow(check, reward, result, detail))

    def fail(self, check: str, reward: str, sentence: str) -> None:
        """Enters a failure; `sentence` says what is wrong, where, and what to do."""
        self.rows.append(GateRow(check, reward, "failed", sentence))
        self.failures.append(f"{check}: {sentence}")

    def to_markdown(self) -> str:
        lines = ["| check | reward | result | detail |", "| --- | --- | --- | --- |"]
        for row in self.rows:
            lines.append(f"| {row.check} | {cell(row.reward)} | {row.result} | {cell(row.detail)} |")
        return "\n".join(lines) + "\n"

    def to_text(self, width: int = 120) -> str:
        """The table for a terminal; what is longer than `width` characters goes on below, in its column."""
        names = ("check", "reward", "result")
        cells = [names, *((row.check, row.reward, row.result) for row in self.rows)]
        widths = [max(len(begins[column]) for begins in cells) for column in range(3)]
        indent = sum(widths) + 6
        details = ["detail", *(" ".join(row.detail.split()) for row in self.rows)]
        lines = []
        for begins, detail in zip(cells, details, strict=True):
            begin = "  ".join(text.ljust(size) for text, size in zip(begins, widths, strict=True))
            room = max(width - indent, NARROWEST)  # what has no space in it, as a path, is left whole
            wrapped = textwrap.wrap(detail, room, break_long_words=False, break_on_hyphens=False) or [""]
            lines += [f"{begin}  {wrapped[0]}".rstrip(), *(" " * indent + line for line in wrapped[1:])]
        return "\n".join(lines) + "\n"


class Scorer:
    """Calls one reward as the trainer will: guarded, with the dataset's columns and what TRL passes beside
    them.

    `opening` is what the prompt ends in and TRL leaves out of the completions; `conversational` says in
    which form the trainer passes them.
    """

    def __init__(self, reward: LoadedReward, *, opening: str = "", conversational: bool = True) -> None:
        assert not isinstance(reward.function, str)
        self.name = reward.name
        self.weight = reward.weight
        self.function: Reward = reward.function
        self.traits: Traits = traits_of(reward.function)
        self.declared = is_declared(reward.function)
        self.seen: set[float | None] = set()
        """What the reward gave so far, if that was always the same; else that and something else."""
        self.conversational = conversational
        self.opening = opening
        self._guarded = guard(reward.function, name=reward.name, opening=opening)

    def __call__(self, completions: Sequence[Any], rows: Sequence[Row]) -> list[float | None]:
        """One value per completion (text as generated, or messages) of the dataset row beside it.

        Raises `RewardError` as `guard` does.
        """
        if not completions:
            return []
        values: list[float | None] = call(self._guarded, self.arguments(completions, rows))
        if len(self.seen) < 2:
            self.seen.update(values)
        return values

    def arguments(self, completions: Sequence[Any], rows: Sequence[Row]) -> dict[str, Any]:
        """What TRL passes for these completions. Its tokens are stood in for by every fourth byte."""
        columns = {name: [row[name] for row in rows] for name in (rows[0] if rows else {}) if name not in TRL_COLUMNS}
        ids = [
            row.get("completion_ids", _tokens(completion)) for row, completion in zip(rows, completions, strict=True)
        ]
        return {
            "prompts": [self._prompt(row) for row in rows],
            "completions": [self._form(completion) for completion in completions],
            **beside_columns(ids),
            **columns,
        }

    def _prompt(self, row: Row) -> Any:
        prompt = row.get("prompt", row.get("question", ""))
        if isinstance(prompt, str) and self.conversational:
            return [{"role": "user", "content": prompt}]
        return prompt

    def _form(self, completion: Any) -> Any:
        if isinstance(completion, str) and self.conversational:
            return [{"role": "assistant", "content": completion}]
        return completion


def beside_columns(completion_ids: Sequence[list[int]], trainer_state: Any = None) -> dict[str, Any]:
    """What TRL passes to a reward beside prompts, completions and the dataset's columns.

    Without a `trainer_state`, that of a trainer before its first step. What the reward logs goes nowhere.
    """
    return {
        "completion_ids": list(completion_ids),
        "trainer_state": trainer_state or SimpleNamespace(**_BEFORE_TRAINING, log_history=[]),
        "log_extra": _log_nothing,
        "log_metric": _log_nothing,
    }


def call(reward: Reward, arguments: dict[str, Any]) -> Any:
    """The result of a plain or async reward."""
    if not is_async(reward):
        return reward(**arguments)

    async def awaited() -> Any:
        return await reward(**arguments)

    return asyncio.run(awaited())


def in_batches(rows: Sequence[Row], size: int = 2048) -> Iterator[tuple[int, list[Row]]]:
    """The rows in lists of at most `size`, each with the index of its first row."""
    for start in range(0, len(rows), size):
        yield start, [rows[index] for index in range(start, min(start + size, len(rows)))]


def evenly(rows: Sequence[Row], count: int) -> Sequence[Row]:
    """At most `count` rows, evenly spaced; they are fetched as they are asked for."""
    return rows if count >= len(rows) else _Spaced(rows, count)


class _Spaced(Sequence[Row]):
    def __init__(self, rows: Sequence[Row], size: int) -> None:
        self._rows, self._size = rows, size

    def __len__(self) -> int:
        return self._size

    def __getitem__(self, index: Any) -> Any:
        if isinstance(index, slice):
            return [self[place] for place in range(*index.indices(self._size))]
        if not -self._size <= index < self._size:
            raise IndexError(index)
        return self._rows[index % self._size * len(self._rows) // self._size]


def name_of(index: int, row: Row) -> str:
    """The row as the data gate names it, by its place in the source, or else by its place among the rows."""
    number = row.get("source_row", index)
    return f"row {number} (id {row['id']})" if "id" in row else f"row {number}"


def shortened(text: str, length: int = 120) -> str:
    return text if len(text) <= length else text[: length - 3] + "..."


def _tokens(completion: Any) -> list[int]:
    return list(completion.encode("utf-8", "surrogatepass")[::4]) if isinstance(completion, str) else []


def _log_nothing(*_: Any) -> None:
    """Stands for TRL's `log_extra` and `log_metric`."""
