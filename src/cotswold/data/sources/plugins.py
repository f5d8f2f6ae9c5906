"""Plug-in sources of other packages.

Knows: entry points. Does not know: their implementations.
"""

from __future__ import annotations

from importlib.metadata import EntryPoint, entry_points
from typing import TYPE_CHECKING

from cotswold.errors import CotswoldError, SourceError, describe_exception

if TYPE_CHECKING:
    from cotswold.data.sources.base import Source
    from cotswold.data.sources.file_names import Labels
    from cotswold.data.sources.vectors import VectorSource

GROUP = "cotswold.sources"


def has_plugin_scheme(text: str) -> bool:
    """True if a source's name begins with the scheme of an installed plug-in: `scheme:...`."""
    scheme, colon, _ = text.partition(":")
    return bool(colon) and scheme.isidentifier() and bool(entry_points(group=GROUP, name=scheme))


def schemes() -> list[str]:
    """Return the schemes of installed packages, each with its colon."""
    return sorted(f"{name}:" for name in entry_points(group=GROUP).names)


def open_plugin_source(
    text: str, include: tuple[str, ...], exclude: tuple[str, ...], labels: Labels
) -> Source | VectorSource:
    """Open the source of a scheme's entry point: ``(text, include, exclude, labels) -> source``.

    Raises SourceError if the entry point cannot be loaded, fails or returns another type, or if two packages
    define the scheme.
    """
    from cotswold.data.sources.base import Source
    from cotswold.data.sources.vectors import VectorSource

    scheme = text.partition(":")[0]
    points = {point.value: point for point in entry_points(group=GROUP, name=scheme)}
    if len(points) > 1:
        origins = " and ".join(sorted(map(_origin, points.values())))
        raise SourceError(
            f"{text[:80]} cannot be opened: {origins} define sources {scheme}:; remove all packages but one"
        )
    (point,) = points.values()
    try:
        opened = point.load()
    except Exception as error:  # any error is the package's
        raise SourceError(
            f"{text[:80]} cannot be opened: the entry point {point.value} of {GROUP} cannot be loaded "
            f"({type(error).__name__}: {error}); fix or remove that package"
        ) from error
    try:
        found = opened(text, include, exclude, labels)
    except (CotswoldError, MemoryError):
        raise
    except Exception as error:  # as above
        raise SourceError(
            f"{text[:80]} cannot be opened: {point.value}(text, include, exclude, labels) failed "
            f"({describe_exception(error, point.module)}); fix the package or the name"
        ) from error
    if not isinstance(found, Source | VectorSource):
        raise SourceError(
            f"the entry point {point.value} of {GROUP} must return a Source, got a {type(found).__name__}"
        )
    return found


def _origin(point: EntryPoint) -> str:
    return point.value if point.dist is None else f"{point.dist.name} ({point.value})"
