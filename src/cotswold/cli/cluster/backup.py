"""`cotswold cluster backup` and `restore`.

Knows: the words of the commands. Does not know: what is in a backup.
"""

from __future__ import annotations

from pathlib import Path

from cotswold.cli.cluster.admin import CONTROLLERS, operator_of


def backup(
    folder: Path,
    *,
    run: str | None = None,
    controllers: str = CONTROLLERS,
    token_file: Path | None = None,
) -> None:
    """Write all that a cluster has of its runs into a new folder, while they go on.

    Each part of the parameters is as it was at one moment; the parts are not of the same
    moment. Beside them, in `checkpoints/RUN`, are the parameters of each run by the names
    of its tensors: safetensors files with a manifest of checksums. `cotswold verify FOLDER`
    reads every byte of a backup; `cotswold cluster restore` has a new cluster begin with
    it. A run needs none: it goes on from its own checkpoints by `cotswold train --resume`.

    Examples:

      cotswold cluster backup backups/monday --token-file token
      cotswold cluster backup backups/one --run c83a

    Parameters
    ----------
    folder
        A new folder, which is not there yet.
    run
        This run alone, as `cotswold cluster status` names it; the first letters are enough where no other has
        them. All runs by default.
    controllers
        HOST or HOST:PORT of the controllers, with commas.
    token_file
        The file with the cluster's secret; that in COTSWOLD_CLUSTER_TOKEN_FILE, COTSWOLD_CLUSTER_TOKEN or
        COTSWOLD_TOKEN by default.
    """
    from cotswold.api.servers.backups import write_backup
    from cotswold.ui.progress import say, stages

    with operator_of(controllers, token_file) as operator, stages() as show:
        found = write_backup(operator, folder, run, lambda doing, done: show(doing, done))
    say(found)


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
    """Put a backup into the folder of a host that is not started yet: a new cluster begins with it.

    (1) This, on the host that is to be the first, with the --listen, --name, --controllers
    and --etcd that it will have. (2) On the same host the `cotswold cluster start` that is
    printed, with --token-file and --servers: one of its servers begins with the backup,
    and others get copies. (3) The other hosts. What came after the backup is lost; where
    this fails nothing is left of it. Runs do not go on by it: `cotswold train --resume`
    begins with the run's own checkpoint, and `cotswold cluster remove RUN` forgets what
    was restored and nobody needs.

    Examples:

      cotswold cluster restore backups/monday --folder cluster

      cotswold cluster restore monday --listen a --controllers a,b,c --etcd a:2379

    Parameters
    ----------
    backup
        What `cotswold cluster backup` wrote.
    folder
        The --folder of the host that is started first; nothing of a cluster is in it.
    listen
        The --listen of that host: its servers are called by it.
    name
        The --name of that host, where it will have one.
    controllers
        The --controllers of that host, where it will have others than itself: for the command that is
        printed.
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
    from cotswold.api.servers.backups import restore_backup
    from cotswold.cli.cluster.host import state_place
    from cotswold.ui.progress import say

    place = state_place(etcd, etcd_ca, etcd_cert, etcd_key, etcd_prefix)
    say(restore_backup(backup, folder, listen, name, place, controllers))
