"""What a dataset or a model wrote stays text in Markdown."""

import pytest
from markdown_it import MarkdownIt

from tasks.markdown import cell, code, fence


@pytest.mark.parametrize("text", ["plain", "`", "a ``` b", "``", " x ", "two\nlines", "\x1b[1m<b>"])
def test_inline_code_stays_inline_code(text):
    [paragraph] = [token for token in MarkdownIt().parse(f"a {code(text)} b") if token.type == "inline"]
    assert [child.type for child in paragraph.children] == ["text", "code_inline", "text"]


def test_a_fence_keeps_the_text_as_it_is():
    [token] = MarkdownIt().parse(fence("one\n\ttwo `x`\n\nthree – ü"))
    assert token.content == "one\n\ttwo `x`\n\nthree – ü\n"


@pytest.mark.parametrize(
    "text",
    [
        "<script>alert(1)</script>",
        "a | b",
        "[a](http://evil)",
        "![a](b)",
        "**x** _y_ `z`",
        "two\nlines",
        "&lt; \\ ~~x~~",
    ],
)
def test_a_cell_shows_its_text_and_nothing_else(text):
    table = f"| a | b |\n|---|---|\n| {cell(text)} | c |\n"
    tokens = MarkdownIt("commonmark").enable(["table", "strikethrough"]).parse(table)
    cells = [token for token in tokens if token.type == "inline"]
    assert len(cells) == 4
    assert {child.type for child in cells[2].children} == {"text"} or "&" in cell(text)
    assert "".join(child.content for child in cells[2].children) == " ".join(text.split())
