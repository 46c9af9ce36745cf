"""Reading numbers that models write: decimals, arithmetic, and simple LaTeX."""

import ast
import math
import operator
import re
from collections.abc import Callable

_UNITS = re.compile(r"°C|°| C|[$¥]")
_GROUP = r"\{([^{}]*)\}"
_LATEX = (
    (re.compile(r"\\[dt]?frac" + _GROUP + _GROUP), r"((\1)/(\2))"),
    (re.compile(r"\\sqrt\[([^\[\]]*)\]" + _GROUP), r"((\2)**(1/(\1)))"),
    (re.compile(r"\\sqrt" + _GROUP), r"sqrt(\1)"),
    (re.compile(r"\\(?:text|mathrm|boxed|mathbf)" + _GROUP), r"(\1)"),
    (re.compile(r"\^" + _GROUP), r"^(\1)"),
)
# Braces may be nested so deep.
_DEEPEST = 4
_WORDS = (
    (re.compile(_GROUP), r"(\1)"),
    (re.compile(r"\\left|\\right|\\[,;!()\[\]]|\\ "), ""),
    (re.compile(r"\\(?:times|cdot|ast)\b|[\u00d7\u00b7]"), "*"),
    (re.compile(r"\\div\b|÷"), "/"),
    (re.compile(r"\\(?=[a-z])"), ""),
    (re.compile(r"π"), "pi"),
    (re.compile(r"\^"), "**"),
    (re.compile(r"(?<=\d),(?=\d{3}(?!\d))"), ""),
    (re.compile(r"(?<=[\d)])(?=[a-df-z(])|(?<=\d)e(?![-+]?\d)"), "*"),
)
_OPERATORS: dict[type, Callable[..., float]] = {
    ast.Add: operator.add,
    ast.Sub: operator.sub,
    ast.Mult: operator.mul,
    ast.Div: operator.truediv,
    ast.Pow: math.pow,
    ast.USub: operator.neg,
    ast.UAdd: operator.pos,
}
_FUNCTIONS: dict[str, Callable[[float], float]] = {
    "sqrt": math.sqrt,
    "sin": math.sin,
    "cos": math.cos,
    "tan": math.tan,
    "exp": math.exp,
    "ln": math.log,
    "log": math.log,
    "factorial": lambda number: math.gamma(number + 1),
}
_NAMES = {"pi": math.pi, "e": math.e, "True": 1, "False": 0}


def without_units(text: str) -> str:
    """Drops signs of currency and temperature, and writes percent as division by 100."""
    return _UNITS.sub("", text.replace("%", "/100"))


def read_number(text: str) -> float | None:
    """Reads a number, or returns None if the text is none.

    Knows the four operations, powers, pi, e, roots, sine, cosine, tangent, natural logarithms and
    exponentials, in plain writing or LaTeX; nothing else is evaluated. A whole number is an int.

    Args:
        text: The number, without units.
    """
    expression = text.strip()
    for pattern, replacement in _LATEX * _DEEPEST:
        expression = pattern.sub(replacement, expression)
    for pattern, replacement in _WORDS:
        expression = pattern.sub(replacement, expression)
    try:
        number = float(_evaluate(ast.parse(expression.strip(), mode="eval").body))
    except (SyntaxError, ValueError, TypeError, ArithmeticError, RecursionError, MemoryError):
        return None
    return int(number) if number.is_integer() else number


def _evaluate(node: ast.expr) -> float:
    match node:
        case ast.Constant(value=int() | float() as value):
            return value
        case ast.Name(id=name) if name in _NAMES:
            return _NAMES[name]
        case ast.UnaryOp(op=op, operand=operand) if type(op) in _OPERATORS:
            return _OPERATORS[type(op)](_evaluate(operand))
        case ast.BinOp(left=left, op=op, right=right) if type(op) in _OPERATORS:
            return _OPERATORS[type(op)](float(_evaluate(left)), float(_evaluate(right)))
        case ast.Call(func=ast.Name(id=name), args=[argument], keywords=[]) if name in _FUNCTIONS:
            return _FUNCTIONS[name](float(_evaluate(argument)))
    raise ValueError(f"{ast.dump(node)} is no number")
