"""A cluster of parameter servers on hosts that are namespaces, started with the commands that users run.

Knows: the options of `cotswold cluster start`, `worker` and `train`, etcd, which process has which role. Does
not know: faults, what is measured.

Every host has three networks (administration, updates and replication), a small disk, its own processes and
/tmp. All hosts see one folder, like machines that share a file system. etcd requires certificates.
"""

from __future__ import annotations

import os
import secrets
import shutil
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Mapping, Sequence
from contextlib import ExitStack, suppress
from dataclasses import dataclass
from pathlib import Path

import cotswold
from cotswold.errors import MachineError
from cotswold.replication.metadata import Tls
from cotswold.testing import Authority, Certificate, EtcdHosts, EtcdPlan, Hosts, Machines, SmallDisk
from lib.fault_training.plan import Places, Role
from lib.fault_training.primaries import Acting

ADMINISTRATION, UPDATES, REPLICATION = range(3)
"""Indices of the networks: interfaces eth0, eth1, eth2."""
NETWORKS = ("administration", "updates", "replication")
HEAD_PORT, PORT = 6379, 7400
_DISK_MIB = 512
_START_SECONDS = 90.0
_END_SECONDS = 60.0
_GONE_SECONDS = 20.0
_LOOK_SECONDS = 0.1
_PROGRAM = (sys.executable, "-m", "cotswold")
_CORES = 4
"""Cores that a replica's host offers, more than exist, so that replicas are placed there and not with the
head."""
_HEADS = "gcs_server"
TALLY = "tally"
"""Folder of the counting run, whose replica is never a target."""


@dataclass(frozen=True)
class SitePlan:
    """Layout of a site."""

    places: Places
    folder: Path
    """Folder of this site, visible to all hosts."""
    shared: Sequence[Path]
    """Other paths visible to all hosts."""
    copies: int = 3
    servers: int = 1
    """Servers on each host that runs any."""


class Site:
    """A running cluster, inside a `with` block; all remaining processes are killed at its end."""

    def __init__(self, plan: SitePlan, say: Callable[[str], None]) -> None:
        self.plan, self._say = plan, say
        self.places = plan.places
        self._held = ExitStack()
        self._stations: dict[int, subprocess.Popen[bytes]] = {}
        self._lent: dict[int, subprocess.Popen[bytes]] = {}
        self._shown: dict[int, Certificate] = {}
        self.training: subprocess.Popen[bytes] | None = None
        self.tally: subprocess.Popen[bytes] | None = None
        self.ended: dict[str, int] = {}
        """Exit codes of programs that ended by themselves or on request, by name."""
        token = plan.folder / "token"
        plan.folder.mkdir(parents=True)
        token.write_text(secrets.token_hex(32))
        token.chmod(0o600)
        self._token = token
        ours = {"COTSWOLD_TOKEN": secrets.token_hex(32), "COTSWOLD_CLUSTER_TOKEN": token.read_text()}
        paths = os.pathsep.join(filter(None, (str(Path(__file__).parents[2]), os.environ.get("PYTHONPATH"))))
        ours |= {"PYTHONPATH": paths, "OMP_NUM_THREADS": "1", "RAY_DEDUP_LOGS": "0"}
        self._environ = {**os.environ, **ours}

    def __enter__(self) -> Site:
        with ExitStack() as begun:
            self.hosts = begun.enter_context(Hosts(self.places.hosts, interfaces=len(NETWORKS)))
            self.hosts.lead_outside()
            self.disks = [
                begun.enter_context(SmallDisk(self.plan.folder / f"disk-{host}", _DISK_MIB))
                for host in range(self.places.hosts)
            ]
            programs = Path(sys.prefix), Path(cotswold.__file__).parents[1]
            shared = [self.plan.folder, *self.plan.shared, *programs]
            begun.callback(self._keep_logs)
            self.machines = begun.enter_context(Machines(self.hosts, self.plan.folder / "machines", shared))
            self._say("starting etcd")
            folders = [self.disks[host].folder / "etcd" for host in self.places.keepers]
            told = EtcdPlan(self.places.keepers, folders, ADMINISTRATION, self._certificates())
            self.etcd = begun.enter_context(EtcdHosts(self.hosts, told))
            self._begin()
            self._held = begun.pop_all()
        return self

    def __exit__(self, *_: object) -> None:
        self._held.close()

    @property
    def controllers(self) -> str:
        """Addresses of the controllers, as runs name them."""
        return ",".join(f"{self.hosts.address(host)}:{PORT}" for host in self.places.keepers)

    def station_folder(self, host: int) -> Path:
        """Folder of the supervisor of a host."""
        return self.disks[host].folder / "cluster"

    def train(self, run: Path, stores: Path, overrides: Sequence[str]) -> None:
        """Start to train, until `stop_training`."""
        given = [
            "training.strategy=downpour",
            f'cluster.controllers="{self.controllers}"',
            *overrides,
        ]
        words = [*_PROGRAM, "train", "adam-mnist", "--run", str(run), "--stores", str(stores)]
        words += ["--address", f"{self.hosts.address(self.places.head)}:{HEAD_PORT}"]
        words += ["--workers", str(len(self.places.replicas))]
        for each in given:
            words += ["--set", each]
        self.training = self._start(self.places.trainer, words, "train")

    def count(self, run: Path) -> None:
        """Start to count during the training, in another run on the same parameter servers."""
        words = [sys.executable, "-m", "lib.fault_training.tally", str(run)]
        words += ["--parameter-servers", self.controllers]
        self.tally = self._start(self.places.trainer, words, "tally")

    def stop_training(self) -> None:
        """Save and end both runs."""
        runs = {"train": self.training, "tally": self.tally}
        for process in filter(None, runs.values()):
            process.send_signal(signal.SIGTERM)
        for name, each in runs.items():
            if each is not None:
                self._await_end(name, each)

    def close_down(self) -> list[str]:
        """Send SIGTERM to all programs; return descriptions of the processes that are left."""
        for process in (*self._stations.values(), *self._lent.values()):
            process.send_signal(signal.SIGTERM)
        for host, process in self._stations.items():
            self._await_end(f"station {host}", process)
        for host, process in self._lent.items():
            self._await_end(f"machine {host}", process)
        self.etcd.close()
        deadline = time.monotonic() + _GONE_SECONDS
        while (left := self.left()) and time.monotonic() < deadline:
            time.sleep(_LOOK_SECONDS)
        return left

    def left(self) -> list[str]:
        """Describe the processes that run on the hosts."""
        return [
            f"host {host}: {pid} {words_of(pid)}"
            for host in range(self.places.hosts)
            for pid in self.machines.processes(host)
        ]

    def players(self, role: Role, host: int) -> list[int]:
        """Return the processes with a role on a host."""
        if role == "etcd":
            pid = self.etcd.pid(list(self.places.keepers).index(host))
            return [] if pid is None else [pid]
        there = self.machines.processes(host)
        if role == "head":
            return [pid for pid in there if _HEADS in words_of(pid)]
        return [
            pid
            for pid in there
            if (log := _log_of(pid)).name.startswith(f"{role}-") and TALLY not in log.parts
        ]

    def bytes_passed(self) -> list[dict[str, int]]:
        """Return the bytes that each host has sent so far, by network."""
        return [
            {name: each.sent_bytes for name, each in zip(NETWORKS, self.hosts.traffic_of(host), strict=True)}
            for host in range(self.places.hosts)
        ]

    def _keep_logs(self) -> None:
        """Keep the logs of disks before they are deleted."""
        for host, disk in enumerate(self.disks):
            there = [disk.folder / "etcd" / "etcd.log", *self.station_folder(host).rglob("*.jsonl")]
            for file in [*there, *self.station_folder(host).rglob("*.log")]:
                if file.is_file():
                    kept = self.plan.folder / f"logs-{host}" / file.name
                    kept.parent.mkdir(exist_ok=True)
                    shutil.copyfile(file, kept)

    def acting(self) -> Acting:
        """Return a client that asks servers for their primaries, from the host of the training."""
        namespace = self.hosts.namespace(self.places.trainer)
        return Acting(namespace, self.controllers, self._token.read_text().strip())

    def tls(self, host: int) -> Tls:
        """Return the certificates of a host for etcd."""
        own = self._shown[host]
        return Tls(own.authority, own.certificate, own.key)

    # --- start ---

    def _certificates(self) -> dict[int, Certificate]:
        authority = Authority(self.plan.folder / "certificates")
        for host in range(self.places.hosts):
            self._shown[host] = authority.signed(f"host-{host}", [self.hosts.address(host, ADMINISTRATION)])
        return self._shown

    def _begin(self) -> None:
        self._say("starting the cluster of parameter servers")
        for host in self.places.servers:
            self._stations[host] = self._start(host, self._station_words(host), "station")
        for host in self.places.servers:
            self._await_word(host, "station", "serving on", self._stations[host])
        self._say("starting Ray")
        head = self.places.head
        words = [*_PROGRAM, "worker", "--head", "--cores", "1"]
        self._lent[head] = self._start(head, words, "machine")
        self._await_word(head, "machine", "the head of a cluster", self._lent[head])
        address = f"{self.hosts.address(head)}:{HEAD_PORT}"
        for host in self.places.replicas:
            words = [*_PROGRAM, "worker", "--address", address, "--cores", str(_CORES)]
            self._lent[host] = self._start(host, words, "machine")
        for host in self.places.replicas:
            self._await_word(host, "machine", "joined the cluster", self._lent[host])

    def _station_words(self, host: int) -> list[str]:
        named: Mapping[str, object] = {
            "listen": self.hosts.address(host, ADMINISTRATION),
            "client-address": self.hosts.address(host, UPDATES),
            "replication-address": self.hosts.address(host, REPLICATION),
            "controllers": self.controllers,
            "etcd": ",".join(self.etcd.endpoints),
            "etcd-ca": self._shown[host].authority,
            "etcd-cert": self._shown[host].certificate,
            "etcd-key": self._shown[host].key,
            "servers": self.plan.servers,
            "replication-factor": self.plan.copies,
            "folder": self.station_folder(host),
            "token-file": self._token,
        }
        words = [*_PROGRAM, "cluster", "start"]
        return [*words, *(word for name, each in named.items() for word in (f"--{name}", str(each)))]

    def _start(self, host: int, words: Sequence[str], name: str) -> subprocess.Popen[bytes]:
        return self.machines.start(host, words, self._environ, self._log(host, name))

    def _log(self, host: int, name: str) -> Path:
        return self.plan.folder / f"{name}-{host}.log"

    def _await_word(self, host: int, name: str, word: str, process: subprocess.Popen[bytes]) -> None:
        deadline, log = time.monotonic() + _START_SECONDS, self._log(host, name)
        while word not in log.read_text():
            if process.poll() is not None or time.monotonic() > deadline:
                said = log.read_text().strip().splitlines()[-3:]
                raise MachineError(f"the {name} of host {host} did not start: {' / '.join(said)}")
            time.sleep(_LOOK_SECONDS)

    def _await_end(self, name: str, process: subprocess.Popen[bytes]) -> None:
        try:
            self.ended[name] = process.wait(_END_SECONDS)
        except subprocess.TimeoutExpired:
            self.ended[name] = -signal.SIGKILL
            process.kill()
            process.wait(_END_SECONDS)


def words_of(pid: int) -> str:
    """Return the command line of a process, or "" for one that has exited."""
    try:
        return Path(f"/proc/{pid}/cmdline").read_bytes().replace(b"\0", b" ").decode(errors="replace").strip()
    except OSError:
        return ""


def _log_of(pid: int) -> Path:
    """Return the file that a process prints to: the roles of a run and of a station have one each."""
    with suppress(OSError):
        return Path(f"/proc/{pid}/fd/1").readlink()
    return Path()
