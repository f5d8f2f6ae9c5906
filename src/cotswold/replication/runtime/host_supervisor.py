"""The supervisor of one host in a cluster of parameter servers that outlives runs.

Knows: the processes of this host, when to restart each, where to report. Does not know: buckets
(`replication.controller`), runs.

    event                                             action
    it starts                                         start a controller, if configured, and the servers with
                                                      known disks
    more servers are configured                       ask the leader which names are taken (`server_names`)
    no leader replies                                 report it (`leader_probe`)
    a server exits                                    report to all controllers at once; start the next server
                                                      with its disk, with backoff
    controllers report that a drain is complete       stop the server and start none with its disk
    the drain was ended                               start the next server with its disk
    the controller exits                              restart it under its name: its metadata are kept
    a request to stop                                 stop all processes; disks and other hosts keep data

It keeps no state. If it is killed, its processes die with it, and the next one starts from the
disks.
"""

from __future__ import annotations

import ipaddress
import re
import secrets
import time
from collections.abc import Callable, Mapping, Sequence
from contextlib import ExitStack, closing
from dataclasses import asdict, dataclass, field
from pathlib import Path
from types import TracebackType
from typing import Self

from cotswold.errors import CotswoldError, MachineError, UserError
from cotswold.files import DirectoryLock
from cotswold.host import Call, ForkServer, Processes, Token
from cotswold.host.keyring import KeyringFile
from cotswold.host.token import VARIABLE
from cotswold.processes.endpoint_settings import EndpointSettings
from cotswold.processes.process_group import ProcessGroup
from cotswold.processes.programs import PROGRAMS
from cotswold.processes.restart_backoff import RestartBackoff
from cotswold.replication.client.standalone_cluster import (
    PORT,
    controllers_at,
    name_at,
    place_of,
    places_by_name,
)
from cotswold.replication.controller.drain import UNDER_WAY
from cotswold.replication.controller.settings import Control
from cotswold.replication.metadata import Place
from cotswold.replication.replica.saved_bucket import disk_of
from cotswold.replication.replica.settings import Copying
from cotswold.replication.runtime.leader_probe import Reaching
from cotswold.replication.runtime.server_names import Names
from cotswold.transport import Endpoint, Lost, MultiEndpoint, Ready
from cotswold.transport.address import is_taken
from cotswold.transport.token_rotation import TokenRotation
from cotswold.wire import (
    COORDINATOR,
    Describe,
    Described,
    Drain,
    Draining,
    Ended,
    Look,
    Looked,
    NotLeading,
    Send,
)
from cotswold.wire.lifecycle import FINISH_SECONDS, Finish, Happened, Serving
from cotswold.wire.messenger import Calling, Letter, Post
from cotswold.words import counted

OnEvent = Callable[[str, str, str], None]
"""Callback for events: kind, name of the process, sentence."""
PRELOADED = ("cotswold.replication.runtime.server_process", "cotswold.replication.runtime.controller_process")
_NO_WORD = re.compile(r"[^A-Za-z0-9_-]")
_TICK_SECONDS = 0.1
_END_SECONDS = FINISH_SECONDS + 2.0
"""Seconds from the request to stop a process until it is killed."""
_ASK_SECONDS = 0.3
_STILL_SECONDS = 3.0
"""Seconds without progress after which a drain is abandoned: no server can take the replicas."""
_TELLING_SECONDS = 60.0
"""Seconds for which exits are reported to controllers; later leaders notice the silence."""
STATE = "state.sqlite"
DISKS = "servers"
"""Names in a host's folder: the controllers' metadata, if in a file, and the servers' disks."""


@dataclass(frozen=True)
class StationSettings:
    """Settings of one host. Raises UserError if they are inconsistent."""

    at: str
    """Address of this host for controllers and servers of other hosts."""
    controllers: tuple[str, ...]
    """HOST:PORT of all controllers of the cluster; one runs here if ``at`` is one of these hosts."""
    servers: int
    folder: Path
    """Folder of this host: the servers' disks, logs, and the metadata if in a file."""
    place: Place | None = None
    """Location of the controllers' metadata [a file in the folder]."""
    name: str = ""
    """Name of this host in the names of its servers [``at``]."""
    roads: Mapping[str, str] = field(default_factory=dict)
    """Addresses of this host by network (`replication.runtime.networks`)."""
    control: Control = Control()  # noqa: RUF009  # it is frozen
    copying: Copying = Copying()  # noqa: RUF009
    flush_seconds: float | None = 1.0
    """Seconds until a change is on disk; None for no disks."""
    encrypt: bool = True
    ports: tuple[int, int] | None = None
    has_controller: bool = True
    """False if only servers are added here, without a controller."""

    def __post_init__(self) -> None:
        object.__setattr__(self, "at", _without_brackets(self.at))
        roads = {road: _without_brackets(address) for road, address in self.roads.items()}
        object.__setattr__(self, "roads", roads)
        if self.servers < 0 or (self.servers == 0 and self.own_controller is None):
            raise UserError(f"servers={self.servers} and no controller runs on {self.at}: nothing to do")
        self._check_addresses()
        if self.flush_seconds is not None and not self.flush_seconds > 0:
            raise UserError(f"flush_seconds must be more than 0, got {self.flush_seconds}")
        if self.place is None and len(self.controllers) > 1 and self.own_controller is not None:
            raise UserError(
                f"{len(self.controllers)} controllers need shared metadata; name an etcd: "
                "--etcd HOST:PORT,HOST:PORT,HOST:PORT"
            )

    def _check_addresses(self) -> None:
        for address in (self.at, *self.roads.values()):
            if _is_every(address):
                raise UserError(
                    f"{address} is not an address of this host for others; name one that it has on their "
                    "network, such as 10.0.0.1"
                )
        known = (port for host, port in map(place_of, self.controllers) if host == self.at)
        first, last = self.ports or (0, 0)
        if (taken := next((port for port in known if first <= port <= last), None)) is not None:
            raise UserError(
                f"--ports {first}-{last} includes the port {taken} of this host's controller, which a server "
                "could occupy; name a range without it"
            )

    @property
    def own_controller(self) -> tuple[str, int] | None:
        """Host and port of this host's controller."""
        if not self.has_controller:
            return None
        return next((each for each in map(place_of, self.controllers) if each[0] == self.at), None)

    @property
    def owns_state(self) -> bool:
        """True if the metadata are in this host's folder."""
        return self.place is None and self.own_controller is not None

    @property
    def prefix(self) -> str:
        """Prefix of the names of this host's servers."""
        return f"server-{self.name or _NO_WORD.sub('-', self.at)}"


def _recovered(settings: StationSettings) -> str:
    """Rebuild lost metadata, and return what was done, in words; empty if nothing was."""
    disks = settings.folder / DISKS
    if not settings.owns_state or settings.flush_seconds is None or not disks.is_dir():
        return ""
    from cotswold.replication.disk_recovery import recover_alone

    try:
        return recover_alone(settings.folder / STATE, disks)
    except CotswoldError as error:
        return f"cannot tell whether the controllers' state is lost; it is left as it is: {error}"


def _require_state(settings: StationSettings) -> None:
    """Raise MachineError if the metadata were lost while in use: the next controller would begin another
    cluster."""
    if not settings.owns_state or settings.flush_seconds is None:
        return
    from cotswold.replication.disk_recovery import is_sound

    state = settings.folder / STATE
    try:
        is_there = is_sound(state)
    except CotswoldError:  # the file exists; its next user reports why it fails
        is_there = True
    if not is_there:
        raise MachineError(
            f"{state} was removed or damaged while it was in use; start this host again: it makes the state "
            "again from its servers' disks"
        )


def _without_brackets(address: str) -> str:
    """Return an IPv6 address without brackets."""
    inner = address.removeprefix("[").removesuffix("]")
    return inner if address == f"[{inner}]" else address


def _is_every(address: str) -> bool:
    """True if the address stands for all addresses of a machine."""
    try:
        return ipaddress.ip_address(address).is_unspecified
    except ValueError:  # a host name
        return False


@dataclass(frozen=True)
class Drained:
    """Progress of other servers in taking over the replicas of a host."""

    left: int
    """Number of replicas left."""
    unknown: tuple[str, ...] = ()
    """Servers about which no controller has replied."""

    @classmethod
    def of(cls, heard: Mapping[str, Draining | None]) -> Drained:
        """Return the progress from the last reply about each server."""
        unknown = tuple(name for name, said in heard.items() if said is None)
        return cls(sum(said.left for said in heard.values() if said is not None), unknown)

    @property
    def is_more(self) -> bool:
        """True if replicas are left, or may be."""
        return self.left > 0 or bool(self.unknown)


class Station:
    """Supervisor of this host; use it in a ``with`` statement, or call `close`."""

    def __init__(
        self,
        settings: StationSettings,
        token: Token | KeyringFile,
        on_event: OnEvent = lambda kind, name, sentence: None,
        processes: Processes | None = None,
    ) -> None:
        self._settings, self._given, self._on_event = settings, token, on_event
        self._tokens = TokenRotation(token)
        self._held = ExitStack()
        with ExitStack() as opened:
            self._logs = settings.folder / "logs"
            self._logs.mkdir(parents=True, exist_ok=True)
            opened.enter_context(DirectoryLock(settings.folder, "cluster host"))
            self._refuse_taken_port()
            own = processes or opened.enter_context(closing(ForkServer(PRELOADED)))
            reach = EndpointSettings(encrypt=settings.encrypt, ports=settings.ports, at=settings.at)
            self._reach = reach
            here = Endpoint(self._tokens.ring, COORDINATOR)
            own_name = f"station-{secrets.token_hex(3)}/{settings.prefix.removeprefix('server-')}"
            out = Endpoint(
                *(self._tokens.ring, own_name),
                host=settings.at,
                ports=reach.one_of_ports,
                encrypt=settings.encrypt,
            )
            out.keep_answers()
            roads = MultiEndpoint({"here": here, "out": out})
            opened.callback(roads.close, 0.2)
            self._post, self._here, self._out = Post(roads), here, out
            self._calling = Calling(lambda address: out)
            self._controllers = controllers_at(settings.controllers)
            self._staff = ProcessGroup(own, here, _no_worker, restarts=False)
            opened.callback(self._staff.close)
            self._lives: dict[str, RestartBackoff] = {}
            self._names: dict[str, str] = {}
            """Name of each running process: the disk, or the controller, that it stands for."""
            self._keys: dict[str, str] = {}
            """Secrets of servers that run, or whose exit is still being reported."""
            self._served: set[str] = set()
            """Names of processes that have begun to serve."""
            self._untold: dict[str, tuple[str, float]] = {}
            """Exited servers that are still being reported, each with the reason and the time."""
            self._told = 0.0
            if said := _recovered(settings):
                self._on_event("state", settings.prefix, said)
            is_new = settings.owns_state and not (settings.folder / STATE).exists()
            self._disks = Names(settings.folder, settings.prefix, settings.servers, is_new=is_new)
            self._refuse_strange_disks()
            self._begin()
            etcd = () if settings.place is None else settings.place.etcd
            self._reaching = Reaching(places_by_name(settings.controllers), etcd, time.monotonic())
            self._held = opened.pop_all()

    @property
    def processes(self) -> Mapping[str, int]:
        """Running processes and their process numbers."""
        return {name: self._staff.pid_of(name) for name in self._names if self._staff.is_watched(name)}

    def step(self, seconds: float = _TICK_SECONDS) -> None:
        """Process events for up to ``seconds``, and do what is due."""
        self._hear(seconds)

    def _hear(self, seconds: float) -> object:
        """Process one event; return a message that is not handled here."""
        for sentence in self._tokens.tick((self._here, self._out), time.monotonic()):
            self._on_event("token", self._settings.prefix, sentence)
        self._calling.meet(self._controllers)
        event = self._post.receive(seconds)
        match event:
            case Ready(descriptor):
                self._ended(descriptor)
            case Letter(sender, Happened(kind, name, sentence)) if sender in self._names:
                self._happened(kind, name, sentence)
            case Letter(sender, Serving(name, _)) if sender == name and name in self._names:
                self._served.add(name)
                self._on_event("serving", name, f"{name} serves, process {self._staff.pid_of(name)}")
            case Letter(sender, NotLeading()) if sender in self._controllers:
                self._reaching.follows(sender)
            case Lost():
                self._reaching.lost(event)
            case Letter(sender, Described("") | Looked() as answer) if sender in self._controllers:
                self._reached(answer)
            case _:
                pass
        self._start_due(time.monotonic())
        self._seek(time.monotonic())
        return event.message if isinstance(event, Letter) else None

    def _happened(self, kind: str, name: str, sentence: str) -> None:
        """Forward an event of a process; events of a disk do not name their server."""
        self._on_event(kind, name, f"{name}: {sentence}" if kind == "disk" else sentence)

    def drain(self, seconds: float) -> Drained:
        """Have servers of other hosts take over the replicas of this host, while its servers keep running.
        Stop after ``seconds``, or when there is no progress."""
        heard: dict[str, Draining | None] = {
            name: None for name, life in self._names.items() if life in self._disks.disks
        }
        deadline, moved, asked = time.monotonic() + seconds, time.monotonic(), float("-inf")
        while (drained := Drained.of(heard)).is_more and (now := time.monotonic()) < deadline:
            if now - moved > _STILL_SECONDS:
                break
            if now - asked > _ASK_SECONDS:
                asked = now
                more = [name for name, said in heard.items() if said is None or said.left]
                wanted = [Drain(name, deadline - now) for name in more]
                self._post.deliver([Send(to, each) for each in wanted for to in self._controllers])
            said = self._hear(_TICK_SECONDS)
            if not isinstance(said, Draining) or said.server not in heard:
                continue
            before, heard[said.server] = heard[said.server], said
            if said != before or UNDER_WAY in said.why:  # a copy may take long
                moved = time.monotonic()
            if before is None or said.left != before.left:
                self._on_event("draining", said.server, f"{said.server}: {counted(said.left, 'copy')} left")
        return drained

    def close(self) -> None:
        """Stop all processes; servers first finish writing to their disks."""
        told, deadline = set[str](), time.monotonic() + _END_SECONDS
        while (serving := self._served & self.processes.keys()) and time.monotonic() < deadline:
            told |= {name for name in serving - told if self._post.send(name, Finish())}
            match self._post.receive(0.05):
                case Ready(descriptor):
                    self._staff.ended(descriptor, time.monotonic())
                case Letter(sender, Happened(kind, name, sentence)) if sender in self._names:
                    self._happened(kind, name, sentence)
                case _:
                    pass
        for name in serving:
            self._on_event("killed", name, f"{name} has not stopped for {_END_SECONDS:g} s and is killed")
        self._held.close()

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.close()

    # --- processes of this host ---

    def _refuse_taken_port(self) -> None:
        """Raise UserError if the controller's port is taken, before a server could join the wrong cluster."""
        if self._settings.own_controller is None:
            return
        host, port = self._settings.own_controller
        if is_taken(host, port):
            raise UserError(
                f"port {port} of {host} is taken, perhaps by the controller of a cluster: add servers to "
                f"it with `cotswold cluster add --controllers {host}:{port}`, or name another port, "
                f"the same on all hosts: --controllers {host}:{port + 2}"
            )

    def _refuse_strange_disks(self) -> None:
        folder = self._settings.folder / DISKS
        if self._settings.flush_seconds is None or not folder.is_dir():
            return
        if strange := self._disks.strange(each.name for each in folder.iterdir() if each.is_dir()):
            raise UserError(
                f"{folder} has {', '.join(strange)}, which is the disk of no {self._settings.prefix}-NUMBER: "
                "give the --listen and --name of the host that had these disks, or another --folder"
            )

    def _begin(self) -> None:
        now, settings = time.monotonic(), self._settings
        self._begin_servers(self._disks.disks)
        if settings.own_controller is not None:
            name = name_at(*settings.own_controller)
            self._lives[name] = RestartBackoff(now)
            self._start(name)

    def _begin_servers(self, disks: Sequence[str]) -> None:
        for disk in disks:
            self._lives[disk] = RestartBackoff(time.monotonic())
            if disk not in self._disks.drained:
                self._start(disk)

    def _seek(self, now: float) -> None:
        """Probe the leading controller now and then; report if none replies."""
        if self._reaching.asks(now):
            question = Look() if self._disks.lacking else Describe("")
            self._post.deliver([Send(to, question) for to in self._controllers])
        if said := self._reaching.due(now):
            self._on_event("waiting", self._settings.prefix, said)

    def _reached(self, answer: Described | Looked) -> None:
        """Process a reply of the leader; it lists the names that are taken."""
        if said := self._reaching.answered(time.monotonic()):
            self._on_event("reached", self._settings.prefix, said)
        if isinstance(answer, Looked) and self._disks.lacking:
            new = self._disks.choose(each.name for each in answer.servers)
            self._on_event("begins", self._settings.prefix, f"starting {', '.join(new)}")
            self._begin_servers(new)
        if isinstance(answer, Described):
            self._keep_drained(answer.drained)

    def _keep_drained(self, servers: Sequence[str]) -> None:
        """Stop servers whose drain is complete, and start those whose drain was ended."""
        before, drained = self._disks.drained, {disk_of(each) for each in servers} & {*self._disks.disks}
        try:
            self._disks.drain(drained)
        except OSError as error:  # a full disk: retry later, and start or stop no server before
            self._on_event(
                "failed", self._settings.prefix, f"cannot record which servers are drained: {error}"
            )
            return
        for disk in sorted(before - drained - {*self._names.values()}):
            self._lives[disk].due = time.monotonic()
        for name in [name for name, disk in self._names.items() if disk in drained]:
            self._post.send(name, Finish())  # repeated with each reply, as a message may be lost
            if disk_of(name) not in before:
                back = f"`cotswold cluster drain {disk_of(name)} --back`"
                said = f"{name} was drained and has no copies: its process ends, until {back} starts another"
                self._on_event("drained", name, said)

    def _start(self, life: str) -> None:
        is_server, name = life in self._disks.disks, life
        try:
            name = self._disks.next_of(life) if is_server else life
            self._staff.start(self._server(name) if is_server else self._controller(name))
        except (CotswoldError, OSError) as error:  # such as a disk without space for the name
            self._on_event("failed", name, f"{name} cannot be started: {error}")
            self._lives[life].failed(time.monotonic())
            return
        self._lives[life].started(time.monotonic())
        self._names[name] = life

    def _ended(self, descriptor: int) -> None:
        now = time.monotonic()
        ended = self._staff.ended(descriptor, now)
        if ended is None:
            return
        life = self._names.pop(ended.name)
        if life not in self._disks.disks and ended.name in self._served:
            _require_state(self._settings)
        if life in self._disks.disks:
            self._untold[ended.name] = ended.why, now
            self._tell(now)
        if life not in self._disks.disks and ended.name not in self._served:
            raise MachineError(
                f"{ended.name} {ended.why}; perhaps another controller listens there: name another port, "
                f"the same on all hosts: --controllers {self._settings.at}:{PORT + 1}"
            )
        if life in self._disks.disks:  # the next one has another name
            self._served.discard(ended.name)
        self._on_event("ended", ended.name, f"{ended.name} {ended.why}")
        self._lives[life].ended(now)

    def _start_due(self, now: float) -> None:
        if self._untold and now - self._told > 1.0:
            self._tell(now)
        for life, known in self._lives.items():
            if known.is_due(now) and life not in self._disks.drained:
                self._start(life)

    def _tell(self, now: float) -> None:
        """Report exits to all controllers, repeatedly, as a connection may lose a message."""
        self._told = now
        self._untold = {name: told for name, told in self._untold.items() if now - told[1] < _TELLING_SECONDS}
        self._keys = {name: key for name, key in self._keys.items() if name in {*self._names, *self._untold}}
        ended = [Ended(name, why, self._keys.get(name, "")) for name, (why, _) in self._untold.items()]
        sends = [Send(to, each) for each in ended for to in self._controllers]
        self._post.deliver(sends)

    # --- arguments of processes ---

    def _controller(self, name: str) -> Call:
        settings = self._settings
        assert settings.own_controller is not None, "there is one here"
        place = settings.place or Place(sqlite=str((settings.folder / STATE).absolute()))
        told = {
            "state": asdict(place),
            "control": asdict(settings.control),
            "port": settings.own_controller[1],
        }
        return self._call(name, "controller", told)

    def _server(self, name: str) -> Call:
        settings = self._settings
        self._keys[name] = secrets.token_hex(16)
        told: dict[str, object] = {
            "key": self._keys[name],
            "host": settings.name or settings.at,
            "controllers": self._controllers,
            "copying": asdict(settings.copying),
            "roads": dict(settings.roads),
        }
        if settings.flush_seconds is not None:
            disk = (settings.folder / DISKS / disk_of(name)).absolute()
            told |= {"disk": str(disk), "flush_seconds": settings.flush_seconds}
        return self._call(name, "keeper", told)

    def _call(self, name: str, role: str, arguments: Mapping[str, object]) -> Call:
        told: dict[str, object] = {
            "name": name,
            "coordinator": self._here.address,
            "reach": self._reach.as_dict(),
            **arguments,
        }
        log, environ = self._logs / f"{disk_of(name)}.log", {}
        if isinstance(self._given, Token):
            environ[VARIABLE] = self._given.text
        else:
            told["tokens"] = str(self._given.path.absolute())
        return Call(name, PROGRAMS[role], told, environ, log)


def _no_worker(name: str) -> Call:
    raise AssertionError(f"{name}: a host supervisor starts no workers")
