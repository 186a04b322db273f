"""The error that stops a run when a reward cannot be trusted."""


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
