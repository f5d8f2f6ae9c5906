"""Parameter servers for anybody's own loops, from Python: `serve`.

Knows: a thread that serves, checkpoints of what is served. Does not know: commands, messages, what clients
compute.
"""

from __future__ import annotations

import os
import time
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Literal

from cotswold.api.servers.background import InThread
from cotswold.api.servers.parameter_client import layout_of, secret_of, split_address
from cotswold.errors import UserError

if TYPE_CHECKING:
    from torch import nn

    from cotswold.api.servers.parameter_server_checkpoint import Saved
    from cotswold.host import Token
    from cotswold.optim.server_rules import Rule
    from cotswold.paramserver.core.staleness import Staleness
    from cotswold.replicas.service import Serving, ServingSettings

RuleName = Literal["sgd", "momentum", "adagrad", "deltas"]
OnEvent = Callable[[str, Mapping[str, object]], None]
_PROCEED_SECONDS = 0.1


@dataclass(frozen=True)
class ServedStatus:
    """Where things are."""

    clients: tuple[str, ...]
    """Who is connected, by name."""
    pushes: int
    """Applied since this folder was begun."""
    pushes_per_second: float
    """Over the last seconds."""
    samples: int
    """Counted: clients said that pushes which all servers have were computed from so many, as servers
    said when they were asked last, some times a second: this may lag behind `pushes`."""
    torn: int
    """Of pushes that some servers have, and others do not."""
    staleness: float
    """Mean over updates: how many of others came between a pull and its push."""
    staleness_most: int
    refused: Mapping[str, int]
    """Pushes, callers without the token (`strangers`) and bytes that are no message, by reason."""


def serve(
    model: nn.Module,
    *,
    servers: int = 1,
    rule: RuleName = "sgd",
    rate: float = 0.1,
    momentum: float = 0.9,
    listen: str = "127.0.0.1:0",
    token: str | Path | Token | None = None,
    save: str | Path | None = None,
    resume: bool = False,
    checkpoint_minutes: float = 5.0,
    staleness: int | None = None,
    stale: Literal["drop", "scale"] = "drop",
    ports: tuple[int, int] | None = None,
    encrypt: bool = True,
    shard_bytes: int = 1 << 20,
    on_event: OnEvent = lambda kind, more: None,
) -> Served:
    """Serve the parameters of a module to loops that `cotswold.connect` connects; use it in a ``with``
    statement, at whose end the module has what was learnt.

    ``servers`` processes keep the parameters and do with each push what ``rule`` says: steps along gradients
    (``sgd``, ``momentum``, ``adagrad``) at this ``rate``, or the sum of ``deltas``. ``listen`` is an address
    of this machine at which clients reach it, port 0 for any; ``token`` a secret, or a file for it; without,
    COTSWOLD_TOKEN or a new one. Checkpoints go to ``save``, every so many minutes and at the end, and
    ``resume`` goes on from the newest there. A push with more than ``staleness`` pushes between its pull and
    itself is dropped, or scaled down (``stale``). ``ports``: the first and the last of those of the servers.
    Raises UserError for what cannot be, MachineError where processes cannot be started.
    """
    from cotswold.api.servers.parameter_server_checkpoint import Saved
    from cotswold.replicas.service import ServingSettings
    from cotswold.transport.host_names import own_address_of

    host, port = split_address(listen)
    if host in ("0.0.0.0", "::", "*"):
        raise UserError(f"listen={listen!r}: write one address of this machine, at which clients reach it")
    chosen = rule_of(rule, momentum)
    settings = ServingSettings(
        own_address_of(host),
        port,
        servers,
        chosen,
        rate,
        staleness_of(staleness, stale),
        shard_bytes,
        ports,
        encrypt,
    )
    folder = None if save is None else Path(save)
    kept = Saved.opened(folder, model, chosen, resume=resume)
    return Served(model, settings, own_secret(token), kept, 60 * checkpoint_minutes, on_event)


class Served(InThread):
    """Parameters that are served by a thread and processes of its own; at their end the last checkpoint, and
    the module, have what was learnt."""

    def __init__(
        self,
        model: nn.Module,
        settings: ServingSettings,
        token: Token,
        saved: Saved,
        save_seconds: float,
        on_event: OnEvent,
    ) -> None:
        self._model, self._settings, self._token = model, settings, token
        self._saved, self._save_seconds, self._on_event = saved, save_seconds, on_event
        self._address = ""
        self._processes: Mapping[str, int] = {}
        self._status: ServedStatus | None = None
        super().__init__("cotswold-serving")
        self._begin()

    @property
    def address(self) -> str:
        """``HOST:PORT``, for `connect`."""
        return self._address

    @property
    def token(self) -> str:
        """The secret, for `connect`."""
        return self._token.text

    @property
    def processes(self) -> Mapping[str, int]:
        """The servers by name, and the numbers of their processes."""
        return self._processes

    @property
    def status(self) -> ServedStatus:
        """Where things were some moments ago; raises MachineError where a server is gone."""
        self._raise_error()
        assert self._status is not None, "it is taken before anybody is told"
        return self._status

    # --- the thread that serves ---

    def _serve(self) -> None:
        from cotswold.replicas.service import open_serving
        from cotswold.shards.runtime.work import Slot

        layout = [Slot(*each) for each in layout_of(self._model)]
        with open_serving(
            self._settings,
            layout,
            self._saved.vectors,
            token=self._token,
            before=self._saved.account,
            logs=self._saved.logs,
            on_event=self._on_event,
        ) as serving:
            self._address, self._processes = serving.address, serving.servers
            self._proceed(serving)

    def _proceed(self, serving: Serving) -> None:
        watch = _Watch(serving, self._saved.pushes)
        self._status = watch.look()
        self._ready.set()
        saved_at = time.monotonic()
        while not self._stop.is_set():
            serving.proceed(_PROCEED_SECONDS)
            self._status = watch.look()
            if time.monotonic() - saved_at >= self._save_seconds:
                vectors, account = serving.checkpoint()
                self._saved.save(vectors, self._status.pushes, account)
                saved_at = time.monotonic()
        serving.finish()
        self._status = watch.look()
        vectors = serving.read()
        self._saved.fill(self._model, vectors[serving.vectors[0]])
        self._saved.save(vectors, self._status.pushes, serving.account)


class _Watch:
    """What servers have done, and how fast."""

    def __init__(self, serving: Serving, before: int) -> None:
        self._serving, self._before = serving, before
        self._marks: list[tuple[float, int]] = []

    def look(self) -> ServedStatus:
        """Ask the servers."""
        self._serving.count()
        now, status = time.monotonic(), self._serving.status()
        updates = sum(each.updates for each in status.servers)
        pushes = updates // self._serving.shards
        self._marks = [each for each in self._marks if now - each[0] < 5.0] + [(now, pushes)]
        since, first = self._marks[0]
        refused = dict(status.refused)
        for each in status.servers:
            for reason, count in each.refused:
                refused[reason] = refused.get(reason, 0) + count
        return ServedStatus(
            status.clients,
            self._before + pushes,
            (pushes - first) / max(now - since, 1e-9),
            status.account.counted,
            status.account.torn,
            sum(each.staleness * each.updates for each in status.servers) / max(1, updates),
            max((each.staleness_most for each in status.servers), default=0),
            {reason: count for reason, count in refused.items() if count},
        )


def rule_of(name: RuleName, momentum: float) -> Rule:
    """What servers do with pushes; raises UserError for no such."""
    from cotswold.optim.server_rules import Adagrad, Deltas, Momentum, Sgd

    rules: dict[str, Callable[[], Rule]] = {
        "sgd": Sgd,
        "momentum": lambda: Momentum(momentum),
        "adagrad": Adagrad,
        "deltas": Deltas,
    }
    if name not in rules:
        raise UserError(f"there is no rule {name!r:.40}; there are {', '.join(rules)}")
    try:
        return rules[name]()
    except ValueError as error:
        raise UserError(str(error)) from error


def staleness_of(bound: int | None, policy: Literal["drop", "scale"]) -> Staleness:
    """The bound, and what is done beyond it; raises UserError for what cannot be."""
    from cotswold.paramserver.core.staleness import Staleness

    try:
        return Staleness() if bound is None else Staleness(policy, bound)
    except ValueError as error:
        raise UserError(str(error)) from error


def own_secret(token: str | Path | Token | None) -> Token:
    """The secret that is given, or of the environment, or a new one; a file that is not there is made."""
    from cotswold.host import Token, token_in, token_of

    if isinstance(token, Path):
        return token_in(token)
    if token is None:
        return token_of(os.environ) or Token.new()
    return secret_of(token)


def made_by(factory: str) -> nn.Module:
    """The module that the function ``package.module:function`` makes; raises UserError for anything else."""
    from torch import nn

    from cotswold.training.jobs.factories import imported

    made = imported(factory)()
    if not isinstance(made, nn.Module):
        raise UserError(
            f"{factory} makes a {type(made).__name__}; name a function that returns a torch.nn.Module"
        )
    return made
