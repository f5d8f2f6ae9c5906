"""What is said of a table or figure of a paper: how it was redone, what the paper states, what was found.

Knows: the words for both. Does not know: papers, how anything is measured, HTML.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, Literal

from cotswold.analysis.report.blocks import Figure, Table

Result = Mapping[str, Any]
"""The JSON that a script left."""
Kind = Literal["measured", "simulated", "left out"]


@dataclass(frozen=True)
class Claim:
    """What the paper states, and ours beside it; ours is empty where the sentence stands for itself."""

    said: str
    ours: str


@dataclass(frozen=True)
class Found:
    """What results say of a part; without claims and tables that no run of it has ended yet."""

    claims: Sequence[Claim] = ()
    figures: Sequence[Figure] = ()
    tables: Sequence[Table] = ()
    note: str = ""


@dataclass(frozen=True)
class Part:
    """A table, a figure or a section of a paper."""

    name: str
    title: str
    kind: Kind
    about: str
    """What was done in the paper's place; of what is left out, why."""
    stated: str
    """What the paper says; shown also before there is a result."""
    needs: Sequence[str] = ()
    """Names of results, each NAME.json."""
    found: Callable[..., Found] | None = None
    """Of the results that `needs` names, in their order."""


@dataclass(frozen=True)
class Paper:
    """A paper: what it is called, and all its tables and figures."""

    name: str
    title: str
    lead: str
    parts: Sequence[Part]
    diagrams: Sequence[str] = field(default_factory=tuple)
    """Figures that show no result: schemas, images of others."""
