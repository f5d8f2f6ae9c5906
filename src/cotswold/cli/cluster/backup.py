"""`cotswold cluster backup` and `restore`.

Knows: the arguments of the commands. Does not know: the content of a backup.
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
    """Back up all runs of a cluster into a new folder, while they continue.

    Each bucket of the parameters is consistent in itself; different buckets may be from
    different moments. In addition, `checkpoints/RUN` has the parameters of each run by
    tensor name: safetensors files with a manifest of checksums. `cotswold verify FOLDER`
    reads every byte of a backup; `cotswold cluster restore` starts a new cluster from it.
    A run does not need a backup: `cotswold train --resume` uses its own checkpoints.

    Examples:

      cotswold cluster backup backups/monday --token-file token
      cotswold cluster backup backups/one --run c83a

    Parameters
    ----------
    folder
        A new folder, which must not exist.
    run
        Back up this run only, by its name in `cotswold cluster status`; an unambiguous prefix is enough.
        Default: all runs.
    controllers
        HOST or HOST:PORT of the controllers, separated by commas.
    token_file
        The file with the cluster's secret. Default: COTSWOLD_CLUSTER_TOKEN_FILE, COTSWOLD_CLUSTER_TOKEN or
        COTSWOLD_TOKEN.
    """
    from cotswold.api.servers.backups import write_backup
    from cotswold.ui.terminal import print_result, show_stages

    with operator_of(controllers, token_file) as operator, show_stages() as show:
        found = write_backup(operator, folder, run, lambda doing, done: show(doing, done))
    print_result(found)


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
    """Put a backup into the folder of a host before its first start: a new cluster starts from it.

    (1) Run this command on the first host, with the --listen, --name, --controllers and
    --etcd that it will have. (2) On the same host run the `cotswold cluster start` that
    is printed, with --token-file and --servers: one of its servers loads the backup, and
    others receive copies. (3) Start the other hosts. Changes after the backup are lost. If
    the command fails, it leaves nothing behind. Runs do not continue from a backup:
    `cotswold train --resume` starts from the run's own checkpoint, and `cotswold cluster
    remove RUN` deletes restored parameters that are no longer needed.

    Examples:

      cotswold cluster restore backups/monday --folder cluster

      cotswold cluster restore monday --listen a --controllers a,b,c --etcd a:2379

    Parameters
    ----------
    backup
        The folder that `cotswold cluster backup` wrote.
    folder
        The --folder of the first host; it must not contain a cluster.
    listen
        The --listen of that host: its servers are named after it.
    name
        The --name of that host, if it will have one.
    controllers
        The --controllers of that host, if not only itself: for the printed command.
    etcd
        HOST:PORT of the members of an etcd, if controllers keep their state there; it must not contain these
        keys.
    etcd_ca
        The certificate file of etcd's authority.
    etcd_cert
        The certificate file of this client, if etcd requires one.
    etcd_key
        The key file of that certificate.
    etcd_prefix
        Prefix of all keys; 128 bytes at most.
    """
    from cotswold.api.servers.backups import restore_backup
    from cotswold.cli.cluster.host import state_place
    from cotswold.ui.terminal import print_result

    place = state_place(etcd, etcd_ca, etcd_cert, etcd_key, etcd_prefix)
    print_result(restore_backup(backup, folder, listen, name, place, controllers))
