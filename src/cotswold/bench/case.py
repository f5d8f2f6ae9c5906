"""One measurement, and the selection of measurements by group and name.

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
    """One measurement; with ``once``, for the first number of threads only."""

    group: str
    name: str
    measured: Callable[[Subject, Effort], list[Row]]
    subject: Subject
    is_measured_once: bool = False

    def run(self, effort: Effort) -> list[Row]:
        """Measure it in this process."""
        return self.measured(self.subject, effort)


def groups_of(only: Sequence[str], known: Sequence[str]) -> set[str]:
    """The groups of these names, by default all; a name may list several, separated by commas.

    Raises UserError for an unknown group.
    """
    names = [name for several in only for name in several.split(",")]
    for name in names:
        if name not in known:
            raise UserError(f"--only {name} is not a group; the groups are {', '.join(known)}")
    return set(names or known)


def select_cases(
    cases: Sequence[Case[Any]], only: Sequence[str], match: str, known: Sequence[str]
) -> list[Case[Any]]:
    """The cases of these groups whose names contain the text; raise UserError if none is left."""
    groups = groups_of(only, known)
    found = [one for one in cases if one.group in groups and match.lower() in one.name.lower()]
    if not found:
        names = "; ".join(dict.fromkeys(one.name for one in cases if one.group in groups))
        raise UserError(f"no measurement of {names or 'these groups'} matches; give another --match")
    return found
