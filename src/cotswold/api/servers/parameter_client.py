"""Client of parameter servers for user-defined training loops: `connect`, also `cotswold.connect`.

Knows: modules, which parameters are pulled and pushed. Does not know: messages, servers.
"""

from __future__ import annotations

import logging
import os
import weakref
from pathlib import Path
from types import TracebackType
from typing import TYPE_CHECKING, Self

from cotswold.api.arguments import as_integer, check_truth
from cotswold.errors import UserError

if TYPE_CHECKING:
    from torch import Tensor, nn

    from cotswold.host import Token
    from cotswold.replicas.client import ParameterClient, PushResult


LOG = logging.getLogger("cotswold")
_SAMPLES_MOST = 1 << 32
"""Maximum samples of a push, so that the total of any number of pushes fits into 64 bits."""


def connect(
    address: str,
    token: str | Path | Token | None = None,
    *,
    encrypt: bool = True,
    ports: tuple[int, int] | None = None,
) -> Connection:
    """Connect to the parameter servers at ``address``, started by `cotswold.serve` or `cotswold serve`.

    Args:
        address: ``HOST:PORT`` of the servers.
        token: The servers' secret, or the path of a file with it. [variable COTSWOLD_TOKEN]
        encrypt: Encrypt messages between hosts; must be the same as on the servers.
        ports: First and last port at which the servers reach this process. [any]

    Returns:
        A connection, to be used in a ``with`` statement or closed.

    Raises:
        UserError: if the address or token is invalid.
        MachineError: if no server answers.
    """
    from cotswold.replicas.client import ParameterClient

    host, port = split_address(address)
    check_truth("encrypt", encrypt)
    between = ports_between(ports)
    return Connection(ParameterClient(host, port, secret_of(token), encrypt=encrypt, ports=between))


class Connection:
    """A session with parameter servers; use it in a ``with`` statement, or call `close`.

    A connection belongs to one thread of this process; other threads and forked processes open their own. If
    a process is killed, its replacement connects as a new client. Each push of the old client is applied
    exactly once. An unreferenced connection is closed soon, with its thread and descriptors.
    """

    def __init__(self, client: ParameterClient) -> None:
        self._client = client
        weakref.finalize(self, client.abandon).atexit = False
        self.dropped = 0
        """Number of pushes whose work was lost (`PushResult.dropped`)."""
        self.dropped_samples = 0
        """Number of samples in these pushes, as passed to ``push``."""
        self._base: Tensor | None = None
        """Parameters relative to which the next delta is computed."""

    def pull(self, module: nn.Module) -> None:
        """Copy the newest parameters into the module, overwriting its own.

        Buffers, such as the means of batch-norm, are not transferred and stay unchanged.

        Args:
            module: A module with the parameters that are served.

        Raises:
            UserError: if the module has other parameters.
            MachineError: if the servers are lost.
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

    def push(self, module: nn.Module, samples: int = 0) -> PushResult:
        """Push the result of the module's computation since the last pull; return when every server has it.

        With rule ``deltas`` this is the change of the parameters since the last pull or push. With the other
        rules it is the gradient in ``.grad``, zeros for a parameter without one. Sparse gradients are
        converted to dense ones.

        The result has a flag ``dropped`` and a reason ``why``. A dropped push is lost and not recomputed; it
        is counted in `dropped`, and the logger ``cotswold`` warns of the first. After a push was dropped as
        too stale, call `pull` before the next one.

        Args:
            module: A module with the parameters that are served.
            samples: Number of samples from which the push was computed, for the servers' statistics.

        Returns:
            The servers' answer.

        Raises:
            PushRejectedError: if a server rejects the push or requires a pull.
            UserError: if there is no gradient, or a number is infinite or NaN; nothing is sent.
            MachineError: if the servers are lost.
        """
        import torch

        self._check(module)
        samples = as_integer("samples", samples)
        if not 0 <= samples <= _SAMPLES_MOST:
            raise UserError(
                f"samples={samples}; the number of samples of a push must be in 0..{_SAMPLES_MOST}"
            )
        if not self._client.has_pulled:
            raise UserError("no parameters were pulled yet; pull(module), compute, then push(module)")
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
        """Disconnect from the servers."""
        self._client.close()

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.close()

    def _count_dropped(self, pushed: PushResult, samples: int) -> None:
        if not self.dropped:
            LOG.warning(
                "push %d was dropped (%s) and its work is lost; pull more often, or let servers accept "
                "staler pushes; further ones are counted in `dropped` of the connection without a warning",
                pushed.number,
                pushed.why,
            )
        self.dropped += 1
        self.dropped_samples += samples

    @property
    def _has_deltas(self) -> bool:
        return self._client.terms.kind == "delta"

    def _flat(self, tensors: list[Tensor]) -> Tensor:
        """Return one vector on the CPU, of the servers' dtype."""
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
                    f"the module's parameter {mine[0]} of {mine[1]} x {mine[2]} differs from the servers' "
                    f"{theirs[0]} of {theirs[1]} x {theirs[2]}; use the same module as the servers"
                )
        raise UserError(
            f"the module has {len(own)} parameters, but the servers have {len(served)}; use the same module "
            "as the servers"
        )

    def _check_finite(self, module: nn.Module, found: Tensor) -> None:
        if bool(found.isfinite().all()):
            return
        start = 0
        for name, parameter in module.named_parameters():
            stop = start + parameter.numel()
            if not bool(found[start:stop].isfinite().all()):
                raise UserError(f"the push of {name} contains infinite or NaN numbers; nothing was sent")
            start = stop


def check_parameters(module: object) -> None:
    """Raise UserError for a parameter that is not a tensor of real numbers in this process."""
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
                f"the parameter {name} is {kind}, but servers store real numbers; make it a floating-point "
                "parameter, two for a complex one, or a buffer"
            )


def layout_of(module: nn.Module) -> tuple[tuple[str, int, int], ...]:
    """Return name, rows and columns of each parameter, in order, including frozen ones."""
    from cotswold.shards.runtime.work import TensorSlot

    slots = [TensorSlot.of_shape(name, tuple(each.shape)) for name, each in module.named_parameters()]
    return tuple((slot.name, slot.rows, slot.columns) for slot in slots)


def split_address(address: object) -> tuple[str, int]:
    """Split ``HOST:PORT`` into host and port. Raises UserError for anything else.

    >>> split_address("10.0.0.1:7000")
    ('10.0.0.1', 7000)
    """
    if not isinstance(address, str):
        raise UserError(f"the address must be a str, HOST:PORT, not a {type(address).__name__}")
    host, colon, port = address.rpartition(":")
    is_port = port.isdecimal() and len(port) <= 5 and int(port) < 1 << 16
    if not (colon and host.isprintable() and host.strip() and is_port):
        raise UserError(f"{address!r:.80} is not an address; write HOST:PORT")
    return host.removeprefix("[").removesuffix("]"), int(port)


def ports_between(ports: object) -> tuple[int, ...]:
    """Return all ports from the first to the last; empty for None. Raises UserError for anything else.

    >>> ports_between((7000, 7002))
    (7000, 7001, 7002)
    """
    if ports is None:
        return ()
    if not isinstance(ports, tuple | list) or len(ports) != 2:
        raise UserError(f"ports={ports!r:.60}; give the first and the last port, such as (7000, 7010)")
    first, last = (as_integer("a port", each) for each in ports)
    if not 0 < first <= last < 1 << 16:
        raise UserError(f"ports {first} to {last} are not an ascending range within 1..65535")
    return tuple(range(first, last + 1))


def secret_of(token: object) -> Token:
    """Return the secret in ``token``.

    Raises UserError if it is missing, or if its file is readable by others.
    """
    from cotswold.host import Token, read_token, token_of

    if isinstance(token, Token):
        return token
    if isinstance(token, Path):
        if not token.exists():
            raise UserError(f"the token file {token} does not exist; copy it from a host of the servers")
        return read_token(token)
    if token is not None:
        if not isinstance(token, str):
            raise UserError(
                f"the token must be a str or the pathlib.Path of its file, not a {type(token).__name__}"
            )
        try:
            return Token(token.strip())
        except UserError as error:
            raise UserError(
                f"the token has {len(token.strip())} characters; it must have at least 32, all valid for a "
                "token; give the file of a token as a pathlib.Path"
            ) from error
    found = token_of(os.environ)
    if found is None:
        raise UserError("no token: give the servers' secret, a path to it, or set COTSWOLD_TOKEN")
    return found
