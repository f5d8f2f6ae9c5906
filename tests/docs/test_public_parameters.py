"""Every parameter of a public function or class is explained in its docstring, or beneath its field."""

from __future__ import annotations

import ast
import dataclasses
import enum
import importlib
import inspect
import re
import textwrap
from collections.abc import Iterator
from itertools import pairwise

import pytest

PACKAGES = [
    "cotswold",
    *(
        f"cotswold.{name}"
        for name in (
            "analysis",
            "callbacks",
            "checkpoint",
            "data",
            "geometry",
            "mesh",
            "nn",
            "ops",
            "optim",
            "recipe",
            "run",
            "simulate",
            "sklearn",
            "testing",
            "training",
        )
    ),
]
CONTRACTS = re.compile(r"Contract$")
"""Classes of tests: pytest gives their methods fixtures by name."""


def fields_with_docstrings(cls: type) -> set[str]:
    """Names of fields with a string beneath them, in the class and its bases."""
    found: set[str] = set()
    for base in cls.__mro__[:-1]:
        try:
            tree = ast.parse(textwrap.dedent(inspect.getsource(base)))
        except (OSError, TypeError):
            continue
        body = tree.body[0].body if isinstance(tree.body[0], ast.ClassDef) else []
        for statement, after in pairwise(body):
            is_text = isinstance(after, ast.Expr) and isinstance(after.value, ast.Constant)
            if is_text and isinstance(statement, ast.AnnAssign) and isinstance(statement.target, ast.Name):
                found.add(statement.target.id)
    return found


def public_callables(package: str) -> Iterator[tuple[str, object, str]]:
    """Exported functions, classes, and methods: name, callable, text that explains it."""
    module = importlib.import_module(package)
    for name in module.__all__:
        value = getattr(module, name)
        if inspect.isfunction(value):
            yield f"{package}.{name}", value, value.__doc__ or ""
        if (
            not inspect.isclass(value)
            or issubclass(value, BaseException | enum.Enum)
            or CONTRACTS.search(name)
        ):
            continue
        own = " ".join(base.__doc__ or "" for base in value.__mro__[:-1])
        text = f"{own} {value.__init__.__doc__ or ''} "
        yield f"{package}.{name}", value, text + " ".join(fields_with_docstrings(value))
        for key, member in vars(value).items():
            method = member.__func__ if isinstance(member, classmethod | staticmethod) else member
            if inspect.isfunction(method) and not key.startswith("_"):
                inherited = (getattr(base, key, None) for base in value.__mro__)
                texts = (getattr(each, "__doc__", None) or "" for each in inherited)
                yield f"{package}.{name}.{key}", method, " ".join(texts)


def parameters(called: object) -> list[str]:
    try:
        found = inspect.signature(called).parameters.values()  # type: ignore[arg-type]  # a callable
    except (TypeError, ValueError):  # an enumeration, a protocol
        return []
    variable = (inspect.Parameter.VAR_POSITIONAL, inspect.Parameter.VAR_KEYWORD)
    names = [each.name for each in found if each.kind not in variable]
    if inspect.isclass(called) and dataclasses.is_dataclass(called):
        names = [field.name for field in dataclasses.fields(called) if field.init]
    return [name for name in names if name not in ("self", "cls") and not name.startswith("_")]


@pytest.mark.parametrize("package", PACKAGES)
def test_docstrings_explain_every_public_parameter(package: str) -> None:
    missing = [
        f"{name}({parameter})"
        for name, called, text in public_callables(package)
        for parameter in parameters(called)
        if not re.search(rf"\b{re.escape(parameter)}\b", text)
    ]
    assert not missing, missing
