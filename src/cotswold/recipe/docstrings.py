"""Docstring and signature of a class of fields, as `help` and an editor show them.

Knows: annotations, defaults and documentation of fields. Does not know: which classes need them.
"""

from __future__ import annotations

import inspect
import textwrap
from functools import reduce
from operator import or_
from types import UnionType
from typing import Annotated, Any, Union, get_args, get_origin

from cotswold.recipe.field_types import kind
from cotswold.recipe.schema.fields import Section

_WIDTH = 100


def docstring(section: type[Section]) -> str:
    """Return the docstring of a class, and below it every field with type, default and meaning.

    Args:
        section: the class of the fields, each with a default.
    """
    lines = ["Args:"]
    for name, field in section.model_fields.items():
        value = _default(field)
        default = "; optional" if value is None else f"; default {value!r}"
        words = " ".join((field.description or "").split())
        entry = f"{name}: {words} [{kind(field)}{default}]"
        lines += textwrap.wrap(entry, _WIDTH, initial_indent=" " * 4, subsequent_indent=" " * 8)
    return "\n".join([inspect.cleandoc(section.__doc__ or ""), "", *lines, ""])


def signature(section: type[Section]) -> inspect.Signature:
    """Return the signature of a class: its fields by keyword, with types as a caller writes them.

    Args:
        section: the class of the fields, each with a default.
    """
    return inspect.Signature(
        [
            inspect.Parameter(
                name,
                inspect.Parameter.KEYWORD_ONLY,
                default=_default(field),
                annotation=_without_limits(field.annotation),
            )
            for name, field in section.model_fields.items()
        ]
    )


def _default(field: Any) -> Any:
    return field.get_default(call_default_factory=True)


def _without_limits(annotation: Any) -> Any:
    """Return an annotation without validators: int for a positive integer."""
    origin, inner = get_origin(annotation), get_args(annotation)
    if origin is Annotated:
        return _without_limits(inner[0])
    if origin in (Union, UnionType):
        return reduce(or_, map(_without_limits, inner))
    if origin in (list, tuple):
        return origin[tuple(map(_without_limits, inner))]
    return annotation
