"""GSM8K's calculator annotations, `<<3*4=12>>`, computed again."""

import ast
import operator
import re
from collections.abc import Callable
from fractions import Fraction
from functools import lru_cache

_ANNOTATION = re.compile(r"<<([^<>]*)>>")
_LONGEST = 200  # characters of a part that is computed; nobody's calculator was given more
_OPERATIONS: dict[type, Callable[[Fraction, Fraction], Fraction]] = {
    ast.Add: operator.add,
    ast.Sub: operator.sub,
    ast.Mult: operator.mul,
    ast.Div: operator.truediv,
    ast.FloorDiv: lambda left, right: Fraction(left // right),
}
_PLAIN = re.compile(r"-?\d*\.?\d+")


def wrong_annotation(answer: str | None) -> str | None:
    """The first annotation of a worked solution whose result is wrong, with what is right; None where none is.

    A result that is cut or rounded at its last digit is right (`<<10/3=3.33>>`). Of several (`<<3*4=12=12.0>>`) each
    must be. What cannot be computed, such as `<<2x=4>>`, is not judged.
    """
    for annotation in _ANNOTATION.findall(answer or ""):
        right = _right_result(annotation.split("="))
        if right is not None:
            return f"<<{annotation}>> (it is {right})"
    return None


def _right_result(parts: list[str]) -> str | None:
    """What `parts` should all give, where that is known and one differs from all before it."""
    known: list[Fraction] = []
    for part in parts:
        written = _value(part) if len(part) <= _LONGEST else None
        if written is None:
            continue
        # 67% is no rounding of 2/3, but that of the 0.67 before it.
        if known and not any(_agree(value, written, part) for value in known):
            return f"{float(known[0]):g}" if abs(known[0]) < 10**15 else "another"
        known.append(written)
    return None


def _agree(value: Fraction, written: Fraction, result: str) -> bool:
    """Whether `result`, of the value `written`, is `value`, or `value` cut or rounded at the last digit."""
    if value == written:
        return True
    digits = re.sub(r"[\s,$]", "", result)
    if not _PLAIN.fullmatch(digits):
        return False
    return abs(value - written) < Fraction(1, 10 ** len(digits.partition(".")[2]))


@lru_cache(maxsize=100_000)
def _value(text: str) -> Fraction | None:
    """The exact value of a sum, difference, product or quotient of numbers, or None where it is none."""
    text = re.sub(r"[\s,$]", "", text)
    text = re.sub(r"(?<![\d.])0+(?=\d)", "", text)  # 05 is a number here, though not in Python
    text = re.sub(r"(\d*\.?\d+)%", r"(\1/100)", text)
    try:
        return _evaluated(ast.parse(text, mode="eval").body)
    except (SyntaxError, ValueError, ZeroDivisionError, RecursionError, MemoryError):
        return None


def _evaluated(node: ast.expr) -> Fraction:
    match node:
        case ast.Constant(value=int() | float()) if not isinstance(node.value, bool):
            return Fraction(ast.unparse(node))
        case ast.BinOp() if type(node.op) in _OPERATIONS:
            return _OPERATIONS[type(node.op)](_evaluated(node.left), _evaluated(node.right))
        case ast.UnaryOp(op=ast.USub()):
            return -_evaluated(node.operand)
        case ast.UnaryOp(op=ast.UAdd()):
            return _evaluated(node.operand)
    raise ValueError(f"{type(node).__name__} is no arithmetic")
