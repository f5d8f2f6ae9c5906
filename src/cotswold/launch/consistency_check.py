"""Facts that must be equal on every rank.

Knows: names and values of facts, ranks and their hosts. Does not know: their meaning, how they are sent.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence

_MAX_CHARS = 60
"""Maximum number of characters shown of a value."""
_NAMED = 8
"""Maximum number of ranks named in a sentence."""


def first_difference(
    facts: Sequence[Mapping[str, str]], hosts: Sequence[str], global_ranks: Sequence[int]
) -> str | None:
    """Describe the first fact in which a rank differs from the first rank; None if all ranks agree.

    ``global_ranks`` are the ranks' numbers as sentences show them.
    """
    for name in dict.fromkeys(name for each in facts for name in each):
        values = [each.get(name, "nothing") for each in facts]
        others = [rank for rank, value in enumerate(values) if value != values[0]]
        if others:
            other = values[others[0]]
            alike = [rank for rank in others if values[rank] == other]
            where = ", ".join(dict.fromkeys(hosts[rank] for rank in alike))
            verb = "has" if len(alike) == 1 else "have"
            return (
                f"the ranks do not agree on {name}: rank {global_ranks[0]} on {hosts[0]} has "
                f"{_shorten(values[0])}, {format_ranks([global_ranks[rank] for rank in alike])} on {where} "
                f"{verb} {_shorten(other)}; start all ranks with the same value"
            )
    return None


def format_ranks(ranks: Sequence[int]) -> str:
    """Name ranks in a sentence: "rank 3", or "ranks 1, 2 and 5 more"."""
    if len(ranks) == 1:
        return f"rank {ranks[0]}"
    more = f" and {len(ranks) - _NAMED} more" if len(ranks) > _NAMED else ""
    return f"ranks {', '.join(map(str, ranks[:_NAMED]))}{more}"


def _shorten(value: str) -> str:
    value = " ".join(value.split())
    return value if len(value) <= _MAX_CHARS else value[: _MAX_CHARS - 1] + "…"
