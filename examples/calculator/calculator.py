"""The value of an arithmetic expression. Only numbers, `+ - * / // % **` and brackets are known; nothing is executed."""

from __future__ import annotations

import ast
import operator
from fractions import Fraction

MAX_CHARACTERS = 200
MAX_DEPTH = 20
MAX_EXPONENT = 64
MAX_DIGITS = 60
"""Of the numerator and the denominator of every value on the way."""

OPERATORS = {
    ast.Add: operator.add,
    ast.Sub: operator.sub,
    ast.Mult: operator.mul,
    ast.Div: operator.truediv,
    ast.FloorDiv: operator.floordiv,
    ast.Mod: operator.mod,
    ast.Pow: operator.pow,
}
SIGNS = {ast.UAdd: operator.pos, ast.USub: operator.neg}


def value(expression: str) -> Fraction:
    """The exact value.

    Raises:
        ValueError: the expression cannot be read, or goes beyond the bounds.
        ZeroDivisionError: it divides by zero.
    """
    if len(expression) > MAX_CHARACTERS:
        raise ValueError(f"the expression is longer than {MAX_CHARACTERS} characters")
    text = expression.replace(",", "").replace("$", "").replace("^", "**").strip()
    try:
        tree = ast.parse(text, mode="eval")
    except (SyntaxError, ValueError, RecursionError, MemoryError):
        raise ValueError(f"{expression!r} is no arithmetic expression") from None
    return _value(tree.body, text, 0)


def _value(node: ast.expr, text: str, depth: int) -> Fraction:
    if depth > MAX_DEPTH:
        raise ValueError(f"the expression is nested deeper than {MAX_DEPTH}")
    match node:
        case ast.Constant(value=int() | float()) if not isinstance(node.value, bool):
            # As it is written: 0.1 is a tenth.
            found = Fraction(ast.get_source_segment(text, node) or "")
        case ast.UnaryOp(op=sign, operand=operand) if type(sign) in SIGNS:
            found = SIGNS[type(sign)](_value(operand, text, depth + 1))
        case ast.BinOp(left=left, op=named, right=right) if type(named) in OPERATORS:
            one, other = _value(left, text, depth + 1), _value(right, text, depth + 1)
            if isinstance(named, ast.Pow):
                _check_power(other)
            found = Fraction(OPERATORS[type(named)](one, other))
        case _:
            raise ValueError("only numbers, + - * / // % ** and brackets are known")
    if max(abs(found.numerator), found.denominator) >= 10**MAX_DIGITS:
        raise ValueError(f"a number of more than {MAX_DIGITS} digits")
    return found


def _check_power(exponent: Fraction) -> None:
    if exponent.denominator != 1 or abs(exponent) > MAX_EXPONENT:
        raise ValueError(f"exponents are whole numbers up to {MAX_EXPONENT}")


def shown(number: Fraction) -> str:
    """The number in decimals, rounded to ten places."""
    if number.denominator == 1:
        return str(number.numerator)
    return f"{float(number):.10f}".rstrip("0").rstrip(".")
