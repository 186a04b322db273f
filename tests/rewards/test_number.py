"""What one number is, and which number comes last in a text."""

import time
from collections.abc import Callable
from decimal import Decimal
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from rewards import extract_hash_answer, extract_last_number, parse_number


@pytest.mark.parametrize(
    ("text", "value"),
    [
        ("72", "72"),
        (" 72\n", "72"),
        ("1,234,567.50", "1234567.50"),
        ("-$1,000", "-1000"),
        ("$-1,000", "-1000"),
        ("\u2212$3", "-3"),
        ("\\$18", "18"),
        ("¥ 500", "500"),
        ("500 ₹", "500"),
        (".5", "0.5"),
        ("$.50", "0.50"),
        ("+5", "5"),
        ("72...", "72"),
        ("Total: 72!", "72"),
        ('"72"', "72"),
        ("**$72**", "72"),
        ("*72*", "72"),
        ("<b>72</b>", "72"),
        ("__72__", "72"),
        ("`72`", "72"),
        ("$\\boxed{-72}$", "-72"),
        ("\\(72\\)", "72"),
        ("\\text{72 apples}", "72"),
        ("72 ice-creams", "72"),
        ("5-pound bag", "5"),
        ("$15/hour", "15"),
        ("72°", "72"),
        ("USD 72", "72"),
        ("twenty-two (22)", "22"),
        ("siebzig äpfel: 70", "70"),
        ("Answer \u2014 72", "72"),
    ],
)
def test_one_number_is_read_whatever_stands_around_it(text: str, value: str) -> None:
    assert parse_number(text) == Decimal(value)


@pytest.mark.parametrize(
    "text",
    [
        *("", " ", "-", "$", ".", "words", "nan", "Infinity"),
        *("1 2", "1, 2", "3-4", "$3-$4", "3/4", "7:30", "1.2.3", "2020-01-02", "1e5", "1e-5", "0x10"),
        *("1,00", "1,0000", "1000,000", "0,500", ",500", "1,,000", "1.000,5", "1_000", "1 000", "1\u00a0000"),
        *("x=3", "= 3", "3 =", "x - 3", "x-3", "- 3", "3 -", "+ 3", "--3", "+-3", "-$-3", "-(3)", "(x)-3"),
        *(
            "2x",
            "2*x",
            "2 * x",
            "x^2",
            "3^",
            "\\sqrt{3}",
            "sqrt(3)",
            "\\frac3",
            "3\\pi",
            "|3|",
            "3|",
            "~3",
            "<3",
        ),
        *(
            "\u00b2",
            "3\u00b2",
            "\u00bd",
            "3\u00bd",
            "\u2460",
            "\u0663",
            "\uff13",
            "\u0663 3",
            "\u4e09 3",
            "\u2168",
        ),
        *(
            "\u221a3",
            "3\u00d7",
            "\u2248 3",
            "3\u03c0\u00b2",
            "\u20133",
            "\u20103",
            "3\u0305",
            "3\u20dd",
            "7\u200b2",
        ),
        *("#### 72", "a.72", "..72", "72 <answer>", "72\x00", "72@", "3!/x"),
    ],
)
def test_what_is_not_exactly_one_number_is_none(text: str) -> None:
    assert parse_number(text) is None


@given(st.decimals(allow_nan=False, allow_infinity=False, places=4))
def test_every_decimal_is_read_exactly_with_and_without_commas(value: Decimal) -> None:
    assert parse_number(f"{value:f}") == value
    assert parse_number(f"{value:,f}") == value
    assert parse_number(f"The answer is ${value:,f}.") == value


@given(st.integers(min_value=-(10**80), max_value=10**80))
def test_integers_are_exact_at_any_size(value: int) -> None:
    assert parse_number(str(value)) == value
    assert parse_number(str(value)) != value + 1
    assert parse_number(f"{value} or {value + 1}") is None


@given(st.text())
def test_a_second_number_always_makes_it_none(text: str) -> None:
    assert parse_number(f"72 {text} 73") is None


@given(st.text(alphabet="0123456789,.-+$ eExX%*\\{}\u2212\u00b2\n", max_size=30))
def test_what_is_read_is_made_of_the_digits_of_the_text(text: str) -> None:
    value = parse_number(text)
    if value is not None:
        assert value.is_finite()
        written = "".join(character for character in text if character in "0123456789")
        assert written.lstrip("0").rstrip("0") == f"{value:f}".lstrip("-").replace(".", "").lstrip("0").rstrip("0")


@pytest.mark.parametrize(
    ("text", "number"),
    [
        ("3-4", "4"),
        ("$3-$4", "4"),
        ("3%-4%", "4"),
        ("3\u20134", "4"),
        ("x = -3", "-3"),
        ("x=-3", "-3"),
        ("2*-3", "-3"),
        ("(-3)", "-3"),
        ("5 - 3", "3"),
        ("The total is $18.", "18"),
        ("It costs -$1,250.50.", "-1250.50"),
        ("It costs $-1,250.50!", "-1250.50"),
        ("\u22127", "-7"),
        ("+7", "7"),
        ("1,000", "1000"),
        ("\\boxed{72}", "72"),
        ("**72**", "72"),
        ("1, 2, 3", "3"),
        ("1,2,3", "3"),
        ("#### 72", "72"),
        (".5", "0.5"),
        ("72. Then", "72"),
        ("v1.2.3", "3"),
        ("12\u00b2", "12"),
        ("4 and \u0663", "4"),
        ("none", None),
        ("", None),
        ("\u0663\u00bd", None),
    ],
)
def test_the_last_number_of_a_text_is_a_plain_number_string(text: str, number: str | None) -> None:
    assert extract_last_number(text) == number


@given(st.text(), st.integers(min_value=0, max_value=10**12))
def test_a_number_after_any_text_is_the_last(text: str, number: int) -> None:
    assert extract_last_number(f"{text} is {number:,}.") == str(number)


@given(st.text())
def test_the_last_number_is_itself_one_number(text: str) -> None:
    number = extract_last_number(text)
    assert number is None or parse_number(number) is not None


def test_a_refused_gold_says_what_stands_there() -> None:
    with pytest.raises(ValueError, match=r"no '####'"):
        extract_hash_answer("72")
    with pytest.raises(ValueError, match=r"2 times '####'"):
        extract_hash_answer("#### 1 #### 2")
    with pytest.raises(ValueError, match=r"'seventy' *, which is not one number|'seventy', which"):
        extract_hash_answer("#### seventy")
    with pytest.raises(ValueError) as caught:
        extract_hash_answer("#### " + "words " * 10_000)
    assert len(str(caught.value)) < 200


@given(st.integers(), st.text(alphabet=st.characters(exclude_characters="#")))
def test_the_gold_after_any_solution_is_found(gold: int, solution: str) -> None:
    assert extract_hash_answer(f"{solution}\n#### {gold:,}") == str(gold)


def seconds(function: Callable[[str], Any], text: str) -> float:
    start = time.process_time()
    function(text)
    return time.process_time() - start


@pytest.mark.parametrize("function", [parse_number, extract_last_number])
@pytest.mark.parametrize(
    "fragment",
    [
        "9",
        "1,",
        ",000",
        "1.",
        ".",
        ",",
        "-",
        "$",
        "$ ",
        "-$",
        "*",
        "\\",
        "\\boxed{",
        " ",
        "\n",
        "a",
        "a-",
        "/",
        "(",
    ],
)
@pytest.mark.parametrize("frame", ["{}", "1{}", "{}1"])
def test_time_is_linear_in_a_hostile_text(function: Callable[[str], Any], fragment: str, frame: str) -> None:
    """A quadratic search takes far longer than a second on 200,000 characters."""
    assert seconds(function, frame.format(fragment * (200_000 // len(fragment)))) < 1.0


def test_a_million_digits_are_one_exact_number() -> None:
    digits = "7" * 1_000_000
    start = time.process_time()
    assert parse_number(digits) == parse_number("$" + digits + ".0")
    assert parse_number(digits) != parse_number(digits[:-1] + "8")
    assert time.process_time() - start < 1.5
