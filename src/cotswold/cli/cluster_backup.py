"""`cotswold cluster backup` and `restore`.

Knows: the words of the commands. Does not know: what is in a backup.
"""

from __future__ import annotations

from pathlib import Path

from cotswold.cli.cluster_state import CONTROLLERS, operator_of


def backup(
    folder: Path,
    *,
    run: str | None = None,
    controllers: str = CONTROLLERS,
    token_file: Path | None = None,
) -> None:
    """Write all that a cluster has of its runs into a folder, while they go on.

    Each part of the parameters is as it was at one moment; the parts are not of the same
    moment. Beside it, in `checkpoints`, are the parameters of each run by the names of its
    tensors, as an ordinary checkpoint: safetensors files with a manifest of checksums.

    Examples:

      cotswold cluster backup backups/monday --token-file token
      cotswold cluster backup backups/one --run c83a

    Parameters
    ----------
    folder
        A new folder.
    run
        This run alone, as `cotswold cluster status` names it.
    controllers
        HOST or HOST:PORT of the controllers, with commas.
    token_file
        The file with the cluster's secret; that in COTSWOLD_CLUSTER_TOKEN_FILE, COTSWOLD_CLUSTER_TOKEN or
        COTSWOLD_TOKEN by default.
    """
    from cotswold.api.backups import write_backup
    from cotswold.api.progress import say, stages

    with operator_of(controllers, token_file) as operator, stages() as show:
        found = write_backup(operator, folder, run, lambda doing, done: show(doing, done))
    say(f"{folder}: {found}")


def restore(
    backup: Path,
    *,
    folder: Path = Path("cluster"),
    listen: str = "127.0.0.1",
    name: str = "",
    controllers: str | None = None,
    etcd: str | None = None,
    etcd_ca: Path | None = None,
    etcd_cert: Path | None = None,
    etcd_key: Path | None = None,
    etcd_prefix: str = "cotswold/",
) -> None:
    """Put a backup where a new cluster finds it: before its first host is started, in that host's folder.

    Then the command that it says has one of that host's servers go on from there, and
    others get copies. What came after the backup is lost.

    Examples:

      cotswold cluster restore backups/monday --folder cluster

      cotswold cluster restore monday --controllers a,b,c --etcd a:2379

    Parameters
    ----------
    backup
        What `cotswold cluster backup` wrote.
    folder
        That of the host that is started first; nothing of a cluster is in it.
    listen
        As for `cotswold cluster start`.
    name
        As for `cotswold cluster start`.
    controllers
        As for `cotswold cluster start`, to be said.
    etcd
        HOST:PORT of the members of an etcd, where controllers keep their state there, in which there is
        nothing with these keys.
    etcd_ca
        The file with the certificate of etcd's authority.
    etcd_cert
        The file with a certificate of this client, where etcd asks for one.
    etcd_key
        The file with the key to that.
    etcd_prefix
        Before all keys; 128 bytes at most.
    """
    from cotswold.api.backups import restore_backup
    from cotswold.api.progress import say
    from cotswold.cli.cluster_start import state_place

    place = state_place(etcd, etcd_ca, etcd_cert, etcd_key, etcd_prefix)
    say(restore_backup(backup, folder, listen, name, place, controllers))
