"""Read a cluster description from a file or a shipped name.

Knows: the order of checks. Does not know: what a valid cluster is (cluster), how errors are worded
(recipe.error_messages).
"""

from __future__ import annotations

from pathlib import Path
from tomllib import TOMLDecodeError

from pydantic import ValidationError

from cotswold.errors import ClusterError
from cotswold.recipe import bounds as limits
from cotswold.recipe.error_messages import describe_error
from cotswold.recipe.files import ShippedFiles
from cotswold.simulate.hardware.cluster import Cluster

_FILES = ShippedFiles("cotswold.simulate", "cluster", ClusterError)


def shipped_clusters() -> list[str]:
    """Return the names of the clusters that come with Cotswold."""
    return _FILES.names()


def load_cluster(where: str | Path) -> Cluster:
    """Read a cluster from a TOML file, or the shipped cluster of that name.

    Args:
        where: Path of a file, or name of a shipped cluster.

    Returns:
        The cluster.

    Raises:
        ClusterError: The file is missing, is not TOML, or has an unknown key or an invalid value.
    """
    return parse_cluster(*_FILES.text(where))


def parse_cluster(text: str, origin: str = "cluster") -> Cluster:
    """Parse a cluster from a TOML text.

    Args:
        text: The text.
        origin: Name of the text in errors.

    Returns:
        The cluster.

    Raises:
        ClusterError: The text is not TOML, or has an unknown key or an invalid value.
    """
    try:
        return Cluster.model_validate(limits.toml(text))
    except ValidationError as error:
        raise ClusterError(f"{origin}{describe_error(error, text, (), Cluster)}") from error
    except TOMLDecodeError as error:
        raise ClusterError(f"{origin} is not TOML: {limits.shortened(str(error), 300)}") from error
    except ValueError as error:
        raise ClusterError(f"{origin} is not a valid cluster: {limits.shortened(str(error), 300)}") from error
