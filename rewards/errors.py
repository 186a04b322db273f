"""The error that stops a run when a reward cannot be trusted."""

import json

# What a mistake in the code raises, and raises again; anything else (a judge that does not answer) may heal.
_MISTAKES = (
    ArithmeticError,
    AssertionError,
    AttributeError,
    ImportError,
    LookupError,
    NameError,
    TypeError,
    ValueError,
)


class RewardError(RuntimeError):
    """A reward raised, or gave something that is no reward.

    `reward` is its name, `row` the index in the batch (`None` where no single row is to blame) and
    `completion` the completion's text, shortened. The reward's own exception, if there was one, is the
    `__cause__`.
    """

    def __init__(self, reward: str, problem: str, row: int | None = None, completion: str | None = None):
        super().__init__(reward, problem, row, completion)
        self.reward = reward
        self.problem = problem
        self.row = row
        self.completion = completion

    def __str__(self) -> str:
        return f"reward {self.reward}: {self.problem}"

    @property
    def is_a_mistake(self) -> bool:
        """Whether the same completions would end so again, by the kind of the reward's own exception."""
        cause = self.__cause__
        # Half an answer of a service is broken JSON, and the errors of a connection are OSErrors.
        return cause is None or (
            isinstance(cause, _MISTAKES) and not isinstance(cause, (json.JSONDecodeError, OSError))
        )
