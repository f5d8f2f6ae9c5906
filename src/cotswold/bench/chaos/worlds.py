"""Worlds in which servers that keep copies live: what goes wrong, and how often.

Knows: rates of faults. Does not know: what must be true.
"""

from __future__ import annotations

from collections.abc import Mapping

from cotswold.bench.chaos.world import World
from cotswold.simulate.network import Faults

_BAD = Faults(lost=0.02, twice=0.02, late=0.05, late_seconds=0.5)
_WORST = Faults(lost=0.03, twice=0.05, late=0.1, late_seconds=4.0)

WORLDS: Mapping[str, World] = {
    "quiet": World(),
    "network": World(faults=Faults(lost=0.05, twice=0.05, late=0.1, late_seconds=1.0), checkpoints=0.3),
    "deaths": World(kills=0.6, replica_faults=0.1, checkpoints=0.3),
    "pauses": World(faults=_WORST, kills=0.3, pauses=1.2, cuts=1.2),
    "cuts": World(faults=_BAD, cuts=0.8, checkpoints=0.3),
    "controllers": World(faults=_WORST, kills=0.8, controller_faults=1.5, state_lost=0.1, pauses=0.5),
    "everything": World(
        faults=_BAD,
        kills=0.6,
        pauses=0.5,
        cuts=0.4,
        controller_faults=0.3,
        replica_faults=0.1,
        checkpoints=0.5,
        state_lost=0.02,
    ),
    "two at least": World(least=2, kills=0.3, pauses=0.2, cuts=0.2, controller_faults=0.2, checkpoints=0.3),
    "five copies": World(servers=7, copies=5, kills=0.5, pauses=0.2, cuts=0.2),
    "chain": World(
        way="chain",
        faults=_BAD,
        kills=0.5,
        pauses=0.4,
        cuts=0.5,
        controller_faults=0.2,
        replica_faults=0.1,
        checkpoints=0.4,
    ),
    "chain of five": World(servers=7, copies=5, least=2, way="chain", kills=0.4, pauses=0.3, cuts=0.4),
    "disks": World(disks=True, kills=0.6, full=0.3, slow=0.3, checkpoints=0.3, replica_faults=0.1),
    "outages": World(disks=True, outages=0.3, kills=0.3, checkpoints=0.3, damage=0.3),
    "one copy on disk": World(copies=1, disks=True, outages=0.3, checkpoints=0.3, faults=_BAD),
    "disks and all": World(
        faults=_BAD,
        disks=True,
        outages=0.15,
        full=0.2,
        slow=0.2,
        damage=0.2,
        kills=0.4,
        pauses=0.4,
        cuts=0.3,
        controller_faults=0.3,
        replica_faults=0.1,
        checkpoints=0.4,
        state_lost=0.02,
    ),
    "one copy": World(copies=1, pauses=0.8, cuts=0.5, controller_faults=0.3),
}
"""By name."""
