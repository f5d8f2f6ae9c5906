"""JSON output of commands: one object in one line, with the name and version of its schema.

Knows: the style. Does not know: the content.
"""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from typing import Annotated

from cyclopts import Parameter

VERSION = 1
"""Version of every schema; it increases if a field changes its meaning or disappears, not if one is added."""
OPTION = "--json"
Json = Annotated[bool, Parameter(name=OPTION, negative=())]
"""The parameter of a command that can print JSON."""


def print_json(name: str, content: Mapping[str, object]) -> None:
    """Print an object in one line: its schema, such as ``cotswold.info/1``, then the content.

    Values that JSON does not know, such as paths, become text.
    """
    print(json.dumps({"schema": schema_of(name), **content}, default=str))


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
