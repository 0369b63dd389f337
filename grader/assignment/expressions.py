"""Whole-number expressions over the sizes of a run, used for arguments and dimensions in an assignment."""

from __future__ import annotations

import ast
from collections.abc import Mapping
from functools import lru_cache

from grader.core.errors import UsageError

LONGEST = 200
"""Limit in characters: enough for any dimension, too few to exhaust the parser's stack."""


def evaluate_int(expression: str, shape: Mapping[str, int]) -> int:
    """Return the value of an expression of integers, names, + - * // and parentheses. `shape` has the names' values.
    Raises UsageError, which quotes the expression, if it is invalid."""
    if len(expression) > LONGEST:
        raise UsageError(f"'{expression[:40]}...' is longer than {LONGEST} characters")
    try:
        return _value(_parsed(expression), shape)
    except (SyntaxError, KeyError, ZeroDivisionError, TypeError, ValueError) as error:
        reason = error.msg if isinstance(error, SyntaxError) else error
        raise UsageError(
            f"cannot evaluate '{expression}' ({reason}); known names: {', '.join(shape)}"
        ) from error


@lru_cache(maxsize=512)
def _parsed(expression: str) -> ast.expr:
    """Parse an expression, cached: an assignment has few expressions, and a run evaluates them for each call."""
    return ast.parse(expression.strip(), mode="eval").body


def _value(node: ast.expr, shape: Mapping[str, int]) -> int:
    if isinstance(node, ast.Constant) and type(node.value) is int:
        return node.value
    if isinstance(node, ast.Name):
        return shape[node.id]
    if isinstance(node, ast.BinOp):
        left, right = _value(node.left, shape), _value(node.right, shape)
        match node.op:
            case ast.Add():
                return left + right
            case ast.Sub():
                return left - right
            case ast.Mult():
                return left * right
            case ast.FloorDiv():
                return left // right
    raise TypeError("only names, whole numbers, + - * // and parentheses are allowed")


def names_in(expression: str) -> set[str]:
    """Return the names of sizes that an expression uses."""
    return {node.id for node in ast.walk(_parsed(expression)) if isinstance(node, ast.Name)}


def call_of(expression: str, name: str) -> list[str] | None:
    """Return the arguments of `name(...)`: ["N", "2"] for "zeros(N, 2)"; None for a text without this start and end."""
    text = expression.strip()
    if not (text.startswith(name + "(") and text.endswith(")")):
        return None
    return [item.strip() for item in text[len(name) + 1 : -1].split(",")]


def is_number(text: str) -> bool:
    """Return True if a text is a Python literal for a number (0.5, 1e-3) or a bool."""
    try:
        return isinstance(ast.literal_eval(text), int | float)
    except (ValueError, SyntaxError):
        return False


def evaluate_float(text: str, shape: Mapping[str, int]) -> float:
    """Return the value of a number literal (0.5), or of an expression that contains names of sizes (2 * N)."""
    return float(ast.literal_eval(text)) if is_number(text) else float(evaluate_int(text, shape))
