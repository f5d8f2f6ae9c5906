"""`cotswold verify`.

Knows: the arguments of the command. Does not know: the checks.
"""

from __future__ import annotations

from pathlib import Path

from cotswold.cli.support.json_output import Json, print_json


def verify(
    path: Path,
    *,
    json_: Json = False,
) -> int:
    """Check every byte of every file of a run, a store or a backup.

    For a run: recipe, environment, events, checkpoints and results. For a store:
    manifest, every file, every label. For a backup of `cotswold cluster backup`: every
    bucket, every checkpoint. Nothing is changed, and a run may be training meanwhile.
    Exit code 0: intact; 1: damaged, with one line per damage; 2: none of these.

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
    from cotswold.ui.terminal import printable

    found = cotswold.verify(path, progress=True)
    if json_:
        told = {"kind": found.kind, "is_valid": found.is_valid, "findings": found.findings}
        print_json("verify", {"path": str(path), **told})
    else:
        for finding in found.findings or [f"{path}: the {found.kind} is intact ({', '.join(found.checked)})"]:
            print(printable(finding))
    return 0 if found.is_valid else 1
