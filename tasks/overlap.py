"""Which questions stand twice, and how much of a test question the training rows hold.

Two questions are the same if they agree without regard to case, white space, quotation marks, and the commas, stops
and question marks that end a word. A test question is contaminated as far as its sequences of NGRAM words (letters,
digits and underscores, without case) stand in training questions, as Brown et al. (2020, appendix C) count it with
n = 8 at the least.
"""

import duckdb

NGRAM = 8

# Unlike Python's, \w and \s of RE2 know ASCII alone.
_WORD = r"[\p{L}\p{M}\p{N}_]+"
_SPACES = r"[\s\p{Z}]+"
_ENDS = r"[.,;:?]+([\s\p{Z}]|$)"
_QUOTES = "[\"'`\u2018\u2019\u201c\u201d]+"


def find_overlap(database: duckdb.DuckDBPyConnection, limit: float | None) -> None:
    """Add three tables to a `rows_database`, each keyed by `source_row`.

    - `duplicates_train`, `duplicates_test`: `duplicate_of`, the first row of the split that asks the same
    - `shared`: of a test question with NGRAM words or more, `shared`, the share of its n-grams that train holds
    - `leaks`: of a train row, `leaks`, the row of a test question that it asks too or, where train holds more than the
      share `limit` of a question's n-grams, gives away; without these rows no share is above the limit (None: only
      questions that are the same)
    """
    for split in ("train", "test"):
        _normalise(database, split)
        _find_duplicates(database, split)
    _find_ngrams(database, "test")
    _find_ngrams(database, "train", "WHERE ngram IN (SELECT ngram FROM ngrams_test)")
    database.execute(
        """
        CREATE TABLE shared AS
        SELECT source_row, avg((ngram IN (SELECT ngram FROM ngrams_train))::DOUBLE) AS shared
        FROM ngrams_test GROUP BY source_row
        """
    )
    _find_leaks(database, 1.0 if limit is None else limit)


def _normalise(database: duckdb.DuckDBPyConnection, split: str) -> None:
    unquoted = "regexp_replace(lower(question), $quotes, '', 'g')"
    spaced = f"regexp_replace(regexp_replace({unquoted}, $ends, ' ', 'g'), $spaces, ' ', 'g')"
    database.execute(
        f"CREATE TABLE normal_{split} AS SELECT source_row, trim({spaced}) AS question FROM {split} "
        "WHERE question IS NOT NULL",
        {"quotes": _QUOTES, "ends": _ENDS, "spaces": _SPACES},
    )


def _find_duplicates(database: duckdb.DuckDBPyConnection, split: str) -> None:
    database.execute(
        f"""
        CREATE TABLE duplicates_{split} AS
        WITH firsts AS (
            SELECT question, min(source_row) AS duplicate_of FROM normal_{split}
            WHERE question <> '' GROUP BY question HAVING count(*) > 1
        )
        SELECT source_row, duplicate_of FROM normal_{split} JOIN firsts USING (question)
        WHERE source_row <> duplicate_of
        """
    )


def _find_ngrams(database: duckdb.DuckDBPyConnection, split: str, condition: str = "") -> None:
    database.execute(
        f"""
        CREATE TABLE ngrams_{split} AS
        WITH questions AS (
            SELECT source_row, regexp_extract_all(lower(question), $word) AS words
            FROM {split} WHERE question IS NOT NULL
        ), places AS (
            SELECT source_row, words, unnest(range(1, len(words) - {NGRAM} + 2)) AS place FROM questions
        ), ngrams AS (
            SELECT source_row, hash(words[place:place + {NGRAM - 1}]) AS ngram FROM places
        )
        SELECT source_row, ngram FROM ngrams {condition}
        """,
        {"word": _WORD},
    )


def _find_leaks(database: duckdb.DuckDBPyConnection, limit: float) -> None:
    """Rows that ask a test question; those that hold most of one that is over the limit; and, where that question is
    over the limit without them too, all that hold something of it."""
    database.execute(
        """
        CREATE TABLE leaks AS
        SELECT train.source_row, min(test.source_row) AS leaks
        FROM normal_train AS train JOIN normal_test AS test USING (question)
        WHERE question <> '' GROUP BY train.source_row
        """
    )
    database.execute(
        """
        CREATE TEMP TABLE held AS
        SELECT test.source_row AS test_row, train.source_row AS train_row, count(DISTINCT ngram) AS ngrams
        FROM ngrams_test AS test JOIN ngrams_train AS train USING (ngram)
        WHERE test.source_row IN (SELECT source_row FROM shared WHERE shared > $limit)
        GROUP BY ALL
        """,
        {"limit": limit},
    )
    _add_leaks(database, "QUALIFY ngrams = max(ngrams) OVER (PARTITION BY test_row)")
    database.execute(
        """
        CREATE TEMP TABLE still_over AS
        SELECT source_row FROM ngrams_test
        WHERE source_row IN (SELECT test_row FROM held) GROUP BY source_row
        HAVING avg((ngram IN (
            SELECT ngram FROM ngrams_train WHERE source_row NOT IN (SELECT source_row FROM leaks)
        ))::DOUBLE) > $limit
        """,
        {"limit": limit},
    )
    _add_leaks(database, "WHERE test_row IN (SELECT source_row FROM still_over)")


def _add_leaks(database: duckdb.DuckDBPyConnection, which: str) -> None:
    database.execute(
        f"""
        INSERT INTO leaks
        SELECT train_row, min(test_row) FROM (SELECT * FROM held {which})
        WHERE train_row NOT IN (SELECT source_row FROM leaks) GROUP BY train_row
        """
    )
