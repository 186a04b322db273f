"""Which questions stand twice, and how much of a test question the training rows hold.

Two questions are the same if they agree without regard to case, white space, Unicode's forms, quotation marks, and the
punctuation that ends a word. A test question is contaminated as far as its sequences of NGRAM words (letters, digits
and underscores, without case; of scripts that set no spaces, characters) stand in training questions, as Brown et al.
(2020, appendix C) count it with n = 8 at the least.
"""

import duckdb

NGRAM = 8

# Unlike Python's, \w and \s of RE2 know ASCII alone.
_WORD = r"\p{Han}|\p{Hiragana}|\p{Katakana}|\p{Thai}|[\p{L}\p{M}\p{N}_]+"
# What is replaced by what, one after the other, to make questions that are the same equal.
_NORMAL = (
    ("[\u200b-\u200d\u2060\ufeff\u00ad]", ""),  # takes no space
    ("[\u2018\u2019`]", "'"),
    ('["\u201c\u201d\u00ab\u00bb]', ""),
    (r"(^|[^\p{L}\p{N}])'", r"\1"),  # opens a quotation; behind a letter it may be a prime or a genitive
    (r"[\x{3001}\x{3002}\x{ff01}\x{ff0c}\x{ff1a}\x{ff1b}\x{ff1f}]", " "),
    (r"[.,;:?!\x{2026}]+([\s\p{Z}]|$)", " "),
    (r"[\s\p{Z}]+", " "),
)
_QUESTIONS_AT_ONCE = 20  # whose n-grams are joined with train's; made from a template, each may meet every row


def find_overlap(database: duckdb.DuckDBPyConnection, limit: float | None, most_leaks: int) -> None:
    """Add three tables to a `rows_database`, each keyed by `source_row`.

    - `duplicates_train`, `duplicates_test`: `duplicate_of`, the first row of the split that asks the same
    - `shared`: of a test question with NGRAM words or more, `shared`, the share of its n-grams that train holds
    - `leaks`: of a train row, `leaks`, the row of a test question that it asks too or, where train holds more than the
      share `limit` of a question's n-grams, gives away; without these rows no share is above the limit (None: only
      questions that are the same). Once there are more than `most_leaks`, no more are looked for.
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
    _find_leaks(database, 1.0 if limit is None else limit, most_leaks)


def _normalise(database: duckdb.DuckDBPyConnection, split: str) -> None:
    text = "lower(nfc_normalize(question))"
    values: dict[str, str] = {}
    for number, (pattern, replacement) in enumerate(_NORMAL):
        text = f"regexp_replace({text}, $pattern{number}, $replacement{number}, 'g')"
        values |= {f"pattern{number}": pattern, f"replacement{number}": replacement}
    database.execute(
        f"CREATE TABLE normal_{split} AS SELECT source_row, trim({text}) AS question FROM {split} "
        "WHERE question IS NOT NULL",
        values,
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


def _find_leaks(database: duckdb.DuckDBPyConnection, limit: float, most: int) -> None:
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
    over = "SELECT source_row FROM shared WHERE shared > $limit ORDER BY shared DESC, source_row"
    questions = [row for (row,) in database.execute(over, {"limit": limit}).fetchall()]
    for start in range(0, len(questions), _QUESTIONS_AT_ONCE):
        [(found,)] = database.sql("SELECT count(*) FROM leaks").fetchall()
        if found > most:
            return
        _blame(database, questions[start : start + _QUESTIONS_AT_ONCE], limit)


def _blame(database: duckdb.DuckDBPyConnection, questions: list[int], limit: float) -> None:
    database.execute(
        """
        CREATE OR REPLACE TEMP TABLE held AS
        SELECT test.source_row AS test_row, train.source_row AS train_row, count(DISTINCT ngram) AS ngrams
        FROM ngrams_test AS test JOIN ngrams_train AS train USING (ngram)
        WHERE list_contains($questions, test.source_row)
        GROUP BY ALL
        """,
        {"questions": questions},
    )
    _add_leaks(database, "QUALIFY ngrams = max(ngrams) OVER (PARTITION BY test_row)")
    database.execute(
        """
        CREATE OR REPLACE TEMP TABLE still_over AS
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
