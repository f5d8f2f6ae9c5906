"""Windows that autograd keeps as this rank's part of a map and strips of the halo.

Knows: the pixels of a window that are this rank's own, autograd's hooks for saved tensors. Does not know:
messages, what is computed from a window.

A window is a copy of the part, with a halo. The part is usually kept as well, as the output of the operation
before. So the window is dropped after the forward pass, and assembled again in the backward pass.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from functools import cached_property, lru_cache
from typing import Any

import torch
from torch import Tensor
from torch.autograd.graph import saved_tensors_hooks

from cotswold.geometry import Box
from cotswold.mesh.maps.crop import crop
from cotswold.mesh.maps.distributed_tensor import shares_memory, version_of


@dataclass(frozen=True)
class WindowBoxes:
    """Boxes (y, x) of a plane that meet in a window; equal ones from `window_boxes` are one object."""

    own: Box
    """The pixels that this rank has."""
    inside: Box
    """The pixels of the map that the window has."""
    fill: float = 0.0
    """Value of the pixels of a window outside of the map."""

    @cached_property
    def shared(self) -> Box:
        """The pixels of the window that this rank has."""
        return self.inside.intersect(self.own)

    @cached_property
    def strips(self) -> list[Box]:
        """The pixels of the window that come from other ranks."""
        return around(self.inside, self.shared)

    def halo(self, window: Tensor, box: Box) -> list[Tensor]:
        """Copy the pixels that came from other ranks.

        Args:
            window: A window ``(image, channel, *box.shape)``.
            box: Box of the window.
        """
        return [crop(window, strip, box).clone() for strip in self.strips]

    def assemble(self, out: Tensor, box: Box, part: Tensor, halo: Sequence[Tensor] = ()) -> Tensor:
        """Write a window, and return it.

        Args:
            out: The memory to write ``(image, channel, *box.shape)``.
            box: Box of the window, which may exceed the map.
            part: The pixels that this rank has ``(image, channel, *own.shape)``.
            halo: The strips that `halo` returned; without them, their pixels are not written.
        """
        for border in around(box, self.inside) if box != self.inside else ():
            crop(out, border, box).fill_(self.fill)
        crop(out, self.shared, box).copy_(crop(part, self.shared, self.own))
        for strip, values in zip(self.strips, halo, strict=bool(halo)):
            crop(out, strip, box).copy_(values)
        return out


@lru_cache(maxsize=1024)
def window_boxes(own: Box, inside: Box, fill: float = 0.0) -> WindowBoxes:
    """Return the boxes of a window.

    Args:
        own: The pixels that this rank has.
        inside: The pixels of the map that the window has.
        fill: Value of the pixels of a window outside of the map.
    """
    return WindowBoxes(own, inside, fill)


def around(box: Box, inner: Box) -> list[Box]:
    """Split a box without an inner one into non-empty strips: above, below, left, right."""
    if not inner.size:
        return [box] if box.size else []
    (top, left), (bottom, right) = box.start, box.stop
    (y0, x0), (y1, x1) = inner.start, inner.stop
    strips = (
        Box((top, left), (y0, right)),
        Box((y1, left), (bottom, right)),
        Box((y0, left), (y1, x0)),
        Box((y0, x1), (y1, right)),
    )
    return [strip for strip in strips if strip.size]


class _Kept(torch.autograd.Function):
    """Keeps tensors as an operation of torch does: outer hooks see them, and changes in place are errors."""

    @staticmethod
    def forward(ctx: Any, anchor: Tensor, *values: Tensor) -> Tensor:
        ctx.save_for_backward(*values)
        return anchor.new_empty(0)

    @staticmethod
    def backward(ctx: Any, *_: Any) -> Any:
        raise AssertionError("nothing depends on the output")


class _Keeper:
    """Tensors that are kept once `keep` is called, after the operations that saved them."""

    def __init__(self, *values: Tensor) -> None:
        self._values: tuple[Tensor, ...] = values
        self._versions = [version_of(one) for one in values]
        self._is_changed = False
        self._node: Any = None

    def keep(self) -> None:
        self._find_changes()
        anchor = torch.empty(0, requires_grad=True)
        self._node = _Kept.apply(anchor, *self._values).grad_fn  # type: ignore[no-untyped-call]  # torch's
        self._values = ()

    def values(self) -> tuple[Tensor, ...]:
        if self._node is None:
            self._find_changes()
        if self._is_changed:
            raise RuntimeError(
                "one of the variables needed for gradient computation has been modified by an inplace "
                "operation of a layer on a grid of ranks; change a copy of it"
            )
        return self._values if self._node is None else tuple(self._node.saved_tensors)

    def _find_changes(self) -> None:
        """Compare versions: torch does not compare those of tensors that hooks have packed."""
        self._is_changed = [version_of(one) for one in self._values] != self._versions


@dataclass(frozen=True, eq=False)
class _SavedView:
    """A view of a window that an operation saved, without its memory."""

    box: Box
    window: tuple[torch.Size, tuple[int, ...]]
    view: tuple[torch.Size, tuple[int, ...], int]


@contextmanager
def kept_as_parts(boxes: WindowBoxes, part: Tensor, *windows: tuple[Tensor, Box]) -> Iterator[None]:
    """Let operations in a `with` block save the part and the halo in place of windows.

    Args:
        boxes: Where the pixels of the windows come from.
        part: The pixels that this rank has ``(image, channel, *boxes.own.shape)``.
        windows: Windows ``(image, channel, *box.shape)`` of the same pixels, and their boxes, which contain
            ``boxes.inside``.
    """
    copies = [(one.detach(), box, version_of(one)) for one, box in windows if _is_copy(one, part)]
    if not copies or 2 * boxes.shared.size < boxes.own.size or not _has_hooks():
        yield  # a part of which the window has little would need more memory than the window
        return
    parts: list[_Keeper] = []
    others: list[_Keeper] = []

    def pack(values: Tensor) -> _SavedView | _Keeper:
        for one, box, version in copies:
            is_same = shares_memory(one, values) and one.dtype == values.dtype
            if is_same and version_of(one) == version:  # otherwise the operation has changed its window
                if not parts:
                    parts.append(_Keeper(part.detach(), *boxes.halo(one, box)))
                view = values.shape, values.stride(), int(values.storage_offset())
                return _SavedView(box, (one.shape, one.stride()), view)
        others.append(_Keeper(values.detach()))
        return others[-1]

    def unpack(saved: _SavedView | _Keeper) -> Tensor:
        if isinstance(saved, _Keeper):
            return saved.values()[0]
        own, *halo = parts[0].values()
        window = own.new_empty_strided(*saved.window)
        return boxes.assemble(window, saved.box, own, halo).as_strided(*saved.view)

    with saved_tensors_hooks(pack, unpack):
        yield
    copies.clear()
    for each in (*parts, *others):
        each.keep()


def _is_copy(window: Tensor, part: Tensor) -> bool:
    """True for a window with memory of its own."""
    return not shares_memory(window, part) and window.untyped_storage().nbytes() == window.nbytes


def _has_hooks() -> bool:
    """True if gradients are recorded, and nobody has forbidden hooks for saved tensors."""
    is_allowed: bool = torch._C._autograd._saved_tensors_hooks_is_enabled()  # type: ignore[attr-defined]  # not in its stubs
    return torch.is_grad_enabled() and is_allowed
