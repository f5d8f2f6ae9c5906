"""Python objects for the processes of a run, in a file of this machine.

Knows: cloudpickle, which also takes functions and classes of a script or notebook. Does not know: what the
objects are for.

The file lies in a temporary folder that only this user can read, and is removed when the run ends. Nothing
else is unpickled: no message, and no file of a run.
"""

from __future__ import annotations

import pickle
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import cloudpickle

from cotswold.errors import UserError, describe_exception

COMPONENTS = "COTSWOLD_COMPONENTS"
"""The environment variable with the file of a recipe's components."""


def write_objects(file: Path, objects: Mapping[str, object], remedy: str) -> None:
    """Write objects by name; raises UserError, with a remedy, that names an object that cannot be pickled."""
    try:
        file.write_bytes(cloudpickle.dumps(dict(objects)))
    except Exception as error:  # pickle raises many types
        culprit = next((name for name, each in objects.items() if not _can_pickle(each)), "request")
        raise UserError(
            f"the {culprit} cannot be sent to other processes ({describe_exception(error)}); {remedy}"
        ) from error


def read_objects(file: Path) -> dict[str, Any]:
    """Return the objects of a file by name."""
    found: dict[str, Any] = pickle.loads(file.read_bytes())
    return found


def _can_pickle(given: object) -> bool:
    try:
        cloudpickle.dumps(given)
    except Exception:
        return False
    return True
