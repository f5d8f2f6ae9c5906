"""Parameter servers from anybody's own loop: `connect`, which is `cotswold.connect` as well.

Knows: modules, which of their numbers are pulled and pushed. Does not know: messages, who serves.

`cotswold.server` itself is pure and imports nothing from above; it hands this name on without importing it
(`server/__init__.py`).
"""

from __future__ import annotations

import logging
import os
import weakref
from pathlib import Path
from types import TracebackType
from typing import TYPE_CHECKING, Self

from cotswold.api.arguments import check_truth, whole
from cotswold.errors import UserError

if TYPE_CHECKING:
    from torch import Tensor, nn

    from cotswold.host import Token
    from cotswold.replicas.client import Client, Pushed


LOG = logging.getLogger("cotswold")
_SAMPLES_MOST = 1 << 32
"""Of a push, so that the account of any number of pushes stays within 64 bits."""


def connect(
    address: str,
    token: str | Path | Token | None = None,
    *,
    encrypt: bool = True,
    ports: tuple[int, int] | None = None,
) -> Connection:
    """A connection to the parameter servers at ``address`` (``HOST:PORT``), which `cotswold.serve` or
    `cotswold serve` has started.

    ``token`` is their secret, or a path to the file that holds it; the variable COTSWOLD_TOKEN by default.
    Between hosts everything is encrypted, unless ``encrypt`` is false here and with the servers. ``ports``:
    the first and the last port at which the servers reach this process; any by default. Raises UserError for
    no such address or token, MachineError where nobody answers.
    """
    from cotswold.replicas.client import Client

    host, port = split_address(address)
    check_truth("encrypt", encrypt)
    between = ports_between(ports)
    return Connection(Client(host, port, secret_of(token), encrypt=encrypt, ports=between))


class Connection:
    """A session with parameter servers; use in a ``with`` statement, or `close`.

    It belongs to this process and one thread of it; others connect for themselves, and so do forks of this
    process. A process that was killed connects again as somebody new: what the old one had pushed counts,
    each push once. A connection that nobody refers to any more ends soon, with its thread and descriptors.
    """

    def __init__(self, client: Client) -> None:
        self._client = client
        weakref.finalize(self, client.abandon).atexit = False
        self.dropped = 0
        """Pushes that were dropped, whose work is lost (`Pushed.dropped`)."""
        self.dropped_samples = 0
        """From how many samples these were computed, as ``push`` was told."""
        self._base: Tensor | None = None
        """The parameters from which the next delta is counted."""

    def pull(self, module: nn.Module) -> None:
        """Put the newest parameters into the module, whatever was there.

        Parameters alone travel: buffers, such as the means of batch-norm, stay the module's own. Raises
        UserError for a module of other parameters, MachineError where the servers are lost.
        """
        import torch

        self._check(module)
        with torch.no_grad():
            whole, start = torch.from_numpy(self._client.pull()), 0
            for parameter in module.parameters():
                stop = start + parameter.numel()
                parameter.copy_(whole[start:stop].view(parameter.shape))
                start = stop
        self._base = self._flat([each.detach() for each in module.parameters()]) if self._has_deltas else None

    def push(self, module: nn.Module, samples: int = 0) -> Pushed:
        """Push what the module has learnt since the last pull; returns once every server has it.

        With rule ``deltas`` that is by how much the parameters have changed since the last pull or push; with
        the other rules it is the gradient in ``.grad``, of which a parameter without any has zeros. A sparse
        gradient is pushed as the dense one that it stands for.
        ``samples``: from how many it was computed, for the servers' account.

        What is returned says whether the push was ``dropped``, and ``why``: then what it held is lost, a
        delta as well as a gradient, and nobody computes it again; `dropped` counts these, and the logger
        ``cotswold`` warns of the first. After one that was too stale `pull` before the next push.

        Raises PushRefusedError where a server refuses it, or that pull is missing, UserError where there is
        nothing to push, or a number is not finite (then nothing is sent), MachineError where the servers are
        lost.
        """
        import torch

        self._check(module)
        samples = whole("samples", samples)
        if not 0 <= samples <= _SAMPLES_MOST:
            raise UserError(
                f"samples={samples}; it is how many a push was computed from, 0 to {_SAMPLES_MOST}"
            )
        if not self._client.has_pulled:
            raise UserError("nothing was pulled yet; pull(module), compute, then push(module)")
        if self._has_deltas:
            assert self._base is not None, "it was pulled"
            now = self._flat([each.detach() for each in module.parameters()])
            found = now - self._base
        else:
            gradients = [each.grad for each in module.parameters()]
            if all(each is None for each in gradients):
                raise UserError("no parameter has a gradient; call backward() before push(module)")
            pairs = zip(module.parameters(), gradients, strict=True)
            found = self._flat([torch.zeros_like(each) if grad is None else grad for each, grad in pairs])
        self._check_finite(module, found)
        pushed = self._client.push(found.numpy(), samples)
        if self._has_deltas:
            self._base = now
        if pushed.dropped:
            self._count_dropped(pushed, samples)
        return pushed

    def close(self) -> None:
        """Leave the servers."""
        self._client.close()

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.close()

    def _count_dropped(self, pushed: Pushed, samples: int) -> None:
        if not self.dropped:
            LOG.warning(
                "push %d was dropped (%s), and what it held is lost; pull more often, or let servers take "
                "staler ones; any more are counted in `dropped` of the connection, and not told",
                pushed.number,
                pushed.why,
            )
        self.dropped += 1
        self.dropped_samples += samples

    @property
    def _has_deltas(self) -> bool:
        return self._client.terms.kind == "delta"

    def _flat(self, tensors: list[Tensor]) -> Tensor:
        """One vector on the CPU, of the servers' type."""
        import torch

        dtype = getattr(torch, self._client.terms.dtype)
        dense = [each.detach() if each.layout is torch.strided else each.to_dense() for each in tensors]
        return torch.cat([each.reshape(-1).to("cpu", dtype) for each in dense])

    def _check(self, module: nn.Module) -> None:
        check_parameters(module)
        own, served = layout_of(module), self._client.terms.layout
        if own == served:
            return
        for mine, theirs in zip(own, served, strict=False):
            if mine != theirs:
                raise UserError(
                    f"the module's parameter {mine[0]} of {mine[1]} x {mine[2]} is not what is served there, "
                    f"{theirs[0]} of {theirs[1]} x {theirs[2]}; make the same module as the servers have"
                )
        raise UserError(
            f"the module has {len(own)} parameters, and {len(served)} are served; make the same module as "
            "the servers have"
        )

    def _check_finite(self, module: nn.Module, found: Tensor) -> None:
        if bool(found.isfinite().all()):
            return
        start = 0
        for name, parameter in module.named_parameters():
            stop = start + parameter.numel()
            if not bool(found[start:stop].isfinite().all()):
                raise UserError(
                    f"what would be pushed of {name} has numbers that are not finite; nothing was sent"
                )
            start = stop


def check_parameters(module: object) -> None:
    """Raise UserError for a parameter whose numbers cannot be pulled and pushed as real numbers."""
    import torch

    if not isinstance(module, torch.nn.Module):
        raise UserError(f"pull and push take a torch.nn.Module, not a {type(module).__name__}")
    for name, each in module.named_parameters():
        if each.is_meta:
            raise UserError(
                f"the parameter {name} is on the meta device, without memory; use to_empty() first"
            )
        if hasattr(each, "device_mesh"):
            raise UserError(
                f"the parameter {name} is distributed over several ranks (DTensor); pull and push a module "
                "that is whole in this process"
            )
        if not each.is_floating_point():
            kind = str(each.dtype).removeprefix("torch.")
            raise UserError(
                f"the parameter {name} is {kind}, and servers hold real numbers; make it a floating-point "
                "parameter, two for a complex one, or a buffer"
            )


def layout_of(module: nn.Module) -> tuple[tuple[str, int, int], ...]:
    """Name, rows and numbers a row of each parameter, in order; those that do not learn as well."""
    from cotswold.shards.runtime.work import Slot

    slots = [Slot.of_shape(name, tuple(each.shape)) for name, each in module.named_parameters()]
    return tuple((slot.name, slot.rows, slot.columns) for slot in slots)


def split_address(address: object) -> tuple[str, int]:
    """Host and port of ``HOST:PORT``; raises UserError for anything else.

    >>> split_address("10.0.0.1:7000")
    ('10.0.0.1', 7000)
    """
    if not isinstance(address, str):
        raise UserError(f"the address is a {type(address).__name__}; give a str, HOST:PORT")
    host, colon, port = address.rpartition(":")
    is_port = port.isdecimal() and len(port) <= 5 and int(port) < 1 << 16
    if not (colon and host.isprintable() and host.strip() and is_port):
        raise UserError(f"{address!r:.80} is no address; write HOST:PORT")
    return host.removeprefix("[").removesuffix("]"), int(port)


def ports_between(ports: object) -> tuple[int, ...]:
    """The ports from the first to the last, none for None; raises UserError for anything else.

    >>> ports_between((7000, 7002))
    (7000, 7001, 7002)
    """
    if ports is None:
        return ()
    if not isinstance(ports, tuple | list) or len(ports) != 2:
        raise UserError(f"ports={ports!r:.60}; give the first and the last port, such as (7000, 7010)")
    first, last = (whole("a port", each) for each in ports)
    if not 0 < first <= last < 1 << 16:
        raise UserError(f"ports {first} to {last}: they lie between 1 and 65535")
    return tuple(range(first, last + 1))


def secret_of(token: object) -> Token:
    """The secret that is meant; raises UserError where there is none, or the file may be read by others."""
    from cotswold.host import Token, token_in, token_of

    if isinstance(token, Token):
        return token
    if isinstance(token, Path):
        if not token.exists():
            raise UserError(f"the file with the token, {token}, is not there; copy it from where servers run")
        return token_in(token)
    if token is not None:
        if not isinstance(token, str):
            raise UserError(
                f"the token is a {type(token).__name__}; give a str, or the pathlib.Path of a file with it"
            )
        try:
            return Token(token.strip())
        except UserError as error:
            raise UserError(
                f"the token that was given has {len(token.strip())} characters, not 32 or more, or others "
                "than a token's; a file that holds it is given as a pathlib.Path"
            ) from error
    found = token_of(os.environ)
    if found is None:
        raise UserError("no token: give the servers' secret, a path to it, or set COTSWOLD_TOKEN")
    return found
