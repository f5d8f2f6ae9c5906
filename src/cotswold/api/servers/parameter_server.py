"""Parameter servers for user-defined training loops, from Python: `serve`.

Knows: a serving thread, checkpoints of served parameters. Does not know: commands, messages, clients'
computations.
"""

from __future__ import annotations

import os
import time
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Literal

from cotswold.api.servers.background import BackgroundService
from cotswold.api.servers.parameter_client import layout_of, secret_of, split_address
from cotswold.errors import UserError

if TYPE_CHECKING:
    from torch import nn

    from cotswold.api.servers.parameter_server_checkpoint import ServerCheckpoint
    from cotswold.host import Token
    from cotswold.optim.server_rules import Rule
    from cotswold.paramserver.core.staleness import Staleness
    from cotswold.replicas.service import ParameterService, ServiceSettings

RuleName = Literal["sgd", "momentum", "adagrad", "deltas"]
OnEvent = Callable[[str, Mapping[str, object]], None]
_PROCEED_SECONDS = 0.1


@dataclass(frozen=True)
class ServedStatus:
    """Status of parameter servers."""

    clients: tuple[str, ...]
    """Names of connected clients."""
    pushes: int
    """Pushes applied since the start of this folder."""
    pushes_per_second: float
    """Mean over the last seconds."""
    samples: int
    """Samples of pushes that all servers have, as reported by clients.

    The number is updated a few times per second and may lag behind `pushes`.
    """
    torn: int
    """Samples of pushes that only some servers have."""
    staleness: float
    """Mean staleness of updates: other updates between a pull and its push."""
    staleness_max: int
    refused: Mapping[str, int]
    """Rejected pushes, clients without the token (`strangers`) and malformed messages, by reason."""


def serve(
    model: nn.Module,
    *,
    servers: int = 1,
    update_rule: RuleName = "sgd",
    learning_rate: float = 0.1,
    momentum: float = 0.9,
    listen: str = "127.0.0.1:0",
    token: str | Path | Token | None = None,
    save: str | Path | None = None,
    resume: bool = False,
    checkpoint_minutes: float = 5.0,
    max_staleness: int | None = None,
    staleness_policy: Literal["drop", "scale"] = "drop",
    ports: tuple[int, int] | None = None,
    encrypt: bool = True,
    shard_bytes: int = 1 << 20,
    on_event: OnEvent = lambda kind, more: None,
) -> ServedParameters:
    """Serve the parameters of a module to loops that use `cotswold.connect`.

    Use the result in a ``with`` statement; at its end the module contains the trained parameters.

    Args:
        model: The module, with parameters of one floating-point dtype.
        servers: Number of server processes.
        update_rule: Update rule: steps along gradients (``"sgd"``, ``"momentum"``, ``"adagrad"``), or the sum
            of ``"deltas"``.
        learning_rate: Learning rate of the gradient rules.
        momentum: Momentum of rule ``"momentum"``.
        listen: Address of this machine at which clients reach the servers; port 0 selects a free one.
        token: A secret, or the path of a file for it. [COTSWOLD_TOKEN, else a new secret]
        save: Folder for checkpoints. [none]
        resume: Resume from the newest checkpoint in ``save``.
        checkpoint_minutes: Minutes between checkpoints; one more is written at the end.
        max_staleness: Maximum number of pushes between a pull and its push. [no limit]
        staleness_policy: "drop" drops pushes beyond ``max_staleness``; "scale" scales them down.
        ports: First and last port of the servers. [any]
        encrypt: Encrypt messages between hosts.
        shard_bytes: Maximum size of a shard, bytes.
        on_event: Called with the kind and fields of each event.

    Returns:
        The running service.

    Raises:
        UserError: if an argument is invalid.
        RunError: if ``save`` has checkpoints without ``resume``, or none with ``resume``.
        CheckpointError: if the checkpoint is damaged or of another module.
        MachineError: if processes cannot be started.
    """
    from cotswold.api.servers.parameter_server_checkpoint import ServerCheckpoint
    from cotswold.replicas.service import ServiceSettings
    from cotswold.transport.host_names import local_address_of

    host, port = split_address(listen)
    if host in ("0.0.0.0", "::", "*"):
        raise UserError(f"listen={listen!r}: give a single address of this machine at which clients reach it")
    chosen = rule_of(update_rule, momentum)
    settings = ServiceSettings(
        local_address_of(host),
        port,
        servers,
        chosen,
        learning_rate,
        staleness_of(max_staleness, staleness_policy),
        shard_bytes,
        ports,
        encrypt,
    )
    folder = None if save is None else Path(save)
    kept = ServerCheckpoint.open(folder, model, chosen, resume=resume)
    return ServedParameters(model, settings, own_secret(token), kept, 60 * checkpoint_minutes, on_event)


class ServedParameters(BackgroundService):
    """Parameters served by a thread and its processes.

    At the end, the last checkpoint and the module contain the trained parameters.
    """

    def __init__(
        self,
        model: nn.Module,
        settings: ServiceSettings,
        token: Token,
        saved: ServerCheckpoint,
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
        """Process ids of the servers, by name."""
        return self._processes

    @property
    def status(self) -> ServedStatus:
        """The status of the last fraction of a second. Raises MachineError if a server is lost."""
        self._raise_error()
        assert self._status is not None, "set before the service is ready"
        return self._status

    # --- the thread that serves ---

    def _serve(self) -> None:
        from cotswold.replicas.service import open_service
        from cotswold.shards.runtime.work import TensorSlot

        layout = [TensorSlot(*each) for each in layout_of(self._model)]
        with open_service(
            self._settings,
            layout,
            self._saved.vectors,
            token=self._token,
            before=self._saved.counts,
            logs=self._saved.logs,
            on_event=self._on_event,
        ) as serving:
            self._address, self._processes = serving.address, serving.servers
            self._proceed(serving)

    def _proceed(self, serving: ParameterService) -> None:
        watch = _StatusWatch(serving, self._saved.pushes)
        self._status = watch.request_status()
        self._ready.set()
        saved_at = time.monotonic()
        while not self._stop.is_set():
            serving.proceed(_PROCEED_SECONDS)
            self._status = watch.request_status()
            if time.monotonic() - saved_at >= self._save_seconds:
                vectors, account = serving.checkpoint()
                self._saved.save(vectors, self._status.pushes, account)
                saved_at = time.monotonic()
        serving.finish()
        self._status = watch.request_status()
        vectors = serving.read()
        self._saved.fill(self._model, vectors[serving.vectors[0]])
        self._saved.save(vectors, self._status.pushes, serving.account)


class _StatusWatch:
    """Counts and rates of the servers."""

    def __init__(self, serving: ParameterService, before: int) -> None:
        self._serving, self._before = serving, before
        self._marks: list[tuple[float, int]] = []

    def request_status(self) -> ServedStatus:
        """Request the status from the servers."""
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
    """Return the update rule ``name``. Raises UserError for an unknown rule or invalid momentum."""
    from cotswold.optim.server_rules import Adagrad, AddUpdate, Momentum, Sgd

    rules: dict[str, Callable[[], Rule]] = {
        "sgd": Sgd,
        "momentum": lambda: Momentum(momentum),
        "adagrad": Adagrad,
        "deltas": AddUpdate,
    }
    if name not in rules:
        raise UserError(f"unknown rule {name!r:.40}; choose from {', '.join(rules)}")
    try:
        return rules[name]()
    except ValueError as error:
        raise UserError(str(error)) from error


def staleness_of(bound: int | None, policy: Literal["drop", "scale"]) -> Staleness:
    """Return the bound of staleness and its policy. Raises UserError for invalid values."""
    from cotswold.paramserver.core.staleness import Staleness

    try:
        return Staleness() if bound is None else Staleness(policy, bound)
    except ValueError as error:
        raise UserError(str(error)) from error


def own_secret(token: str | Path | Token | None) -> Token:
    """Return the given secret, else that of the environment, else a new one; a missing file is created."""
    from cotswold.host import Token, read_token, token_of

    if isinstance(token, Path):
        return read_token(token)
    if token is None:
        return token_of(os.environ) or Token.new()
    return secret_of(token)


def build_module(factory: str) -> nn.Module:
    """Return the module made by the function ``package.module:function``. Raises UserError for other
    results.
    """
    from torch import nn

    from cotswold.training.jobs.factories import imported

    made = imported(factory)()
    if not isinstance(made, nn.Module):
        raise UserError(
            f"{factory} returns a {type(made).__name__}; give a function that returns a torch.nn.Module"
        )
    return made
