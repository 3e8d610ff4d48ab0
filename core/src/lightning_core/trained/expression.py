"""evaluate_expression: the value of an expression in Python's notation, whoever wrote it. Nothing is compiled or run."""

from __future__ import annotations

import ast
import math
import operator
from collections.abc import Callable, Mapping
from typing import Any, Final, NoReturn

from lightning_core.errors import UsageError

_CHARACTERS: Final = 2_000
_DEPTH: Final = 150
_STEPS: Final = 10_000
_BITS: Final = 4_096
"""Of a whole number; its digits are fewer than Python converts to text."""
_PLACES: Final = 300

_UNARY: Final[dict[type[ast.unaryop], Callable[[Any], Any]]] = {
    ast.UAdd: operator.pos, ast.USub: operator.neg, ast.Not: operator.not_, ast.Invert: operator.invert,
}  # fmt: skip
_BINARY: Final[dict[type[ast.operator], Callable[[Any, Any], Any]]] = {
    ast.Add: operator.add, ast.Sub: operator.sub, ast.Mult: operator.mul, ast.Div: operator.truediv,
    ast.FloorDiv: operator.floordiv, ast.Mod: operator.mod, ast.Pow: operator.pow, ast.LShift: operator.lshift,
    ast.RShift: operator.rshift, ast.BitAnd: operator.and_, ast.BitOr: operator.or_, ast.BitXor: operator.xor,
}  # fmt: skip
_COMPARISONS: Final[dict[type[ast.cmpop], Callable[[Any, Any], bool]]] = {
    ast.Eq: operator.eq, ast.NotEq: operator.ne, ast.Lt: operator.lt, ast.LtE: operator.le, ast.Gt: operator.gt,
    ast.GtE: operator.ge, ast.In: lambda one, other: one in other, ast.NotIn: lambda one, other: one not in other,
}  # fmt: skip
_CONSTANTS: Final = {"pi": math.pi, "e": math.e, "tau": math.tau, "inf": math.inf}


def evaluate_expression(text: str, names: Mapping[str, Any] | None = None) -> Any:
    """The value of a Python expression; an executor for `TrainedAgent`. Safe against whatever a model writes.

    There are numbers, strings, True, False and None; tuples, lists, sets and dicts; arithmetic on numbers, `+` on texts,
    lists and tuples; comparisons, `and`, `or`, `not`, `… if … else …`; `x[…]`; the functions `abs bool ceil cos divmod exp
    factorial float floor gcd int len log log10 log2 max min pow range round sin sorted sqrt str sum tan tuple list` and the
    constants `pi e tau inf`. There are no attributes, no assignments, and no functions of other names.

    Bounds: 2,000 characters, a depth of 150, 10,000 steps (each item that a function reads or makes counts), whole numbers of
    4,096 bits.

    Args:
        text: the expression.
        names: values of further names: numbers, texts and containers of these.

    Raises:
        UsageError: it is no expression of these, or larger than the bounds.
        ArithmeticError, LookupError, TypeError, ValueError: what the same in Python raises.
    """
    if len(text) > _CHARACTERS:
        _refuse(f"{len(text)} characters are more than {_CHARACTERS}")
    try:
        tree = ast.parse(text.strip(), mode="eval")
    except (SyntaxError, ValueError, RecursionError, MemoryError) as error:
        raise UsageError(f"expression: cannot be read: {error}") from error
    try:
        return _Evaluation({**_CONSTANTS, **(names or {})}).value(tree.body, 0)
    except RecursionError as error:
        raise UsageError("expression: nested too deeply for this thread's stack") from error


class _Evaluation:
    """One walk over an expression."""

    def __init__(self, names: Mapping[str, Any]) -> None:
        self._names = names
        self._steps = 0

    def value(self, node: ast.expr, depth: int) -> Any:
        """The value of a node."""
        self._spend(1)
        if depth > _DEPTH:
            _refuse(f"nested deeper than {_DEPTH}")
        found = self._of(node, depth + 1)
        if isinstance(found, complex):
            _refuse("its value is a complex number")
        if isinstance(found, int) and found.bit_length() > _BITS:
            _refuse(f"a whole number of more than {_BITS} bits")
        return found

    def _of(self, node: ast.expr, depth: int) -> Any:
        match node:
            case ast.Constant(value=bool() | int() | float() | str() | None as value):
                return value
            case ast.Name(id=name) if name in self._names:
                return self._names[name]
            case ast.UnaryOp(op=op, operand=operand):
                return _UNARY[type(op)](self.value(operand, depth))
            case ast.BinOp(left=left, op=op, right=right):
                return self._binary(op, self.value(left, depth), self.value(right, depth))
            case ast.BoolOp(op=op, values=values):
                return self._logical(isinstance(op, ast.And), values, depth)
            case ast.Compare():
                return self._compare(node, depth)
            case ast.IfExp(test=test, body=body, orelse=orelse):
                return self.value(body if self.value(test, depth) else orelse, depth)
            case ast.Tuple(elts=items):
                return tuple(self._all(items, depth))
            case ast.List(elts=items):
                return self._all(items, depth)
            case ast.Set(elts=items):
                return set(self._all(items, depth))
            case ast.Dict(keys=keys, values=values):
                pairs = [(self.value(k, depth), v) for k, v in zip(keys, values, strict=True) if k]
                if len(pairs) < len(keys):
                    _refuse("`**` is not known")
                return {key: self.value(item, depth) for key, item in pairs}
            case ast.Subscript(value=value, slice=ast.Slice(lower, upper, step)):
                whole = self._sized(self.value(value, depth))
                edges = [None if e is None else self.value(e, depth) for e in (lower, upper, step)]
                return whole[slice(*edges)]
            case ast.Subscript(value=value, slice=index):
                return self.value(value, depth)[self.value(index, depth)]
            case ast.Call(func=ast.Name(id=name), args=args, keywords=[]) if name in _KNOWN:
                return self._call(name, self._all(args, depth))
        named = node.func if isinstance(node, ast.Call) else node
        what = named.id if isinstance(named, ast.Name) else type(node).__name__
        _refuse(f"{what!r} is not known, or not used so")

    def _spend(self, steps: int) -> None:
        self._steps += steps
        if self._steps > _STEPS:
            _refuse(f"it takes more than {_STEPS} steps")

    def _all(self, nodes: list[ast.expr], depth: int) -> list[Any]:
        return [self.value(node, depth) for node in nodes]

    def _sized(self, value: Any) -> Any:
        """A container or text, its items counted as steps."""
        self._spend(len(value) if isinstance(value, (str, list, tuple, set, dict)) else 0)
        return value

    def _logical(self, is_and: bool, nodes: list[ast.expr], depth: int) -> Any:
        found: Any = is_and
        for node in nodes:
            found = self.value(node, depth)
            if bool(found) is not is_and:
                break
        return found

    def _compare(self, node: ast.Compare, depth: int) -> bool:
        left = self.value(node.left, depth)
        for op, after in zip(node.ops, node.comparators, strict=True):
            if type(op) not in _COMPARISONS:
                _refuse("`is` is not known")
            right = self.value(after, depth)
            self._sized(left)
            self._sized(right)
            if not _COMPARISONS[type(op)](left, right):
                return False
            left = right
        return True

    def _binary(self, op: ast.operator, left: Any, right: Any) -> Any:
        if type(op) not in _BINARY:
            _refuse("`@` is not known")
        if isinstance(op, ast.Add) and isinstance(left, (str, list, tuple)):
            return self._sized(left) + self._sized(right)
        # `%` on texts and `*` on containers could fill the memory.
        _check_numbers(left, right)
        if isinstance(left, int) and isinstance(right, int):
            # The powers of -1, 0 and 1 do not grow, and those of 2 and 3 by at least one bit with each exponent.
            if isinstance(op, ast.Pow) and max(0, left.bit_length() - 1) * right > _BITS:
                _refuse(f"a power of more than {_BITS} bits")
            if isinstance(op, ast.LShift) and right > _BITS:
                _refuse(f"a shift of more than {_BITS} bits")
        return _BINARY[type(op)](left, right)

    def _call(self, name: str, arguments: list[Any]) -> Any:
        for argument in arguments:
            self._sized(argument)
        if name == "pow":
            if len(arguments) != 2:
                _refuse("`pow` takes two numbers")
            return self._binary(ast.Pow(), *arguments)
        if name == "range":
            found = range(*arguments)
            # The length of a range may be more than `len` can say.
            self._spend(min(_STEPS + 1, max(0, (found.stop - found.start) // found.step)))
            return list(found)
        return _FUNCTIONS[name](*arguments)


def _check_numbers(*values: Any) -> None:
    for value in values:
        if not isinstance(value, (int, float)):
            _refuse(f"expected a number but got {type(value).__name__}")


def _sum(items: Any) -> Any:
    _check_numbers(*items)
    return sum(items)


def _round(number: Any, places: int | None = None) -> Any:
    _check_numbers(number)
    if places is not None and abs(places) > _PLACES:
        _refuse(f"`round` to more than {_PLACES} places")
    return round(number, places)


def _factorial(number: int) -> int:
    if number > _PLACES:
        _refuse(f"`factorial` of more than {_PLACES}")
    return math.factorial(number)


_FUNCTIONS: Final[dict[str, Callable[..., Any]]] = {
    "abs": abs, "bool": bool, "ceil": math.ceil, "cos": math.cos, "divmod": divmod, "exp": math.exp,
    "factorial": _factorial, "float": float, "floor": math.floor, "gcd": math.gcd, "int": int, "len": len,
    "list": list, "log": math.log, "log10": math.log10, "log2": math.log2, "max": max, "min": min,
    "round": _round, "sin": math.sin, "sorted": sorted, "sqrt": math.sqrt,
    "str": str, "sum": _sum, "tan": math.tan, "tuple": tuple,
}  # fmt: skip


_KNOWN: Final = frozenset({*_FUNCTIONS, "pow", "range"})


def _refuse(why: str) -> NoReturn:
    raise UsageError(f"expression: {why}")
