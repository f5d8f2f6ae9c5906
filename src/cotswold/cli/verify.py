"""`cotswold verify`.

Knows: the words of the command. Does not know: what is checked.
"""

from __future__ import annotations

import json
from pathlib import Path
from typing import Annotated

from cyclopts import Parameter


def verify(
    path: Path,
    *,
    json_: Annotated[bool, Parameter(name="--json", negative=())] = False,
) -> int:
    """Check everything that a run, a store or a backup holds, without training: every byte of every file.

    Of a run: its recipe, environment, events, checkpoints and results. Of a store:
    its manifest, every file, every label. Of a backup that `cotswold cluster backup`
    wrote: every bucket, every checkpoint. Nothing is changed, and a run may be
    trained meanwhile. Exit code 0: sound; 1: damaged, each damage in a line; 2: none
    of these.

    Examples:

      cotswold verify runs/demo
      cotswold verify stores/mine --json
      cotswold verify backups/monday

    Parameters
    ----------
    path
        The directory of a run, of a store or of a backup.
    json_
        Print JSON.
    """
    import cotswold
    from cotswold.ui.progress import printable

    found = cotswold.verify(path, progress=True)
    if json_:
        told = {"kind": found.kind, "sound": found.sound, "findings": found.findings}
        print(json.dumps({"path": str(path), **told}))
    else:
        for finding in found.findings or [f"{path}: a sound {found.kind} ({', '.join(found.checked)})"]:
            print(printable(finding))
    return 0 if found.sound else 1
