"""Inject and heal the faults of a site, one at a time.

Knows: signals, links, disks, members of etcd. Does not know: the order of the faults, their effects.
"""

from __future__ import annotations

import os
import signal
from collections.abc import Callable, Sequence
from contextlib import suppress

from lib.fault_training.cluster import Site
from lib.fault_training.plan import Fault

_SLOW = "20mbit"
Heal = Callable[[], None]


def inject(site: Site, fault: Fault) -> tuple[str, Heal]:
    """Inject a fault; return a description and the function that heals it."""
    others = [host for host in range(site.places.hosts) if host != fault.host]
    match fault.kind:
        case "kill" | "stop":
            return _signalled(site, fault)
        case "fill":
            disk = site.disks[fault.host]
            free = disk.free_bytes
            disk.fill()
            return f"filled the last {free >> 20} MiB of the disk of host {fault.host}", disk.empty
        case "slow":
            site.hosts.slow(fault.host, _SLOW)
            return f"limited host {fault.host} to {_SLOW}", lambda: site.hosts.slow(fault.host, None)
        case "cut":
            for other in others:
                site.hosts.cut(fault.host, other)
        case "deafen":
            for other in others:
                site.hosts.cut_way(other, fault.host)
        case "mute":
            for other in others:
                site.hosts.cut_way(fault.host, other)
    return _CUTS[fault.kind].format(fault.host), lambda: _mend(site, fault.host, others)


_CUTS = {
    "cut": "host {0} neither sends nor receives",
    "deafen": "host {0} receives nothing, but sends",
    "mute": "host {0} sends nothing, but receives",
}


def _mend(site: Site, host: int, others: Sequence[int]) -> None:
    for other in others:
        site.hosts.mend(host, other)


def _signalled(site: Site, fault: Fault) -> tuple[str, Heal]:
    pids = site.players(fault.role, fault.host)
    if not pids:
        return f"no {fault.role} runs on host {fault.host}", lambda: None
    pid = pids[0]
    if fault.kind == "stop":
        _send(pid, signal.SIGSTOP)
        return f"stopped process {pid}", lambda: _send(pid, signal.SIGCONT)
    if fault.role == "etcd":
        at = list(site.places.keepers).index(fault.host)
        site.etcd.kill(at)
        return f"killed process {pid}, to be restarted", lambda: site.etcd.start(at)
    _send(pid, signal.SIGKILL)
    return f"killed process {pid}", lambda: None


def _send(pid: int, number: int) -> None:
    with suppress(ProcessLookupError):  # its supervisor may have ended it
        os.kill(pid, number)


def revive(site: Site) -> list[int]:
    """Restart members of etcd that have exited, as a supervisor does; return their indices."""
    ended = [at for at in range(len(site.places.keepers)) if site.etcd.pid(at) is None]
    for at in ended:
        site.etcd.start(at)
    return ended
