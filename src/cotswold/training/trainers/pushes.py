"""What replicas have pushed, in bytes, for events.

Knows: names of tensors, what their layers are called. Does not know: who pushed it, when.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping

from cotswold.errors import CheckpointError


class Pushes:
    """Bytes of the numbers that went to servers, by layer and kind of update; ``names``: what modules are
    called, where they are called otherwise."""

    def __init__(self, names: Mapping[str, str]) -> None:
        self._names = names
        self.bytes: dict[str, dict[str, int]] = {}
        """By layer, then by kind."""
        self._pushes = self._samples = 0
        """Since this process began."""

    def load(self, kept: object) -> None:
        """Continue with the `bytes` of a checkpoint."""
        if not isinstance(kept, dict):
            raise CheckpointError("the checkpoint says nothing of pushes; it is of another version")
        for layer, kinds in kept.items():
            self.bytes[str(layer)] = {str(kind): int(count) for kind, count in kinds.items()}

    def add(self, pushed: Iterable[tuple[str, str, int]]) -> None:
        """More of them: a tensor, the kind, bytes."""
        for tensor, kind, count in pushed:
            module = tensor.rpartition(".")[0] or tensor
            layer = self.bytes.setdefault(self._names.get(module, module), {})
            layer[kind] = layer.get(kind, 0) + count

    def count(self, pushes: int, samples: int) -> None:
        """So many pushes more, of steps on so many samples."""
        self._pushes += pushes
        self._samples += samples

    @property
    def said(self) -> dict[str, object]:
        """Fields of an event: `push_samples`, the mean of samples in a push, `pushed_bytes` of all, and
        `pushed` by layer, then by kind; nothing where there are none."""
        mean = {"push_samples": self._samples / self._pushes} if self._pushes else {}
        return {**mean, **self._said_bytes}

    @property
    def _said_bytes(self) -> dict[str, object]:
        if not self.bytes:
            return {}
        total = sum(sum(kinds.values()) for kinds in self.bytes.values())
        return {"pushed_bytes": total, "pushed": {layer: dict(kinds) for layer, kinds in self.bytes.items()}}
