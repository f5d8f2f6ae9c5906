"""One rank's share of a stack: its filters, and the operations on its parts of the maps.

Knows: which parts a rank has (`geometry.StackPartition`), which exchange precedes which product, what is
computed while messages travel. Does not know: parameters of modules, recipes, files.
Source: Coates et al. 2013, sections 3 and 4.2.

All ranks of the mesh call every method in the same order; ranks without blocks use empty maps.
"""

from __future__ import annotations

from dataclasses import dataclass
from functools import cached_property

import torch
from torch import Tensor

from cotswold import ops
from cotswold.errors import GeometryError
from cotswold.geometry import BlockLocal, Box, ExchangePlan, MapShape, Region, Smoothing, StackPartition
from cotswold.geometry.box import EMPTY_BOX
from cotswold.mesh.maps.crop import crop
from cotswold.mesh.maps.exchange import Exchange, ExchangeHandle
from cotswold.mesh.ranks.mesh import Mesh
from cotswold.ops.memory_format import empty_map, images_last_no_grad, neurons_to_map
from cotswold.ops.products import adjoint, adjoint_at, has_regions, product, product_of
from cotswold.ops.sgd_rule import reciprocal


@dataclass(frozen=True, eq=False)
class Responses:
    """A rank's responses, and the pooling window whose memory contains them."""

    own: Tensor
    window: Tensor | None


@dataclass(frozen=True, eq=False)
class RankShare:
    """The share of ``mesh.rank`` in a stack; ``below`` has the box of the stack's input that each rank holds.

    Without ``below`` the input is images of a store, and every rank reads its window itself.
    """

    mesh: Mesh
    partition: StackPartition
    below: tuple[Box, ...] | None = None

    @cached_property
    def layer(self) -> BlockLocal | None:
        """This rank's blocks on its window."""
        return self.partition.layer(self.mesh.rank)

    @cached_property
    def window(self) -> Box:
        """Box of the input map that this rank reads."""
        return self.partition.windows[self.mesh.rank]

    @cached_property
    def own(self) -> Box:
        """Box of the input map that this rank owns, in its window's coordinates."""
        own = self.partition.input.box(self.mesh.rank)
        return own.relative_to(self.window)

    @cached_property
    def outputs(self) -> Box:
        """Box of the stack's output that this rank computes."""
        return self.partition.output.box(self.mesh.rank)

    @cached_property
    def entry(self) -> Exchange | None:
        """Exchange from the parts of the map below to windows."""
        if self.below is None:
            return None
        return Exchange(self.mesh, ExchangePlan(self.below, self.partition.windows))

    @cached_property
    def descent(self) -> Exchange:
        """Exchange from own pixels to this rank's part of the map below, for gradients."""
        return Exchange(self.mesh, ExchangePlan(self.partition.input.boxes, self.below or ()))

    @cached_property
    def pixels(self) -> Exchange:
        """Exchange from own pixels to windows."""
        return Exchange(self.mesh, self.partition.pixels)

    @cached_property
    def pooling(self) -> Exchange:
        """Exchange from own responses to the windows of own pooling units."""
        return Exchange(self.mesh, self.partition.pooling)

    @cached_property
    def normalisation(self) -> Exchange:
        """Exchange from own pooling units to the windows of own outputs."""
        return Exchange(self.mesh, self.partition.normalisation)

    def empty(self, like: Tensor, box: Box, channels: int) -> Tensor:
        """Return an uninitialised map on a box, in the layout with images innermost."""
        if not box.size:
            return like.new_empty((like.shape[0], channels, *box.shape))
        return empty_map(like, like.shape[0], MapShape(channels, *box.shape))

    def enter(self, x: Tensor) -> ExchangeHandle:
        """Start the exchange of the input to this rank's window.

        If the rank reads the window itself, the exchange is complete already.
        """
        if self.entry is not None:
            return self.entry.start(images_last_no_grad(x))
        if tuple(x.shape[2:]) != self.window.shape:
            raise GeometryError(
                f"rank {self.mesh.rank} reads a window {self.window.shape} of the images, got "
                f"{tuple(x.shape[2:])}"
            )
        return ExchangeHandle(images_last_no_grad(x))

    def empty_responses(self, like: Tensor) -> Responses:
        """Allocate own responses, inside the window in which they are pooled if that contains them."""
        own, window = self.partition.responses.box(self.mesh.rank), self.pooling.window
        depth = self.partition.geometry.responses.channels
        if not own.size or not window.contains(own):
            return Responses(self.empty(like, own, depth), None)
        around = self.empty(like, window, depth)
        for axis, extent in ((2, self.partition.responses.shape[0]), (3, self.partition.responses.shape[1])):
            before, after = -window.start[axis - 2], window.stop[axis - 2] - extent
            if before > 0:
                around.narrow(axis, 0, before).zero_()  # a padded map has zeros around it
            if after > 0:
                around.narrow(axis, around.shape[axis] - after, after).zero_()
        return Responses(crop(around, own, window), around)

    def product(self, arriving: ExchangeHandle, near: Box, filters: Tensor) -> tuple[Responses, Tensor]:
        """Return ``Wx`` of own blocks and the complete window; blocks that only see ``near`` come first."""
        window = arriving.window
        out = self.empty_responses(window)
        if self.layer is None:
            return out, arriving.finish()
        if not has_regions(window):
            out.own.copy_(product(arriving.finish(), filters, self.layer))
            return out, window
        inner = Region(self.layer.blocks_within(near))
        product_of(window, filters, self.layer, inner, out.own)
        arriving.finish()
        product_of(window, filters, self.layer, inner.complement, out.own)
        return out, window

    def gather(self, responses: Responses) -> ExchangeHandle:
        """Start the exchange of the responses that own pooling units read."""
        return self.pooling.start(responses.own, into=responses.window)

    def scatter(self, window: Tensor) -> ExchangeHandle:
        """Start the sum over ranks, at own responses, of each rank's window; it uses the window's memory."""
        own = self.partition.responses.box(self.mesh.rank)
        held = own.size and self.pooling.window.contains(own)
        return self.pooling.adjoint.start(
            window, into=crop(window, own, self.pooling.window) if held else None
        )

    def decode(self, z: Tensor, filters: Tensor) -> Tensor:
        """Return ``W'z`` on this rank's window.

        Own pixels have the sum over all ranks; other pixels are undefined.
        """
        if self.layer is None:
            window = self.empty(z, self.window, self.partition.geometry.input.channels)
            self.pixels.adjoint.start(window, into=self.own_of(window)).finish()
            return window
        own = Region(self.own)
        if has_regions(z):
            window = self.empty(z, self.window, self.layer.input.channels)
            adjoint_at(z, filters, self.layer, own.complement, window)
        else:
            window = adjoint(z, filters, self.layer)
        summed = self.pixels.adjoint.start(window, into=self.own_of(window))
        if has_regions(z):
            adjoint_at(z, filters, self.layer, own, window)
        summed.finish()
        return window

    def own_of(self, window: Tensor) -> Tensor:
        """Return a view of own pixels in a map on this rank's window."""
        rows, columns = self.own.slices
        return window[:, :, rows, columns]

    @cached_property
    def near(self) -> Box:
        """Box of the window that comes from this rank's own part of the map below."""
        if self.below is None:
            return Box.whole(self.window.shape)
        common = self.below[self.mesh.rank].intersect(self.window)
        return common.relative_to(self.window) if common.size else EMPTY_BOX

    def scales(self, norms: Tensor) -> Tensor:
        """Return ``1 / |W~|`` of own neurons, in the layout of responses."""
        geometry = self.partition.geometry.filters
        if self.layer is None:
            return norms.new_empty((geometry.depth, *self.partition.responses.box(self.mesh.rank).shape))
        return neurons_to_map(reciprocal(norms), self.layer)

    def pool(self, window: Tensor, epsilon: float) -> Tensor:
        """Compute own pooling units from the window of responses that they read."""
        units = self.partition.pooled.box(self.mesh.rank)
        if not units.size:
            return self.empty(window, units, window.shape[1])
        return ops.l2_pool(window, Smoothing(self.partition.geometry.pool.size), epsilon)

    def normalise(self, window: Tensor) -> Tensor:
        """Compute own outputs from the window of pooling units that they read."""
        norm = self.partition.geometry.norm
        if norm.size == 1:
            return window
        if not self.outputs.size:
            return self.empty(window, self.outputs, window.shape[1])
        y = ops.contrast_norm(window, norm)
        return crop(y, self.outputs, self.normalisation.window) if norm.keep else y

    def total(self, terms: list[Tensor]) -> Tensor:
        """Sum scalars over all ranks, in float64."""
        return self.mesh.sum_in_place(torch.stack([term.to(torch.float64) for term in terms]))
