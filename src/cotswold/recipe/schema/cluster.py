"""`[cluster]`: the processes among which whole-set optimisation is spread.

Knows: fields, limits. Does not know: processes.
"""

from __future__ import annotations

from typing import Annotated, Literal

from pydantic import Field, model_validator

from cotswold.recipe.limits import at_most
from cotswold.recipe.schema.fields import Positive, Section, Span, Text

Processes = Annotated[int, Field(gt=0), at_most(100_000)]


class Cluster(Section):
    """Processes that live and die alone: workers compute, parameter servers keep the vectors."""

    workers: Processes = 1
    """Workers, each a process, or the ranks of `mesh.grid`. One process without `address` does everything
    itself, without servers or sockets."""
    servers: Processes = 1
    """Parameter servers, which keep the parameters, directions and history in shards of about 1 MB."""
    address: Text | None = None
    """A Ray cluster, `host:port` or `auto`, on whose machines the processes are started; on this machine
    alone where nothing is said."""
    encrypt: bool = True
    """Whether connections between hosts are encrypted (CURVE); those of one host never are."""
    travel: Literal["sandblaster", "bunyip"] = "sandblaster"
    """How the point travels. `sandblaster`: workers pull it from the servers for each evaluation; `bunyip`:
    workers keep it, get the direction once an iteration, and then step lengths alone."""
    copies: Annotated[int, Field(gt=0), at_most(100)] = 2
    """How many workers may have one of the last portions of an evaluation, of which the first answer counts;
    1 for no backup copies."""
    link_megabits: Positive = 1000.0
    """Speed of each machine's network card, Mb/s: by it the order in which sums are reduced is chosen."""
    replay: Text | None = None
    """A run whose evaluations ended before all patterns were done: count in each cycle the patterns that it
    counted."""
    silence: Span = 10.0
    """Seconds for which a worker may be silent before its portions are given to others."""
    wait: Span = 300.0
    """Seconds for which the run waits where there is no worker at all, before it saves and ends."""

    @property
    def alone(self) -> bool:
        """Whether one process does everything."""
        return self.workers == 1 and self.address is None

    @model_validator(mode="after")
    def _belongs_together(self) -> Cluster:
        if self.alone and self.servers > 1:
            raise ValueError(
                f"servers is {self.servers}, but one worker needs none; give workers, or take servers out"
            )
        return self
