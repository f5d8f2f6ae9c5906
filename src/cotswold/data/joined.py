"""Sources that other packages bring.

Knows: entry points. Does not know: what lies behind one.
"""

from __future__ import annotations

from importlib.metadata import entry_points
from typing import TYPE_CHECKING

from cotswold.errors import SourceError

if TYPE_CHECKING:
    from cotswold.data.source import Labels, Source
    from cotswold.data.vectors import VectorSource

GROUP = "cotswold.sources"


def is_joined(text: str) -> bool:
    """Whether a source's name begins with a scheme that another package has: `scheme:...`."""
    scheme, colon, _ = text.partition(":")
    return bool(colon) and scheme.isidentifier() and bool(entry_points(group=GROUP, name=scheme))


def open_joined(
    text: str, include: tuple[str, ...], exclude: tuple[str, ...], labels: Labels
) -> Source | VectorSource:
    """The source that the scheme's entry point opens: ``(text, include, exclude, labels) -> source``.

    Raises SourceError where it cannot be loaded or gives something else, and what it raises.
    """
    from cotswold.data.source import Source
    from cotswold.data.vectors import VectorSource

    (point, *_) = entry_points(group=GROUP, name=text.partition(":")[0])
    try:
        opened = point.load()
    except Exception as error:  # whatever it is, it is the package's
        raise SourceError(
            f"{text[:80]} cannot be opened: the entry point {point.value} of {GROUP} cannot be loaded "
            f"({type(error).__name__}: {error}); mend or remove that package"
        ) from error
    found = opened(text, include, exclude, labels)
    if not isinstance(found, Source | VectorSource):
        raise SourceError(
            f"the entry point {point.value} of {GROUP} gave a {type(found).__name__}, no Source"
        )
    return found
