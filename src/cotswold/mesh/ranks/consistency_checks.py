"""Periodic consistency checks between ranks: batches, other arguments, modes, random generators.

Knows: fingerprints of tensors and of generators, when to compare them, how to name differing ranks. Does not
know: maps, modules, how fingerprints travel.

Between hosts, every call compares sizes, other arguments and modes; on one host each message is checked
against its expected size instead. Calls 1, 2, 4, 8, … and every `OFTEN`-th call also compare values and
generators, and on one host all of these. All ranks compare the same numbers, so all raise the same error.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import partial
from typing import Protocol
from zlib import crc32

import torch
from torch import Tensor

from cotswold.errors import UserError

OFTEN = 64
"""Maximum number of calls between two comparisons of values."""
_CLOSE = 1e-6
"""Tolerance of fingerprints, relative to the sum of magnitudes: machines round differently."""
_PIECE = 1 << 20
"""Number of values of which a fingerprint is taken at once."""
_STRANGE = 1234.5, 2345.6, -2345.6
"""Replacements of NaN, infinity and minus infinity in a fingerprint."""
_OTHER_STEP = 0.618
"""Phase difference of neighbouring values in the second sum."""


def due(calls: int) -> bool:
    """True if values are compared at this call, counted from 1."""
    return calls & (calls - 1) == 0 or calls % OFTEN == 0


class CheckedRanks(Protocol):
    """The ranks that compare values (`mesh.Mesh`)."""

    members: list[int]
    """Ranks of the job, in the order of the gathered values."""
    draws: int
    """Number of draws of random numbers that must be equal on all ranks."""

    @property
    def size(self) -> int:
        """Number of ranks."""

    @property
    def on_one_host(self) -> bool:
        """True if messages check the size of each batch."""

    def gather(self, values: Tensor, /) -> list[Tensor]:
        """Return the tensors of all ranks, which have equal shapes."""


@dataclass(frozen=True, eq=False)
class ConsistencyChecks:
    """Comparisons between the ranks of a mesh, which must call its methods in the same order."""

    mesh: CheckedRanks

    def batches(self, sizes: object, settings: object, tensors: Sequence[Tensor], values_too: bool) -> None:
        """Raise UserError that names the ranks whose batches differ in size, or in values if ``values_too``.

        ``sizes`` and ``settings`` (other arguments, modes) may be any objects with equal ``repr`` for equal
        values. Every tensor is compared separately, because a few numbers would vanish in the sum of a batch
        of images. Ranks of one host detect other sizes by their messages, and compare them only together with
        the values.
        """
        if not values_too and self.mesh.on_one_host:
            return
        checksums = [float(crc32(repr(each).encode())) for each in (sizes, settings)]
        found = torch.stack(self.mesh.gather(torch.tensor(checksums, dtype=torch.float64, device="cpu")))
        whole = "give every rank the same whole batch"
        self._raise_if_any(found[:, 0].tolist(), "got a batch of other sizes", whole)
        self._raise_if_any(
            found[:, 1].tolist(),
            "was called with other arguments, or in another mode (train, eval, autocast, no_grad),",
            "call it with equal arguments and modes on every rank",
        )
        if values_too and tensors:
            values = self.mesh.gather(torch.stack([fingerprint(each) for each in tensors]))
            self._raise_if_any(first_equal(values, _close), "got another batch", whole)

    def parameters(self, shared: Sequence[Tensor]) -> None:
        """Raise UserError that names the ranks whose replicated parameters differ.

        The cause is other settings of an optimiser, or a manual change.
        """
        if shared:
            values = self.mesh.gather(torch.stack([fingerprint(each) for each in shared]))
            self._raise_if_any(
                first_equal(values, _close),
                "has other values of replicated parameters",
                "give all ranks the same optimiser and settings, and change parameters on all of them or on "
                "none",
            )

    def generators(self, states: Sequence[float], drew: bool = True) -> None:
        """Raise UserError that names the ranks whose generators differ, if any rank ``drew``."""
        mine = torch.tensor([float(drew), *states], dtype=torch.float64, device="cpu")
        found = torch.stack(self.mesh.gather(mine))
        if found[:, 0].any():
            self._raise_if_any(
                [tuple(each) for each in found[:, 1:].tolist()],
                "draws other random numbers",
                "call torch.manual_seed with the same number on each, and draw on all of them or on none",
            )

    def check_rng(self, device: str) -> None:
        """Check the generators periodically before drawing numbers that must be equal on all ranks."""
        self.mesh.draws += 1
        if self.mesh.size > 1 and due(self.mesh.draws):
            self.generators(states_of(device))

    def values(self, structure: object, sums: Tensor, what: str, remedy: str) -> None:
        """Raise UserError that names the ranks whose ``structure`` or ``sums`` of values differ."""
        checksums = torch.tensor([float(crc32(repr(structure).encode()))], dtype=torch.float64, device="cpu")
        self._raise_if_any([one.item() for one in self.mesh.gather(checksums)], what, remedy)
        found = self.mesh.gather(torch.nan_to_num(sums))
        self._raise_if_any(first_equal(found, partial(torch.allclose, rtol=1e-12, atol=0)), what, remedy)

    def _raise_if_any(self, values: Sequence[object], what: str, remedy: str) -> None:
        """Raise UserError unless all values are equal; it names the ranks that differ from the majority."""
        counts = Counter(values)
        if len(counts) == 1:
            return
        most = max(counts, key=lambda value: (counts[value], -values.index(value)))
        members = self.mesh.members
        others = [members[rank] for rank, value in enumerate(values) if value != most]
        who = " and ".join(f"rank {rank}" for rank in others)
        raise UserError(f"{who} {what} than rank {members[values.index(most)]}; {remedy}")


def first_equal(values: Sequence[Tensor], alike: Callable[[Tensor, Tensor], bool]) -> list[int]:
    """For each value, the index of the first value that equals it."""
    found: list[int] = []
    for number, value in enumerate(values):
        firsts = dict.fromkeys(found)  # one element unless ranks differ
        found.append(next((first for first in firsts if alike(values[first], value)), number))
    return found


def _close(one: Tensor, other: Tensor) -> bool:
    """True if fingerprints (one row per tensor) are of equal values, except for rounding."""
    most = _CLOSE * torch.minimum(one[:, 2], other[:, 2])
    return not bool(((one - other)[:, :2].abs() > most[:, None]).any())


def fingerprint(values: Tensor) -> Tensor:
    """Two weighted sums that depend on values and their places, and the sum of magnitudes; float64.

    Each non-finite value counts as a number that no batch contains.
    """
    out = torch.zeros(3, dtype=torch.float64, device="cpu")
    position = 0.0
    flat = values.detach().reshape(-1)
    real = torch.view_as_real(flat).reshape(-1) if flat.is_complex() else flat
    for piece in torch.split(real, _PIECE):
        wide = torch.nan_to_num(piece.double(), *_STRANGE)
        phase = torch.arange(wide.numel(), dtype=torch.float64, device=wide.device).add_(position)
        sums = (wide * (1 + phase.sin())).sum(), (wide * (_OTHER_STEP * phase).cos()).sum()
        out += torch.stack([*sums, wide.abs().sum()]).cpu()
        position += wide.numel()
    return out


def states_of(device: str) -> list[float]:
    """States of torch's generators for a kind of device, as numbers that differ if the states do."""
    found = [torch.get_rng_state()]
    if device == "cuda":
        found.append(torch.cuda.get_rng_state())
    return [float(crc32(state.numpy().tobytes())) for state in found]
