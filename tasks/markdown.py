"""Text of a dataset, a model or a user, made safe to stand in Markdown: nothing in it is rendered or run."""

import re


def cell(text: str) -> str:
    """`text` as a cell of a table, on one line; a tag in it is shown and is none."""
    plain = " ".join(text.split()).replace("&", "&amp;").replace("<", "&lt;").replace(">", "&gt;")
    # An underscore inside a word is no emphasis.
    return re.sub(r"([\\`*\[\]|~]|(?<!\w)_|_(?!\w))", r"\\\1", plain)


def fence(text: str) -> str:
    """`text` as a fenced block that it cannot end by itself, without control characters."""
    plain = re.sub(r"[^\n\t\x20-\x7e\xa0-\U0010ffff]", "\N{REPLACEMENT CHARACTER}", text)
    ticks = "`" * max(3, 1 + max(map(len, re.findall("`+", plain)), default=0))
    return f"{ticks}text\n{plain}\n{ticks}"


def code(text: str) -> str:
    """`text` as inline code, on one line and whatever backticks it holds."""
    plain = re.sub(r"[^\x20-\x7e\xa0-\U0010ffff]+", " ", text)
    ticks = "`" * (1 + max(map(len, re.findall("`+", plain)), default=0))
    space = " " if "`" in plain else ""
    return f"{ticks}{space}{plain}{space}{ticks}"
