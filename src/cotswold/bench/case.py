"""What is measured in one go, and the choice of some of it by group and name.

Knows: groups, names, efforts. Does not know: what is measured, processes.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any, Generic, TypeVar

from cotswold.bench.effort import Effort
from cotswold.bench.row import Row
from cotswold.errors import UserError

Subject = TypeVar("Subject")


@dataclass(frozen=True)
class Case(Generic[Subject]):
    """One thing that is measured in one go; ``once``: for the first number of threads alone."""

    group: str
    name: str
    measured: Callable[[Subject, Effort], list[Row]]
    subject: Subject
    once: bool = False

    def run(self, effort: Effort) -> list[Row]:
        """Measure it in this process."""
        return self.measured(self.subject, effort)


def groups_of(only: Sequence[str], known: Sequence[str]) -> set[str]:
    """The groups of these names, all for none; a name may be several with commas between.

    Raises UserError for a name that is no group's.
    """
    names = [name for several in only for name in several.split(",")]
    for name in names:
        if name not in known:
            raise UserError(f"--only {name} is no group; the groups are {', '.join(known)}")
    return set(names or known)


def some(
    every: Sequence[Case[Any]], only: Sequence[str], match: str, known: Sequence[str]
) -> list[Case[Any]]:
    """Those of these groups whose name has the text; raises UserError where none is left."""
    groups = groups_of(only, known)
    found = [one for one in every if one.group in groups and match.lower() in one.name.lower()]
    if not found:
        names = "; ".join(dict.fromkeys(one.name for one in every if one.group in groups))
        raise UserError(f"nothing is left to measure of {names or 'these groups'}; give another --match")
    return found
