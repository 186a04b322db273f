"""What a split looks like: lengths, golds, and how much it shares with the other split."""

from typing import Any

import duckdb

COMMONEST = 5


def split_statistics(database: duckdb.DuckDBPyConnection, split: str) -> dict[str, Any]:
    """Of `split` in a `rows_database`: rows, lengths in characters and the distribution of golds.

    A spread is {min, median, mean, max}, or None where there is no value.
    """
    [row] = database.sql(
        f"""
        SELECT count(*) AS rows,
            {_spread("length(question)", "question")}, {_spread("length(raw_answer)", "raw_answer")},
            count(DISTINCT answer) AS different, {_spread("number", "number")},
            count(*) FILTER (number < 0) AS negative, count(*) FILTER (number % 1 <> 0) AS not_whole
        FROM (SELECT question, raw_answer, answer, try_cast(answer AS DOUBLE) AS number FROM {split})
        """
    ).fetchall()
    commonest = database.sql(
        f"""
        SELECT answer, count(*) AS rows FROM {split} WHERE answer IS NOT NULL
        GROUP BY answer ORDER BY rows DESC, answer LIMIT {COMMONEST}
        """
    ).fetchall()
    rows, *values = row
    return {
        "rows": rows,
        "question_characters": _named(values[0:4]),
        "answer_characters": _named(values[4:8]),
        "golds": {
            "different": values[8],
            "most_common": dict(commonest),
            "negative": values[13],
            "not_whole": values[14],
            "numbers": _named(values[9:13]),
        },
    }


def overlap_statistics(database: duckdb.DuckDBPyConnection, limit: float | None) -> dict[str, Any]:
    """After `find_overlap`: how many test questions share an n-gram with train, and more than half or `limit` of them;
    the largest share, and whose it is."""
    [counts] = database.sql(
        f"""
        SELECT count(*) FILTER (shared > 0), count(*) FILTER (shared > 0.5), count(*) FILTER (shared > {limit or 1.0}),
            max(shared), arg_max(source_row, shared) FROM shared
        """
    ).fetchall()
    names = ("questions_sharing", "sharing_over_half", "sharing_over_limit", "largest_share", "largest_share_row")
    return dict(zip(names, counts, strict=True))


def _spread(value: str, name: str) -> str:
    functions = (f"min({value})", f"median({value})", f"avg({value})", f"max({value})")
    return ", ".join(f"{function} AS {name}_{place}" for place, function in enumerate(functions))


def _named(values: list[float | None]) -> dict[str, float] | None:
    if values[0] is None:
        return None
    return dict(zip(("min", "median", "mean", "max"), (round(float(value or 0), 2) for value in values), strict=True))
