"""Numbers in text: what counts as exactly one, and how its exact value is read.

One regular expression finds numbers. Everything that is read from it walks the text once, so that no input
takes more than linear time; `Decimal` keeps the value exact and is itself linear in the number of digits (a
million digits take 6 ms), so no length is refused.
"""

import re
from decimal import Decimal
from unicodedata import category

_SIGNS = "-+\u2212"
_CURRENCY = "$¢£¤¥֏؋฿៛₠-⃀﷼﹩＄￠￡￥￦"

# A sign before or after the currency sign; digits with commas only between thousands; one decimal point.
# Malformed digits ("1,00", "1.2.3", "0,500") come out as two numbers, which the whole number rule refuses.
_NUMBER = re.compile(
    rf"(?P<outer>[{_SIGNS}](?=\\?[{_CURRENCY}]))?"
    rf"(?:\\?[{_CURRENCY}]\ ?)?"
    rf"(?P<inner>[{_SIGNS}])?"
    r"(?P<digits>(?:[1-9][0-9]{0,2}(?:,[0-9]{3})+(?![0-9])|[0-9]+)(?:\.[0-9]+)?|(?<![\w.])\.[0-9]+)"
)

# What most answers are: a number alone, for which the whole rule need not be gone through.
_ALONE = re.compile(r"[ \t\r\n]*(-?[0-9]+(?:\.[0-9]+)?)[ \t\r\n]*")

# Marks that may stand beside a number although they hold symbols that expressions are made of.
_MARKUP = re.compile(
    r"\\(?:boxed|fbox|text|textbf|textit|mathrm|mathbf|mathit|quad)(?![A-Za-z])"
    r"|\\[$%,;:!()\[\]\ ]"
    r"|</?(?:b|strong)>"
    rf"|(?:(?<=[^\W\d_])|(?<=[{_CURRENCY}]))[-/](?=[^\W\d_])"  # joins two words: ice-cream, km/h, $/hour
)
_SYMBOL = re.compile(r"[-+/\\#<=>@^|~\x00-\x08\x0e-\x1f\x7f]")
_SINGLE_ASTERISK = re.compile(r"(?<!\*)\*(?!\*)")
_VARIABLE = re.compile(r"[xyz](?![^\W_])")
_DASHES_LIKE_MINUS = "\u2010\u2011\u2012\u2013\ufe63\uff0d"
_BESIDE_GOLD = re.compile(rf"[\s.%*{{}}{_CURRENCY}]*")


def parse_number(text: str) -> Decimal | None:
    """The exact value of the one number in `text`, or `None` where the text is not one number.

    Around it may stand a currency sign, a percent sign, a unit or other words, punctuation, bold marks,
    `\\boxed{}` or `$…$`. Two numbers, an expression, an equation, scientific notation and any Unicode
    numeric character but the ASCII digits are no number.
    """
    alone = _ALONE.fullmatch(text)
    if alone is not None:
        return Decimal(alone[1])
    match = _only_number(text)
    return None if match is None else Decimal(_plain(match, _signed_by(match)))


def plain_number(text: str) -> str | None:
    """The one number in `text` as a plain number string, or `None` unless it stands there without words."""
    match = _only_number(text)
    if match is None:
        return None
    beside = _MARKUP.sub("", text[: match.start()] + " " + text[match.end() :])
    return _plain(match, _signed_by(match)) if _BESIDE_GOLD.fullmatch(beside) else None


def extract_hash_answer(text: str) -> str:
    """The gold after the one `####` of a GSM8K answer, as a plain number string such as `-1000` or `7.5`.

    Raises `ValueError` where `####` is missing or repeated, or where anything but one number follows it.
    """
    count = text.count("####")
    if count != 1:
        found = "no '####'" if count == 0 else f"{count} times '####'"
        raise ValueError(f"the answer has {found}; exactly one must stand before the gold")
    rest = text.partition("####")[2]
    gold = plain_number(rest)
    if gold is None:
        raise ValueError(f"after '####' stands {_shortened(rest.strip())!r}, which is not one number without words")
    return gold


def extract_last_number(text: str) -> str | None:
    """The last number anywhere in `text` as a plain number string, or `None` where there is none.

    A minus sign counts unless something that it could be subtracted from precedes it: `x = -3` ends in -3,
    the range `3-4` in 4.
    """
    match = None
    for found in _NUMBER.finditer(text):
        match = found
    if match is None:
        return None
    return _plain(match, "" if _continues_a_term(text, match.start()) else _signed_by(match))


def _only_number(text: str) -> re.Match[str] | None:
    """The match of the one number in `text`, or `None` where the whole number rule refuses the text."""
    numbers = _NUMBER.finditer(text)
    match = next(numbers, None)
    if match is None or next(numbers, None) is not None:
        return None
    if match["outer"] and match["inner"]:
        return None
    head, tail = text[: match.start()], text[match.end() :]
    if _signed_by(match) and _continues_a_term(text, match.start()):
        return None
    # ",72" and "is.72" may be the rest of a longer number; "–72" may be meant as a negative; "sqrt(72)" is
    # a call.
    if head.endswith((".", ",", *_DASHES_LIKE_MINUS)) or (head.endswith("(") and head[-2:-1].isalpha()):
        return None
    # A combining mark changes the digit before it (an overline, an enclosing circle); "2x" is an expression.
    if (tail and category(tail[0]).startswith("M")) or _VARIABLE.match(tail):
        return None
    if tail[:1] in ("-", "/") and tail[1:3].isalpha() and len(tail) > 2:
        tail = tail[1:]  # joins the number and its unit: 72-inch, 72/hour
    return match if _is_prose(head + " " + tail) else None


def _is_prose(text: str) -> bool:
    """Whether what stands around a number is words and their marks, and no part of an expression."""
    bare = _MARKUP.sub("", text)
    if _SYMBOL.search(bare) or len(_SINGLE_ASTERISK.findall(bare)) % 2:
        return False
    return bare.isascii() or not any(
        character > "\x7f" and (character.isnumeric() or category(character) == "Sm") for character in bare
    )


def _continues_a_term(text: str, start: int) -> bool:
    """Whether the sign at `start` joins two terms, as in `3-4`, `3%-4%` or `x-3`."""
    before = text[start - 1 : start]
    return before.isalnum() or before in (")", "]", "}", "%", *_SIGNS)


def _signed_by(match: re.Match[str]) -> str:
    return match["outer"] or match["inner"] or ""


def _plain(match: re.Match[str], sign: str) -> str:
    digits = match["digits"].replace(",", "")
    return ("-" if sign in ("-", "\u2212") else "") + ("0" + digits if digits.startswith(".") else digits)


def _shortened(text: str) -> str:
    return text if len(text) <= 60 else text[:57] + "..."
