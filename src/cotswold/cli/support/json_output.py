"""JSON output of commands: one object in one line, with the name and version of its schema.

Knows: the style. Does not know: the content.
"""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from math import isfinite
from typing import Annotated

from cyclopts import Parameter

VERSION = 1
"""Version of every schema; it increases if a field changes its meaning or disappears, not if one is added."""
OPTION = "--json"
Json = Annotated[bool, Parameter(name=OPTION, negative=())]
"""The parameter of a command that can print JSON."""


def print_json(name: str, content: Mapping[str, object]) -> None:
    """Print an object in one line: its schema, such as ``cotswold.info/1``, then the content.

    Values that JSON does not know, such as paths, become text; NaN and infinite numbers become null.
    """
    told = {"schema": schema_of(name), **{key: _finite(each) for key, each in content.items()}}
    print(json.dumps(told, default=str, allow_nan=False))


def _finite(value: object) -> object:
    """Return a value with None in place of all numbers that JSON lacks.

    >>> _finite({"loss": [float("nan"), 1.0]})
    {'loss': [None, 1.0]}
    """
    if isinstance(value, float):
        return value if isfinite(value) else None
    if isinstance(value, Mapping):
        return {key: _finite(each) for key, each in value.items()}
    if isinstance(value, list | tuple):
        return [_finite(each) for each in value]
    return value


def schema_of(name: str) -> str:
    """Return the name and version of a command's schema.

    >>> schema_of("info")
    'cotswold.info/1'
    """
    return f"cotswold.{name}/{VERSION}"


def wants_json(words: Sequence[str]) -> bool:
    """True if a command line asks for JSON, even if it is not valid otherwise.

    >>> wants_json(["info", "demo", "--json"]), wants_json(["info", "--", "--json"])
    (True, False)
    """
    return OPTION in words[: words.index("--") if "--" in words else None]
