"""Worlds of servers with copies: kinds and rates of faults.

Knows: rates of faults, moments of the largest effect. Does not know: invariants.

The first worlds have random faults at any time. Later worlds steer towards moments in which one mistake
matters, with few buckets and few other events.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace

from tests.chaos.world import Aim, World

from cotswold.paramserver.core.replica_session import Pace
from cotswold.replication.replica.lease import DRIFT
from cotswold.simulate.protocols.network import Faults

_BAD = Faults(lost_fraction=0.02, duplicated_fraction=0.02, delayed_fraction=0.05, late_seconds=0.5)
_WORST = Faults(lost_fraction=0.03, duplicated_fraction=0.05, delayed_fraction=0.1, late_seconds=4.0)
_MOST_DRIFT = DRIFT / (2 - DRIFT)
"""Drift of a clock at which two clocks differ by the allowed maximum over a lease."""
_FAILOVER_SECONDS = 3.5
"""Seconds in which a bucket resumes after the loss of any one server, with leases of a second."""
_SMALL = World(servers=4, buckets=1, epochs=4, replicas=3, readers=1, seen=1.0)

WORLDS: Mapping[str, World] = {
    "quiet": World(waits_seconds=0.2),
    "one at a time": World(
        servers=4, least=2, epochs=12, speeds=(0.1, 0.2), single=10.0, waits_seconds=_FAILOVER_SECONDS
    ),
    "one of two": World(
        servers=4, copies=2, epochs=12, speeds=(0.1, 0.2), single=10.0, waits_seconds=_FAILOVER_SECONDS
    ),
    "network": World(
        faults=Faults(lost_fraction=0.05, duplicated_fraction=0.05, delayed_fraction=0.1, late_seconds=1.0),
        checkpoints=0.3,
    ),
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
    "outages in pushes": World(
        disks=True,
        outages=0.4,
        kills=0.2,
        checkpoints=0.3,
        replica_faults=0.2,
        pace=Pace(2, n_push=4),
        hand=6,
    ),
    "disks exchanged": replace(
        _SMALL, servers=5, buckets=2, epochs=8, disks=True, outages=0.5, exchanged=1.0
    ),
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
    "massacres": World(massacres=0.3, kills=0.3, pauses=0.2, replica_pauses=0.3, checkpoints=0.3),
    "reckless": World(reckless=0.5, pauses=0.3, controller_faults=0.3, checkpoints=0.3),
    "overtaken": replace(
        _SMALL,
        servers=5,
        epochs=6,
        between_seconds=0.5,
        slow_links=0.5,
        aims=(Aim("prepare", 0.05, ("sender killed",), Aim("acknowledged", 0.25, ("sender killed",))),),
        most_aims=10,
    ),
    "strays": replace(
        _SMALL,
        servers=3,
        epochs=10,
        control_seconds=0.4,
        aims=(
            Aim("prepare", 0.1, ("sender alone", "sender apart"), Aim("joined", 0.7, ("receiver killed",))),
        ),
        most_aims=12,
    ),
    "late state": World(
        buckets=2, epochs=4, kills=1.0, seen=1.0, state_late=0.3, state_lost=0.05, controller_faults=0.5
    ),
    "cut state": World(
        buckets=2, epochs=4, kills=1.0, seen=1.0, state_lost=0.2, controller_faults=2.0, checkpoints=0.3
    ),
    "full disks": replace(
        _SMALL, buckets=2, epochs=6, disks=True, full=1.0, saving_seconds=0.1, outages=0.3, checkpoints=0.5
    ),
    "hosts gone": replace(
        _SMALL,
        servers=5,
        buckets=2,
        epochs=6,
        disks=True,
        full=2.5,
        saving_seconds=0.1,
        outages=0.4,
        gone=1.0,
        again_seconds=1.0,
    ),
    "momentum on disks": replace(
        _SMALL, buckets=2, epochs=6, has_momentum=True, disks=True, outages=0.4, kills=0.3, checkpoints=0.3
    ),
    "bad disks": replace(
        _SMALL, buckets=2, epochs=6, disks=True, rots=1.0, torn=0.5, outages=0.3, kills=0.3, checkpoints=0.3
    ),
    "chain on disks": replace(
        _SMALL,
        buckets=2,
        epochs=6,
        way="chain",
        disks=True,
        torn=0.2,
        outages=0.2,
        kills=0.3,
        drains=1.0,
        evens_soon=True,
    ),
    "nobody leads": World(
        controllers=1,
        controller_outages=0.5,
        kills=0.8,
        kills_unled=True,
        seen=0.3,
        checkpoints=0.3,
        drift=_MOST_DRIFT,
    ),
    "clients cut off": World(
        client_cuts=1.0,
        kills=0.3,
        controller_outages=0.1,
        replica_faults=0.1,
        checkpoints=0.3,
        drift=_MOST_DRIFT,
    ),
    "drains": replace(
        _SMALL, buckets=2, readers=3, seen=0.5, drains=2.0, evens_soon=True, control_seconds=0.6, camps=0.5
    ),
    "calm drains": replace(_SMALL, buckets=2, copies=2, least=2, drains=2.0, evens_soon=True),
    "drains and deaths": replace(
        _SMALL, buckets=2, copies=2, seen=0.3, drains=2.0, evens_soon=True, kills=1.0
    ),
    "runs": replace(
        _SMALL, buckets=2, runs=1.0, kills=0.4, pauses=0.3, controller_faults=0.5, state_lost=0.05
    ),
    "freezing": replace(
        _SMALL,
        buckets=2,
        epochs=6,
        between_seconds=0.2,
        slow_links=0.5,
        checkpoints=3.0,
        taking=2.0,
        aims=(
            Aim("frozen", 0.3, ("sender killed", "receiver stopped")),
            Aim("acknowledged", 0.01, ("sender killed",)),
        ),
    ),
    "folded": replace(
        _SMALL,
        buckets=2,
        replicas=4,
        epochs=6,
        between_seconds=0.4,
        slow_links=0.5,
        checkpoints=5.0,
        taking=1.0,
        aims=(Aim("frozen", 0.3, ("receiver stopped",), Aim("acknowledged", 0.2, ("sender killed",))),),
        most_aims=10,
    ),
    "deaf": replace(
        _SMALL,
        replicas=1,
        readers=6,
        speeds=(2.0,),
        epochs=1,
        order_seconds=4.0,
        aims=(Aim("prepared", 0.015, ("receiver alone",), Aim("fence", 0.9, ("receiver astray",))),),
        most_aims=8,
    ),
    "outages at once": replace(
        _SMALL,
        buckets=2,
        epochs=6,
        disks=True,
        damage=0.3,
        saving_seconds=0.1,
        checkpoints=0.5,
        aims=tuple(
            Aim(moment, chance, ("sender all",))
            for moment, chance in (
                ("joined", 0.1),
                ("everything", 0.1),
                ("found", 0.05),
                ("group", 0.02),
                ("ordered", 0.03),
                ("acknowledged", 0.02),
            )
        ),
    ),
    "left alone": replace(
        _SMALL,
        buckets=2,
        epochs=6,
        aims=(
            Aim("joined", 0.1, ("receiver killed",)),
            Aim("caught", 0.1, ("sender stopped", "sender unheard", "sender killed")),
            Aim("prepared", 0.01, ("sender left", "receiver stopped")),
            Aim("lease", 0.01, ("receiver stopped", "receiver uncontrolled")),
            Aim("fenced", 0.1, ("sender killed", "sender unheard")),
            Aim("here", 0.01, ("sender unheard",)),
            Aim("push", 0.01, ("receiver killed",)),
        ),
    ),
    "astray": replace(
        _SMALL,
        replicas=2,
        readers=6,
        speeds=(1.0, 2.0),
        epochs=2,
        drift=0.024,
        lease_seconds=3.0,
        aims=(Aim("acknowledged", 0.3, ("sender astray",)),),
        most_aims=4,
    ),
    "momentum": replace(_SMALL, buckets=2, has_momentum=True, kills=0.8, checkpoints=0.3),
    "few servers": replace(_SMALL, servers=3, buckets=2, least=2, kills=1.5, seen=0.5),
}
"""Worlds by name."""
