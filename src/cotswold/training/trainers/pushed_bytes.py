"""Bytes that replicas have pushed, for events.

Knows: names of tensors, names of their layers. Does not know: which replica pushed, when.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping

from cotswold.errors import CheckpointError


class PushedBytes:
    """Pushed bytes, by layer and kind of update.

    ``names`` maps modules to the recipe's names of layers.
    """

    def __init__(self, names: Mapping[str, str]) -> None:
        self._names = names
        self.bytes: dict[str, dict[str, int]] = {}
        """Bytes by layer, then by kind."""
        self._pushes = self._samples = 0
        """Pushes and their samples since this process began."""

    def load(self, kept: object) -> None:
        """Restore the `bytes` of a checkpoint."""
        if not isinstance(kept, dict):
            raise CheckpointError("the checkpoint has no bytes of pushes; another version wrote it")
        for layer, kinds in kept.items():
            self.bytes[str(layer)] = {str(kind): int(count) for kind, count in kinds.items()}

    def add(self, pushed: Iterable[tuple[str, str, int]]) -> None:
        """Add pushed bytes; each item is a tensor name, a kind and bytes."""
        for tensor, kind, count in pushed:
            module = tensor.rpartition(".")[0] or tensor
            layer = self.bytes.setdefault(self._names.get(module, module), {})
            layer[kind] = layer.get(kind, 0) + count

    def count(self, pushes: int, samples: int) -> None:
        """Count pushes and the samples of their steps."""
        self._pushes += pushes
        self._samples += samples

    @property
    def event_fields(self) -> dict[str, object]:
        """Event fields, empty without pushes.

        `push_samples` is the mean number of samples per push, `pushed_bytes` the total, and
        `pushed_bytes_by_layer` the bytes by layer, then by kind.
        """
        mean = {"push_samples": self._samples / self._pushes} if self._pushes else {}
        return {**mean, **self._bytes_fields}

    @property
    def _bytes_fields(self) -> dict[str, object]:
        if not self.bytes:
            return {}
        total = sum(sum(kinds.values()) for kinds in self.bytes.values())
        by_layer = {layer: dict(kinds) for layer, kinds in self.bytes.items()}
        return {"pushed_bytes": total, "pushed_bytes_by_layer": by_layer}
