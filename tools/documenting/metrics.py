"""The metrics of a rank, read off the calls that make them."""

from __future__ import annotations

import ast
from collections.abc import Iterator
from pathlib import Path
from typing import Final

from documenting.markdown import code, table

SOURCE: Final = Path(__file__).resolve().parents[2] / "service" / "embershard_server" / "metrics.py"
_ENDINGS: Final = {"counter": "_total", "gauge": "", "histogram": ""}
"""{what makes a metric: how the name ends that Prometheus has}."""


def metrics() -> Iterator[str]:
    """Each metric: what it is, its labels, what it tells."""
    functions = [node for node in ast.walk(ast.parse(SOURCE.read_text())) if isinstance(node, ast.FunctionDef)]
    rows = []
    for function in sorted(functions, key=lambda function: function.lineno):
        known = _known(function)
        rows += [row for call in _makers(function) for row in _rows(call, known)]
    yield from table(("metric", "kind", "labels", "meaning"), rows)


def _makers(function: ast.FunctionDef) -> list[ast.Call]:
    calls = [node for node in ast.walk(function) if isinstance(node, ast.Call) and isinstance(node.func, ast.Name)]
    return sorted((call for call in calls if _name(call) in _ENDINGS), key=lambda call: call.lineno)


def _name(call: ast.Call) -> str:
    return call.func.id if isinstance(call.func, ast.Name) else ""


def _known(function: ast.FunctionDef) -> dict[str, list[tuple[int, ast.expr]]]:
    """{name: what it is given in a function, and in which line}."""
    found: dict[str, list[tuple[int, ast.expr]]] = {}
    for node in ast.walk(function):
        if isinstance(node, ast.Assign) and isinstance(node.targets[0], ast.Name):
            found.setdefault(node.targets[0].id, []).append((node.lineno, node.value))
    return found


def _rows(call: ast.Call, known: dict[str, list[tuple[int, ast.expr]]]) -> Iterator[tuple[str, str, str, str]]:
    """One, or as many as a loop over texts makes."""
    name, text, labels = (_value(part, call.lineno, known) for part in call.args[:3])
    told = ", ".join(code(label) for label in _strings(labels))
    if isinstance(name, ast.JoinedStr):  # {what}: its text, of each that a loop goes over
        start = "".join(str(part.value) for part in name.values if isinstance(part, ast.Constant))
        (texts,) = (value for _, value in known["texts"])
        assert isinstance(texts, ast.Dict)
        named = [(start + key, each) for key, each in ast.literal_eval(texts).items()]
    else:
        named = [(ast.literal_eval(name), ast.literal_eval(text))]
    kind = _name(call)
    for each, meaning in named:
        yield code(f"embershard_{each}{_ENDINGS[kind]}"), kind, told, meaning


def _value(part: ast.expr, line: int, known: dict[str, list[tuple[int, ast.expr]]]) -> ast.expr:
    """What an argument is, where it is a name that was given before."""
    if isinstance(part, ast.List) and len(part.elts) == 1 and isinstance(part.elts[0], ast.Starred):
        part = part.elts[0].value
    before = [given for given in known.get(part.id if isinstance(part, ast.Name) else "", []) if given[0] < line]
    return max(before, key=lambda given: given[0])[1] if before else part


def _strings(labels: ast.expr) -> list[str]:
    """The labels: of a list, or the keys of a dictionary."""
    given = labels.keys if isinstance(labels, ast.Dict) else labels.elts if isinstance(labels, ast.List) else []
    return [str(part.value) for part in given if isinstance(part, ast.Constant)]
