"""The keys of configuration files: read off the dataclasses that check them, and the docstrings of their fields."""

from __future__ import annotations

import ast
import dataclasses
import inspect
import sys
import textwrap
import types
import typing
from collections.abc import Iterator
from datetime import date
from pathlib import Path
from typing import Annotated, Any, Final, Literal, Union

from documenting.markdown import anchor, code, table
from embershard.config import Config
from embershard.config.specs import Name
from embershard.train.job import JobSpec
from embershard.train.schema import Moment

_SUPERSCRIPT: Final = str.maketrans("0123456789", "⁰¹²³⁴⁵⁶⁷⁸⁹")
_KEYS: Final = ("key", "type", "default", "meaning")
_BOUNDS: Final = ("ge", "gt", "le", "lt")
_INT64: Final = {"ge": -(2**63), "le": 2**63 - 1}
_WORDS: Final = {
    bool: "true or false",
    date: "date or date-time",
    float: "number",
    int: "integer",
    str: "string",
    Path: "path of a file",
    Any: "value",
}


def collection_file() -> Iterator[str]:
    """All keys of a collection's file."""
    return _sections(Config)


def job_file() -> Iterator[str]:
    """All keys of a job file."""
    return _sections(JobSpec, " of a job")


def _sections(root: type, of: str = "") -> Iterator[str]:
    """A table for each dataclass that is reached from the root, by the path of its key."""
    headings = {kind: _heading(path, kind) + of for path, kind in _reached(root)}
    for path, kind in _reached(root):
        if path or any(not _specs(hint) for hint in _hints(kind).values()):
            yield f"### {headings[kind]}"
            yield ""
            yield from (inspect.getdoc(kind) or "").splitlines()
            yield ""
            yield from table(_KEYS, _rows(path, kind, headings))
            yield ""


def _reached(root: type) -> list[tuple[str, type]]:
    """All dataclasses with the paths of their keys, each once: at a key of the root if it stands at one."""
    first = {spec: path for path, spec in _inner("", root)}
    found: dict[type, str] = {root: ""}
    waiting = [*_inner("", root)]
    while waiting:
        path, kind = waiting.pop(0)
        if kind not in found and first.get(kind, path) == path:
            found[kind] = path
            waiting = [*_inner(path, kind), *waiting]
    return [(path, kind) for kind, path in found.items()]


def _inner(path: str, kind: type) -> list[tuple[str, type]]:
    """The dataclasses that stand at the keys of one; where names are keys, NAME stands for them."""
    return [
        (f"{path}.{key}{'.NAME' * (typing.get_origin(hint) is dict)}".lstrip("."), spec)
        for key, hint in _hints(kind).items()
        for spec in _specs(hint)
    ]


def _heading(path: str, kind: type) -> str:
    if not path:
        return "At the top of the file"
    fixed = typing.get_args(_hints(kind).get("kind"))
    if len(fixed) == 1:
        return f"`{path}` of kind `{fixed[0]}`"
    return "`[[tables]]`" if path == "tables" else f"`[{path}]`"


def _rows(path: str, kind: type, headings: dict[type, str]) -> Iterator[tuple[str, ...]]:
    docs = field_docs(kind)
    for item in dataclasses.fields(kind):
        hint = _hints(kind)[item.name]
        key = f"{path}.{item.name}".lstrip(".")
        inner = [headings[spec] for spec in _specs(hint)]
        words = " or ".join(f"[{heading}](#{anchor(heading)})" for heading in inner) if inner else in_words(hint)
        yield code(key), words, _default(item), docs[item.name] or "Which of the kinds it is."


def field_docs(kind: type) -> dict[str, str]:
    """{field: the string that stands below it}."""
    (tree,) = ast.parse(textwrap.dedent(inspect.getsource(kind))).body
    assert isinstance(tree, ast.ClassDef)
    docs = {}
    for node, below in zip(tree.body, tree.body[1:], strict=False):
        if isinstance(node, ast.AnnAssign) and isinstance(node.target, ast.Name):
            told = isinstance(below, ast.Expr) and isinstance(below.value, ast.Constant)
            docs[node.target.id] = inspect.cleandoc(below.value.value) if told else ""  # type: ignore[attr-defined]
    return docs


def _hints(kind: type) -> dict[str, Any]:
    """{field: its type}, without what pydantic adds to the class."""
    fields = types.SimpleNamespace(__annotations__={item.name: item.type for item in dataclasses.fields(kind)})
    return typing.get_type_hints(fields, vars(sys.modules[kind.__module__]), include_extras=True)


def _specs(hint: Any) -> list[type]:
    """The dataclasses in a type."""
    if isinstance(hint, type) and dataclasses.is_dataclass(hint):
        return [hint]
    return [spec for part in typing.get_args(hint) for spec in _specs(part)]


def _default(item: dataclasses.Field[Any]) -> str:
    if item.default is dataclasses.MISSING and item.default_factory is dataclasses.MISSING:
        return "required"
    value = item.default_factory() if item.default_factory is not dataclasses.MISSING else item.default
    if value is None:
        return ""
    return "" if dataclasses.is_dataclass(value) else code(as_toml(value))


def as_toml(value: Any) -> str:
    """A default as one would write it into the file."""
    match value:
        case bool():
            return str(value).lower()
        case int():
            return f"{value:_}"
        case str():
            return f'"{value}"'
        case list():
            return f"[{', '.join(map(as_toml, value))}]"
        case dict():
            return f"{{ {', '.join(f'{key} = {as_toml(item)}' for key, item in value.items())} }}" if value else "{}"
    return str(value)


def in_words(hint: Any) -> str:
    """A type as a reader would say it."""
    if hint == Name:
        return "name"
    if hint == Moment:
        return "number, date or date-time"
    origin, parts = typing.get_origin(hint), typing.get_args(hint)
    if origin is Annotated:
        return _bounded(parts[0], hint.__metadata__)
    if origin is Literal:
        return " or ".join(code(as_toml(part)) for part in parts)
    if origin in (Union, types.UnionType):
        return " or ".join(dict.fromkeys(in_words(part) for part in parts if part is not type(None)))
    if origin is list:
        return f"list of {_plural(in_words(parts[0]))}"
    if origin is dict:
        return f"table of {' = '.join(_plural(in_words(part)) for part in parts)}"
    return _WORDS[hint]


def _plural(words: str) -> str:
    if words.startswith(("list ", "table ")):
        return words
    first, space, rest = words.partition(" ")
    return first.rstrip(",") + "s" + "," * first.endswith(",") + space + rest


def _bounded(base: Any, metadata: tuple[Any, ...]) -> str:
    """A type with its bounds."""
    told = [one for given in metadata for one in (*getattr(given, "metadata", ()), given)]
    bounds = {name: getattr(one, name) for one in told for name in _BOUNDS if getattr(one, name, None) is not None}
    words = in_words(base)
    if bounds == _INT64:
        return "integer, any int64"
    low, high = bounds.get("ge"), bounds.get("le")
    if low is not None and high is not None:
        return f"{words} from {_number(low)} to {_number(high)}"
    texts = {"ge": "{} or more", "gt": "over {}", "le": "at most {}", "lt": "under {}"}
    return ", ".join([words, *(texts[name].format(_number(bounds[name])) for name in _BOUNDS if name in bounds)])


def _number(value: float) -> str:
    for offset, shown in ((0, ""), (-1, " − 1")):
        power = int(value - offset).bit_length() - 1
        if power >= 20 and value == 2**power + offset:
            return f"2{str(power).translate(_SUPERSCRIPT)}{shown}"
    return f"{int(value):,}" if value == int(value) else f"{value:g}"
