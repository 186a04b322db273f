"""How sure an evaluation is, and whether one is better than another on the same questions."""

import math
from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
import pandas as pd
from scipy.stats import binomtest, permutation_test

RESAMPLES = 9999  # of the permutation test; the smallest p value that it can give is 2 / (RESAMPLES + 1)


def proportion_stderr(share: float, n: int) -> float:
    """The standard error of a share of right answers among `n` independent questions, sqrt(p (1 - p) / n).

    Source: Miller, "Adding Error Bars to Evals", 2024, arXiv:2411.00640, section 2. It is 0 for a share of 0 or 1.
    """
    return math.sqrt(share * (1 - share) / n)


def mean_stderr(values: Sequence[float]) -> float:
    """The standard error of a mean, s / sqrt(n) with the sample standard deviation s; nan below two values.

    Source: as for `proportion_stderr`.
    """
    if len(values) < 2:
        return math.nan
    return float(np.std(values, ddof=1) / math.sqrt(len(values)))


@dataclass(frozen=True)
class Comparison:
    """Two evaluations of the same `n` questions.

    `gained` questions got better and `lost` got worse; `delta` is the difference of the means (of accuracy, as a
    share, or of reward); `p_value` is two-sided, for the hypothesis that nothing changed.
    """

    n: int
    gained: int
    lost: int
    delta: float
    p_value: float
    test: str

    def better(self, significance: float) -> bool:
        """Whether the second evaluation is better than the first, and not by luck."""
        return self.delta > 0 and self.p_value < significance


def mcnemar_exact(before: Sequence[bool], after: Sequence[bool]) -> Comparison:
    """Right answers of two models to the same questions, compared by McNemar's exact test.

    Under the hypothesis of no change a question whose verdict changed is as likely gained as lost, so `gained` is
    binomial with one half among the `gained + lost` that changed; the p value is 1 where none did.
    Source: McNemar 1947, doi:10.1007/BF02295996; the exact form in Agresti, "Categorical Data Analysis", 2013,
    section 11.1. Raises ValueError if the lengths differ.
    """
    pairs = list(zip(before, after, strict=True))
    gained = sum(not old and new for old, new in pairs)
    lost = sum(old and not new for old, new in pairs)
    p_value = float(binomtest(gained, gained + lost, 0.5).pvalue) if gained + lost else 1.0
    return Comparison(len(pairs), gained, lost, (gained - lost) / len(pairs), p_value, "exact McNemar test")


def paired_permutation(before: Sequence[float], after: Sequence[float]) -> Comparison:
    """Rewards of two models on the same questions, compared by a paired permutation test of the mean difference.

    Under the hypothesis of no change each question's difference could as well have had the other sign. Up to 13
    questions all sign patterns are counted, beyond that `RESAMPLES` random ones, always the same. It tests the very
    number that is reported, the difference of the means, and assumes no distribution. Wilcoxon's signed-rank test
    asks about ranks, so it can call a model better whose mean reward fell, and it drops ties, which are frequent
    among rewards.
    Source: Dror et al., "The Hitchhiker's Guide to Testing Statistical Significance in NLP", ACL 2018;
    Noreen, "Computer-Intensive Methods for Testing Hypotheses", 1989. Raises ValueError if the lengths differ.
    """
    if len(before) != len(after):
        raise ValueError(f"{len(before)} rewards cannot be paired with {len(after)}")
    differences = np.asarray(after, dtype=float) - np.asarray(before, dtype=float)
    p_value = 1.0  # of a single question, which scipy refuses: both signs are as extreme
    if len(differences) > 1:
        p_value = float(
            permutation_test(
                (differences,),
                np.mean,
                permutation_type="samples",
                vectorized=True,
                n_resamples=RESAMPLES,
                batch=1000,  # bounds the memory: 1000 × n floats at a time
                rng=0,
            ).pvalue
        )
    return Comparison(
        len(differences),
        int((differences > 0).sum()),
        int((differences < 0).sum()),
        float(differences.mean()),
        p_value,
        "paired permutation test",
    )


def compare(before: pd.DataFrame, after: pd.DataFrame) -> Comparison:
    """Two tables of per-question results, matched by `id`: by `correct` where there is a gold, else by `reward`.

    Raises ValueError if they do not hold the same ids.
    """
    old, new = before.set_index("id"), after.set_index("id")
    if set(old.index) != set(new.index):
        raise ValueError("the two evaluations asked different questions")
    new = new.loc[old.index]
    if "correct" in old and "correct" in new:
        return mcnemar_exact(old["correct"].tolist(), new["correct"].tolist())
    return paired_permutation(old["reward"].tolist(), new["reward"].tolist())
