"""GSM8K's calculator annotations, `<<3*4=12>>`, computed again."""

import ast
import operator
import re
from collections.abc import Callable
from fractions import Fraction
from functools import lru_cache

_ANNOTATION = re.compile(r"<<([^<>]*)=([^<>=]*)>>")
_LONGEST = 200  # characters of an annotation that is computed; nobody's calculator was given more
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

    A result that is cut or rounded at its last digit is right (`<<10/3=3.33>>`). What cannot be computed, such as
    `<<2x=4>>`, is not judged.
    """
    for expression, result in _ANNOTATION.findall(answer or ""):
        right = _right_result(expression, result)
        if right is not None:
            return f"<<{expression}={result}>> (it is {right})"
    return None


@lru_cache(maxsize=100_000)
def _right_result(expression: str, result: str) -> str | None:
    """What `expression` gives, where that is known and `result` differs from it."""
    value, written = _value(expression), _value(result)
    if value is None or written is None or value == written:
        return None
    digits = re.sub(r"[\s,$]", "", result)
    if _PLAIN.fullmatch(digits):
        decimals = len(digits.partition(".")[2])
        if abs(value - written) < Fraction(1, 10**decimals):
            return None
    return f"{float(value):g}" if abs(value) < 10**15 else "another"


def _value(text: str) -> Fraction | None:
    """The exact value of a sum, difference, product or quotient of numbers, or None where it is none."""
    if len(text) > _LONGEST:
        return None
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
