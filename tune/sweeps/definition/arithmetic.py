"""Arithmetic over parameters, for settings that follow from others: 40 // rounds."""

import ast
import math
import operator
from collections.abc import Callable, Mapping
from typing import Any

from rayfed_ssl.errors import ConfigError, nearest

LONGEST = 4096
"""Bits that a power of whole numbers may have."""


def _power(base: Any, exponent: Any) -> Any:
    """Compute a power, but none that takes minutes."""
    if isinstance(base, int) and isinstance(exponent, int) and base.bit_length() * exponent > LONGEST:
        raise OverflowError(f"{base} ** {exponent} is too large")
    return operator.pow(base, exponent)


_OPERATIONS: Mapping[type[ast.operator], Callable[[Any, Any], Any]] = {
    ast.Add: operator.add,
    ast.Sub: operator.sub,
    ast.Mult: operator.mul,
    ast.Div: operator.truediv,
    ast.FloorDiv: operator.floordiv,
    ast.Mod: operator.mod,
    ast.Pow: _power,
}
_FUNCTIONS: Mapping[str, Callable[..., Any]] = {"min": min, "max": max, "round": round, "int": int}


def parse(formula: str) -> ast.expr:
    """Read arithmetic over names, numbers, + - * / // % ** and min, max, round, int.

    Raises:
        ConfigError: It is something else.
    """
    try:
        tree = ast.parse(formula, mode="eval").body
        _walk(tree, lambda name: 1.0, run=False)
    except (SyntaxError, ValueError, RecursionError, MemoryError) as error:
        what = f"({error.args[0]})" if error.args else ""
        raise ConfigError(
            f"{formula!r} is no arithmetic over parameters {what}: write for example 40 // rounds"
        ) from None
    return tree


def calculate(formula: str, values: Mapping[str, Any]) -> Any:
    """Compute a formula from values by name.

    Raises:
        ConfigError: A name has no value, or the arithmetic is impossible.
    """

    def look_up(name: str) -> Any:
        if name not in values:
            raise ConfigError(
                f"{formula!r} needs {name}, which this point has no value of{nearest(name, list(values))}"
            )
        return values[name]

    try:
        value = _walk(parse(formula), look_up)
        if isinstance(value, complex) or (isinstance(value, float) and not math.isfinite(value)):
            raise ArithmeticError(f"it is {value}")
        return value
    except (ArithmeticError, TypeError, ValueError, RecursionError) as error:
        if isinstance(error, ConfigError):
            raise
        raise ConfigError(f"{formula!r} cannot be computed at {dict(values)}: {error}") from None


def _walk(node: ast.expr, look_up: Callable[[str], Any], run: bool = True) -> Any:
    """Compute an expression; without `run` only look whether it is one."""
    if isinstance(node, ast.Constant) and isinstance(node.value, int | float) and not isinstance(node.value, bool):
        return node.value
    if isinstance(node, ast.Name | ast.Attribute):
        return look_up(_dotted(node))
    if isinstance(node, ast.BinOp) and type(node.op) in _OPERATIONS:
        left, right = _walk(node.left, look_up, run), _walk(node.right, look_up, run)
        return _OPERATIONS[type(node.op)](left, right) if run else 1.0
    if isinstance(node, ast.UnaryOp) and isinstance(node.op, ast.USub):
        return -_walk(node.operand, look_up, run)
    if (
        isinstance(node, ast.Call)
        and isinstance(node.func, ast.Name)
        and node.func.id in _FUNCTIONS
        and not node.keywords
    ):
        arguments = [_walk(argument, look_up, run) for argument in node.args]
        return _FUNCTIONS[node.func.id](*arguments) if run else 1.0
    raise ValueError(f"{ast.unparse(node)} is not understood")


def _dotted(node: ast.expr) -> str:
    if isinstance(node, ast.Name):
        return node.id
    if isinstance(node, ast.Attribute):
        return f"{_dotted(node.value)}.{node.attr}"
    raise ValueError(f"{ast.unparse(node)} is no name")
