"""Simulated hosts with separate processes and /tmp, joined only by a network.

Knows: namespaces of processes and mounts, the programs `unshare` and `mount` (util-linux). Does not know:
networks (`testing.hosts`), the programs on the hosts. Needs root and Linux.

Some programs inspect their machine: Ray claims every Ray process that it finds on its machine, and
shares files in /tmp. On a host of this module they find only what belongs to this host. From outside, its
processes are ordinary processes with other process ids.
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
"""The first process of a host: it adopts orphans, and its end kills all others."""
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
    """Hosts with separate processes and /tmp for a `with` block, which kills all their processes at the end.

    Args:
        hosts: The hosts and their network.
        folder: Folder for the hosts' /tmp directories.
        shared: Folders in /tmp that stay visible on all hosts.
    """

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
        """Return the path, from outside, of a host's /tmp.

        Args:
            host: Number of the host, from 0.
        """
        return self._folder / f"host-{host}" / "tmp"

    def start(
        self, host: int, words: Sequence[str], environ: Mapping[str, str], output: Path
    ) -> subprocess.Popen[bytes]:
        """Start a program as `Hosts.start` does.

        Args:
            host: Number of the host, from 0.
            words: The command.
            environ: Environment variables.
            output: File to which its output is appended.
        """
        begin = ["unshare", "--mount", "--propagation", "private", "sh", "-c", _BEGIN, "sh"]
        given = [*begin, str(self.own_tmp(host)), *self._shared, "--", *words]
        with children_in(Path(f"/proc/{self._firsts[host].pid}/ns/pid")):
            process = self.hosts.start(host, given, environ, output)
        self._started[host].append(process)
        return process

    def processes(self, host: int) -> list[int]:
        """Return the process ids of all processes on a host, except its first.

        Args:
            host: Number of the host, from 0.
        """
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
        """Kill the first process, which ends after all others, and reap those that this process started."""
        self._firsts[host].kill()
        for process in (*self._started[host], self._firsts[host]):
            process.wait(_END_SECONDS)
