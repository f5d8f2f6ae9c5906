"""Hosts that share nothing with each other but a network: processes and /tmp are their own, too.

Knows: namespaces of processes and mounts, the programs `unshare` and `mount` (util-linux). Does not know:
networks (`testing.hosts`), what the programs do. Needs root and Linux.

Programs look around on their machine: Ray takes any of its processes that it finds for one of its own
machine, and leaves files in /tmp for others. On a host of this module they find what belongs to this host.
From outside its processes are processes like any others, with numbers of their own there.
"""

from __future__ import annotations

import os
import subprocess
import sys
from collections.abc import Mapping, Sequence
from contextlib import ExitStack
from pathlib import Path

from cotswold.testing.hosts import Hosts
from cotswold.testing.namespaces import children_in

_TMP = Path("/tmp")
_FIRST = """
import signal
signal.signal(signal.SIGCHLD, signal.SIG_IGN)
print(flush=True)
while True:
    signal.pause()
"""
"""The first process of a host, to which orphans go, and with which all end."""
_BEGIN = """
own=$1; shift
while [ "$1" != -- ]; do
    mkdir -p "$own/${1#/tmp/}" && mount --rbind "$1" "$own/${1#/tmp/}" || exit 1
    shift
done
shift
mount -t proc proc /proc && mount --rbind "$own" /tmp && exec "$@"
"""
_END_SECONDS = 20


class Machines:
    """Each of ``hosts`` has a folder below ``folder`` as its /tmp; use in a `with` statement, at whose end
    all that runs there is killed. ``shared``: folders that all see, though they lie in /tmp."""

    def __init__(self, hosts: Hosts, folder: Path, shared: Sequence[Path] = ()) -> None:
        self.hosts, self._folder = hosts, folder.absolute()
        self._shared = [str(each) for each in map(Path.absolute, shared) if _TMP in each.parents]
        self._firsts: list[subprocess.Popen[bytes]] = []
        self._started: list[list[subprocess.Popen[bytes]]] = []
        self._held = ExitStack()

    def __enter__(self) -> Machines:
        with ExitStack() as begun:
            for host in range(self.hosts.count):
                self.own_tmp(host).mkdir(parents=True, exist_ok=True)
                self._started.append([])
                self._firsts.append(self._first(host))
                begun.callback(self._end, host)
            self._held = begun.pop_all()
        return self

    def __exit__(self, *_: object) -> None:
        self._held.close()

    def own_tmp(self, host: int) -> Path:
        """Where what a host has in /tmp is found from outside."""
        return self._folder / f"host-{host}" / "tmp"

    def start(
        self, host: int, words: Sequence[str], environ: Mapping[str, str], output: Path
    ) -> subprocess.Popen[bytes]:
        """As `Hosts.start`."""
        begin = ["unshare", "--mount", "--propagation", "private", "sh", "-c", _BEGIN, "sh"]
        given = [*begin, str(self.own_tmp(host)), *self._shared, "--", *words]
        with children_in(Path(f"/proc/{self._firsts[host].pid}/ns/pid")):
            process = self.hosts.start(host, given, environ, output)
        self._started[host].append(process)
        return process

    def processes(self, host: int) -> list[int]:
        """All that live on a host, but the first."""
        return [each for each in self.hosts.processes(host) if each != self._firsts[host].pid]

    def _first(self, host: int) -> subprocess.Popen[bytes]:
        with self.hosts.entered(host), children_in(None):
            first = subprocess.Popen(
                [sys.executable, "-S", "-c", _FIRST],
                stdin=subprocess.DEVNULL,
                stdout=subprocess.PIPE,
                env={"PATH": os.defpath},
                start_new_session=True,
            )
        assert first.stdout is not None
        first.stdout.readline()
        first.stdout.close()
        return first

    def _end(self, host: int) -> None:
        """The first ends once nobody is left; whom this process has started is there until it is asked."""
        self._firsts[host].kill()
        for process in (*self._started[host], self._firsts[host]):
            process.wait(_END_SECONDS)
