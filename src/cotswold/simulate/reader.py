"""From a file or a shipped name to a checked cluster.

Knows: TOML, where shipped clusters lie. Does not know: what a valid cluster is (cluster), nor how its
mistakes are worded (recipe.complaints).
"""

from __future__ import annotations

import tomllib
from difflib import get_close_matches
from importlib import resources
from pathlib import Path

from pydantic import ValidationError

from cotswold.errors import ClusterError
from cotswold.recipe.complaints import complaint
from cotswold.simulate.cluster import Cluster


def shipped_clusters() -> list[str]:
    """Names of the clusters that come with Cotswold."""
    folder = resources.files("cotswold.simulate") / "shipped"
    return sorted(file.name.removesuffix(".toml") for file in folder.iterdir() if file.name.endswith(".toml"))


def load_cluster(where: str | Path) -> Cluster:
    """The cluster in a TOML file, or the shipped one of that name.

    Raises ClusterError for a missing file, a mistake in TOML, an unknown key, a value of the wrong kind.
    """
    return parse_cluster(*_read(where))


def parse_cluster(text: str, origin: str = "cluster") -> Cluster:
    """The cluster in a TOML text; ``origin`` names it in errors. See :func:`load_cluster`."""
    try:
        return Cluster.model_validate(tomllib.loads(text))
    except tomllib.TOMLDecodeError as error:
        raise ClusterError(f"{origin} is not TOML: {error}") from error
    except ValidationError as error:
        raise ClusterError(f"{origin}{complaint(error, text, (), Cluster)}") from error


def _read(where: str | Path) -> tuple[str, str]:
    path, names = Path(where), shipped_clusters()
    if path.is_file():
        try:
            return path.read_text(encoding="utf-8"), str(path)
        except UnicodeDecodeError as error:
            raise ClusterError(f"{path} is not a text in UTF-8; a cluster is a TOML file") from error
        except OSError as error:
            raise ClusterError(f"{path} cannot be read: {error.strerror}") from error
    name = str(where).removesuffix(".toml")
    if name in names:
        file = resources.files("cotswold.simulate") / "shipped" / f"{name}.toml"
        return file.read_text(encoding="utf-8"), f"{name}.toml"
    if path.is_dir():
        raise ClusterError(f"{path} is a folder; name a cluster's TOML file")
    close = get_close_matches(name, names, n=1)
    guess = f"; did you mean {close[0]}?" if close else ";"
    raise ClusterError(
        f"there is no cluster file {str(where)!r}{guess} shipped clusters are {', '.join(names)}"
    )
