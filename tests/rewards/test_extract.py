"""Where the answer of a completion is."""

import time

import pytest
from hypothesis import given
from hypothesis import strategies as st

from rewards import extract_xml_answer
from rewards.extract import extract_boxed

PIECES = st.lists(
    st.sampled_from(["<answer>", "</answer>", "<reasoning>", "a", "1", "\n", "<Answer>", "<"]), max_size=12
)


@pytest.mark.parametrize(
    ("text", "content"),
    [
        ("<answer>\n72\n</answer>", "\n72\n"),
        ("<answer>1</answer> <answer>2</answer>", "2"),
        ("<answer>1</answer> <answer>2", "1"),
        ("<answer>1<answer>2</answer>", "2"),
        ("<answer>1</answer>2</answer>", "1"),
        ("</answer>1<answer>", ""),
        ("<answer></answer>", ""),
        ("<ANSWER>1</ANSWER>", ""),
        ("1", ""),
        ("", ""),
    ],
)
def test_the_last_complete_pair_holds_the_answer(text: str, content: str) -> None:
    assert extract_xml_answer(text) == content


@given(PIECES)
def test_it_agrees_with_pairing_tags_one_by_one(pieces: list[str]) -> None:
    opened: int | None = None
    last = ""
    for position, piece in enumerate(pieces):
        if piece == "<answer>":
            opened = position
        elif piece == "</answer>" and opened is not None:
            last = "".join(pieces[opened + 1 : position])
            opened = None
    assert extract_xml_answer("".join(pieces)) == last


@pytest.mark.parametrize(
    ("text", "content"),
    [
        ("\\boxed{72}", "72"),
        ("\\boxed{1} \\boxed{2}", "2"),
        ("\\boxed{1} \\boxed{2", "1"),
        ("\\boxed{\\frac{1}{2}}", "\\frac{1}{2}"),
        ("\\boxed{a \\boxed{b}}", "b"),
        ("\\boxed{\\{1, 2\\}}", "\\{1, 2\\}"),
        ("\\boxed{1 \\} 2}", "1 \\} 2"),
        ("{\\boxed{72}", "72"),
        ("}}\\boxed{72}", "72"),
        ("\\boxed{}", ""),
        ("\\boxed 72", None),
        ("boxed{72}", None),
        ("\\boxed{{}", None),
        ("", None),
    ],
)
def test_the_last_complete_box_holds_the_answer(text: str, content: str | None) -> None:
    assert extract_boxed(text) == content


@pytest.mark.parametrize("extract", [extract_xml_answer, extract_boxed])
@pytest.mark.parametrize(
    "text",
    [
        "<answer>" * 1_000_000,
        "</answer>" * 1_000_000,
        "<answer></answer>" * 500_000,
        "</answer>" + "<answer>" * 1_000_000,
        "\\boxed{" * 500_000,
        "\\boxed{" * 300_000 + "}" * 300_000,
        "{" * 500_000 + "\\boxed{1}",
        "\\" * 500_000,
    ],
    ids=lambda text: text[:17],
)
def test_a_million_tags_take_linear_time(extract, text: str) -> None:  # type: ignore[no-untyped-def]
    start = time.process_time()
    extract(text)
    assert time.process_time() - start < 2.5
