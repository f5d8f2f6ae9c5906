"""User-defined spatial layers: they declare the pixels that an output needs, and the ranks exchange the halo.

Knows: how such a layer runs on a whole map and on parts. Does not know: what it computes.
Source: Dean et al. 2012, section 3: the user defines the computation, the framework partitions it.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from types import MappingProxyType
from typing import Any

import torch
from torch import Tensor, nn
from torch.nn import functional as F

from cotswold.errors import GeometryError
from cotswold.geometry import Box, Partition
from cotswold.geometry.partition import chunk_bounds
from cotswold.mesh.maps.distributed_tensor import shares_memory
from cotswold.mesh.maps.map import DistributedMap
from cotswold.mesh.maps.windows import ReceptiveField, Windows, exchange_halo, kept_window, padded, windows_of
from cotswold.mesh.modules.parameters import local_of
from cotswold.mesh.ranks.collectives import all_reduce_backward, all_reduce_max, connected_zeros
from cotswold.mesh.ranks.mesh import Mesh


class SpatialLayer(nn.Module, ABC):
    """Base class of layers on maps that run in one process or partitioned over ranks.

    Maps are ``(image, channel, y, x)``. A subclass defines `output_size`, `input_box` and `forward_window`;
    this class defines ``forward``. Boxes are (y, x), half open.

    Attributes:
        sharded: Parameters that differ by position, ``{name: (dimension of y, dimension of x)}``. They are
            divided like the output, whose height and width must be multiples of these dimensions' sizes, and
            `forward_window` sees those of its box. All other parameters are replicated.
    """

    sharded: Mapping[str, tuple[int, int]] = MappingProxyType({})
    _mesh: Mesh | None = None
    _blocks: tuple[int, int] | None = None

    @abstractmethod
    def output_size(self, height: int, width: int) -> tuple[int, int]:
        """Return height and width of the output of a map.

        Args:
            height: Height of the map in pixels.
            width: Width of the map in pixels.
        """

    @abstractmethod
    def input_box(self, output: Box) -> Box:
        """Return the box of pixels that a box of outputs needs; pixels outside of the map will be zeros.

        Args:
            output: Box (y, x) of outputs.
        """

    @abstractmethod
    def forward_window(self, window: Tensor, output: Box) -> Tensor:
        """Compute a box of outputs.

        Args:
            window: The pixels ``(image, channel, y, x)`` of ``input_box(output)``.
            output: Box (y, x) of outputs.

        Returns:
            The outputs ``(image, channel, *output.shape)``.
        """

    def forward(self, x: Any) -> Any:
        """Return the output of a map.

        Args:
            x: A map ``(image, channel, y, x)``, a tensor or a `DistributedMap`.

        Raises:
            GeometryError: ``x`` does not have four dimensions.
        """
        if isinstance(x, DistributedMap):
            return self._forward_map(x)
        if x.dim() != 4:
            raise GeometryError(
                f"{type(self).__name__} takes maps (image, channel, y, x), got {x.dim()} dimensions"
            )
        if self._mesh is not None:
            return self._forward_map(DistributedMap.of(x, self._mesh))
        plane = Box.whole(tuple(x.shape[2:]))
        box = Box.whole(self.output_size(*plane.shape))
        wanted = self.input_box(box)
        inside = wanted.intersect(plane)
        (top, left), (bottom, right) = wanted.start, wanted.stop
        (y0, x0), (y1, x1) = inside.start, inside.stop
        rows, columns = inside.slices
        window = F.pad(x[:, :, rows, columns], (x0 - left, right - x1, y0 - top, bottom - y1))
        return self._checked(self.forward_window(window, box), box)

    def join(self, mesh: Mesh) -> None:
        """Prepare the layer for one rank of a mesh, while parameters still have their whole shape.

        Args:
            mesh: The ranks.

        Raises:
            GeometryError: ``sharded`` names no parameter, or its parameters have different numbers of blocks.
        """
        for name in self.sharded:
            if name not in self._parameters:
                has = ", ".join(self._parameters) or "none"
                raise GeometryError(
                    f"{type(self).__name__}.sharded names {name}, which is not one of its parameters; it "
                    f"has {has}"
                )
        extents = {
            tuple(self.get_parameter(name).shape[dim] for dim in dims)
            for name, dims in self.sharded.items()
            if name in self._parameters and self._parameters[name] is not None
        }
        if len(extents) > 1:
            raise GeometryError(
                f"{type(self).__name__} has parameters that differ by position in {sorted(extents)} blocks; "
                "they must agree"
            )
        self._mesh = mesh
        self._plans: dict[Partition, Windows] = {}
        self._checked_shapes: set[tuple[Any, ...]] = set()
        self._kinds: dict[tuple[Any, ...], tuple[int, torch.dtype]] = {}
        for rows, columns in extents:
            self._blocks = rows, columns

    def _forward_map(self, x: DistributedMap) -> DistributedMap:
        windows = self._windows(x)
        window, box = exchange_halo(x, windows), windows.partition.box(x.mesh.rank)
        found: list[Tensor] = []

        def compute() -> None:
            if box.size:
                seen = padded(window, windows, x.mesh.rank)
                with kept_window(x, windows, window, seen):
                    out = self._checked(self.forward_window(seen, box), box)
                # Later changes in place must not change the map below.
                found.append(out.clone() if shares_memory(out, x.source) else out)

        with _summing_gradients(self, x.mesh):
            if (kind := _kind_of(x)) in self._checked_shapes:
                compute()
            else:  # the first time it may fail on one rank, and the others must not wait for that rank
                x.mesh.check_on_all(compute)
                self._checked_shapes.add(kind)
            learnt = _learnt(self)
            out = self._connected(x, windows, found[0] if found else None, window, learnt)
        return DistributedMap(out, windows.partition, x.mesh)

    def _connected(
        self, x: DistributedMap, windows: Windows, own: Tensor | None, window: Tensor, learnt: list[Tensor]
    ) -> Tensor:
        """Return the outputs; if a rank has none, all depend on all sources, like its messages backwards."""
        if all(box.size for box in windows.partition.boxes):
            assert own is not None, "this rank has outputs"
            return own
        channels, dtype = self._kind(x, own)
        shape = x.shape[0], channels, *windows.partition.box(x.mesh.rank).shape
        if own is None:
            return connected_zeros(shape, window.to(dtype), *learnt)
        return own + connected_zeros((1, 1, 1, 1), window.to(dtype), *learnt)

    def _windows(self, x: DistributedMap) -> Windows:
        if x.partition not in self._plans:
            size = self.output_size(*x.partition.shape)
            field, cuts = self._field(x.partition.shape), self._cuts(size, x.mesh)
            self._plans[x.partition] = windows_of(x.mesh, x.partition, field, cuts)
        return self._plans[x.partition]

    def _field(self, plane: tuple[int, int]) -> ReceptiveField:
        """Return the pixels that outputs read of a map of a given height and width."""
        return self

    def _cuts(self, size: tuple[int, int], mesh: Mesh) -> Partition | None:
        if self._blocks is None:
            return None
        if any(extent % count for extent, count in zip(size, self._blocks, strict=True)):
            raise GeometryError(
                f"{type(self).__name__} has an output of {size}, which is not a multiple of the "
                f"{self._blocks} blocks of its parameters"
            )
        times = [extent // count for extent, count in zip(size, self._blocks, strict=True)]
        (rows, columns), grid = self._blocks, mesh.grid
        blocks = Partition(chunk_bounds(rows, grid.rows), chunk_bounds(columns, grid.columns))
        return blocks.times(times[0], times[1])

    def _kind(self, x: DistributedMap, own: Tensor | None) -> tuple[int, torch.dtype]:
        """Return channels and type of the output; a rank without outputs gets them from the others, once."""
        key = _kind_of(x)
        if key not in self._kinds:
            mine = (0, 0) if own is None else (own.shape[1], _TYPES.index(own.dtype))
            channels, kind = all_reduce_max(torch.tensor(mine, device="cpu"), x.mesh).tolist()
            self._kinds[key] = channels, _TYPES[kind]
        return self._kinds[key]

    def _checked(self, out: Tensor, box: Box) -> Tensor:
        if out.dim() != 4 or tuple(out.shape[2:]) != box.shape:
            raise GeometryError(
                f"{type(self).__name__}.forward_window must return (image, channel, {box.shape[0]}, "
                f"{box.shape[1]}) for {box}, got {tuple(out.shape)}"
            )
        return out


_TYPES = tuple(sorted({one for one in vars(torch).values() if isinstance(one, torch.dtype)}, key=str))
"""Types that outputs may have, in an order that is equal on all ranks."""


def _kind_of(x: DistributedMap) -> tuple[Any, ...]:
    """Key of maps whose outputs have equal channels and types, and that fail or succeed alike."""
    return x.partition, x.shape[1], x.dtype, torch.is_autocast_enabled(x.device.type)


def _learnt(layer: nn.Module) -> list[Tensor]:
    held = (values for one in layer.modules() for values in one._parameters.values())
    return [local_of(values) for values in held if values is not None]


@contextmanager
def _summing_gradients(layer: SpatialLayer, mesh: Mesh) -> Iterator[None]:
    """Sum the gradients of replicated parameters over ranks, for a `with` block."""
    changed = [
        (one._parameters, name, values)
        for one in layer.modules()
        for name, values in one._parameters.items()
        if values is not None and not (one is layer and name in layer.sharded)
    ]
    try:
        for table, name, values in changed:
            table[name] = all_reduce_backward(values, mesh)  # type: ignore[assignment]  # as torch.func does
        yield
    finally:
        for table, name, values in changed:
            table[name] = values
