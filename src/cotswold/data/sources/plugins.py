"""Sources that other packages bring.

Knows: entry points. Does not know: what lies behind one.
"""

from __future__ import annotations

from importlib.metadata import EntryPoint, entry_points
from typing import TYPE_CHECKING

from cotswold.errors import CotswoldError, SourceError, told

if TYPE_CHECKING:
    from cotswold.data.sources.base import Labels, Source
    from cotswold.data.sources.vectors import VectorSource

GROUP = "cotswold.sources"


def is_joined(text: str) -> bool:
    """Whether a source's name begins with a scheme that another package has: `scheme:...`."""
    scheme, colon, _ = text.partition(":")
    return bool(colon) and scheme.isidentifier() and bool(entry_points(group=GROUP, name=scheme))


def schemes() -> list[str]:
    """The schemes of installed packages, each with its colon."""
    return sorted(f"{name}:" for name in entry_points(group=GROUP).names)


def open_joined(
    text: str, include: tuple[str, ...], exclude: tuple[str, ...], labels: Labels
) -> Source | VectorSource:
    """The source that the scheme's entry point opens: ``(text, include, exclude, labels) -> source``.

    Raises SourceError where it cannot be loaded, raises, or gives something else, and where two packages have
    the scheme.
    """
    from cotswold.data.sources.base import Source
    from cotswold.data.sources.vectors import VectorSource

    scheme = text.partition(":")[0]
    points = {point.value: point for point in entry_points(group=GROUP, name=scheme)}
    if len(points) > 1:
        origins = " and ".join(sorted(map(_origin, points.values())))
        raise SourceError(
            f"{text[:80]} cannot be opened: {origins} bring sources {scheme}:; remove all packages but one"
        )
    (point,) = points.values()
    try:
        opened = point.load()
    except Exception as error:  # whatever it is, it is the package's
        raise SourceError(
            f"{text[:80]} cannot be opened: the entry point {point.value} of {GROUP} cannot be loaded "
            f"({type(error).__name__}: {error}); mend or remove that package"
        ) from error
    try:
        found = opened(text, include, exclude, labels)
    except (CotswoldError, MemoryError):
        raise
    except Exception as error:  # as above
        raise SourceError(
            f"{text[:80]} cannot be opened: {point.value}(text, include, exclude, labels) failed "
            f"({told(error, point.module)}); mend the package or the name"
        ) from error
    if not isinstance(found, Source | VectorSource):
        raise SourceError(
            f"the entry point {point.value} of {GROUP} gave a {type(found).__name__}, no Source"
        )
    return found


def _origin(point: EntryPoint) -> str:
    return point.value if point.dist is None else f"{point.dist.name} ({point.value})"
