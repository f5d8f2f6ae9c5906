"""From a file or a shipped name to a checked cluster.

Knows: the order of checks. Does not know: what a valid cluster is (cluster), nor how its
mistakes are worded (recipe.error_messages).
"""

from __future__ import annotations

from pathlib import Path
from tomllib import TOMLDecodeError

from pydantic import ValidationError

from cotswold.errors import ClusterError
from cotswold.recipe import bounds as limits
from cotswold.recipe.error_messages import complaint
from cotswold.recipe.files import ShippedFiles
from cotswold.simulate.cluster import Cluster

_FILES = ShippedFiles("cotswold.simulate", "cluster", ClusterError)


def shipped_clusters() -> list[str]:
    """Names of the clusters that come with Cotswold."""
    return _FILES.names()


def load_cluster(where: str | Path) -> Cluster:
    """The cluster in a TOML file, or the shipped one of that name.

    Raises ClusterError for a missing file, a mistake in TOML, an unknown key, a value of the wrong kind.
    """
    return parse_cluster(*_FILES.text(where))


def parse_cluster(text: str, origin: str = "cluster") -> Cluster:
    """The cluster in a TOML text; ``origin`` names it in errors. See :func:`load_cluster`."""
    try:
        return Cluster.model_validate(limits.toml(text))
    except ValidationError as error:
        raise ClusterError(f"{origin}{complaint(error, text, (), Cluster)}") from error
    except TOMLDecodeError as error:
        raise ClusterError(f"{origin} is not TOML: {limits.shortened(str(error), 300)}") from error
    except ValueError as error:
        raise ClusterError(f"{origin} is no cluster: {limits.shortened(str(error), 300)}") from error
