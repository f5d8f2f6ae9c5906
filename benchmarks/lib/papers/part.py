"""Parts of a paper's page: how a table or figure was reproduced, the paper's statement, the findings.

Knows: the texts of both. Does not know: papers, how anything is measured, HTML.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, Literal

from cotswold.analysis.report.blocks import Figure, Table

Result = Mapping[str, Any]
"""The JSON written by a script."""
Kind = Literal["measured", "simulated", "left out"]


@dataclass(frozen=True)
class Claim:
    """A statement of the paper and Cotswold's result, which is empty if the statement has no counterpart."""

    said: str
    ours: str


@dataclass(frozen=True)
class Found:
    """Findings about a part; no run of it is finished if there are no claims and tables."""

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
    """Experiment that reproduces the part, or the reason to leave it out."""
    stated: str
    """Statement of the paper, shown even without a result."""
    needs: Sequence[str] = ()
    """Names of results, each NAME.json."""
    found: Callable[..., Found] | None = None
    """Makes the findings from the results in `needs`, in their order."""


@dataclass(frozen=True)
class Paper:
    """A paper with all its tables and figures."""

    name: str
    title: str
    lead: str
    parts: Sequence[Part]
    diagrams: Sequence[str] = field(default_factory=tuple)
    """Figures without results: diagrams, images of others."""
