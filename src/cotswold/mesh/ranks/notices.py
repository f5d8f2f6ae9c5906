"""Warnings about slow or memory-hungry operations of a mesh, given once per layer.

Knows: the module and the program line of a call. Does not know: maps, what is slow.
"""

from __future__ import annotations

import sys
import warnings
from collections.abc import Iterator
from contextlib import contextmanager, nullcontext
from typing import TYPE_CHECKING

from torch import nn

from cotswold.errors import outside_level

if TYPE_CHECKING:
    from cotswold.mesh.ranks.mesh import Mesh


def notice(mesh: Mesh, kind: str, sentence: str) -> None:
    """Warn once per layer, on the first rank of a mesh of several.

    A filter that turns warnings into errors raises on every rank, so that no rank waits for another.

    ``sentence`` contains ``{layer}``, which is replaced by the name of the innermost module that is being
    called.
    """
    if mesh.size == 1:
        return
    callers = list(_callers())
    root = next((one for one in callers if hasattr(one, "_mesh_of_maps")), None)
    layer = _module_name(callers[0], root) if callers else "a function outside of a module"
    given = mesh.noticed if root is None else vars(root).setdefault("_noticed", set())
    if (kind, layer) not in given:
        given.add((kind, layer))
        level = outside_level("cotswold", "torch")
        with _unprinted() if mesh.rank else nullcontext():
            warnings.warn(sentence.replace("{layer}", layer), RuntimeWarning, stacklevel=level)


@contextmanager
def _unprinted() -> Iterator[None]:
    """Print no warning of a `with` block; a filter may still raise it."""
    with warnings.catch_warnings():
        warnings.showwarning = lambda *_, **__: None
        yield


def _callers() -> Iterator[nn.Module]:
    """The modules whose methods are running, the innermost first."""
    frame = sys._getframe(2)
    while frame is not None:
        found = frame.f_locals.get("self")
        if isinstance(found, nn.Module):
            yield found
        frame = frame.f_back  # type: ignore[assignment]  # None at the outermost frame


def _module_name(module: nn.Module, root: nn.Module | None) -> str:
    kind = type(module).__name__
    names = () if root is None else root.named_modules(remove_duplicate=False)
    name = next((name for name, one in names if one is module), "")
    return f"{kind} {name!r}" if name else kind
