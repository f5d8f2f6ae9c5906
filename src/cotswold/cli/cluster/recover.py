"""`cotswold cluster recover`: rebuild the controllers' state from the disks of servers.

Knows: the arguments of the command. Does not know: the content of a disk.
"""

from __future__ import annotations

from pathlib import Path


def recover(
    *others: Path,
    folder: Path = Path("cluster"),
    without: str = "",
    etcd: str | None = None,
    etcd_ca: Path | None = None,
    etcd_cert: Path | None = None,
    etcd_key: Path | None = None,
    etcd_prefix: str = "cotswold/",
) -> None:
    """Rebuild lost or damaged state of the controllers from the disks of servers.

    (1) Stop `cotswold cluster start` and `add` on all hosts. (2) Run this command on the
    host of the controller, with the folders of other hosts, as copies or over a network
    file system, unless this host has a copy of everything. (3) Start the hosts as before;
    the runs continue. For each bucket of the parameters, controllers then choose the server
    that lost the least; they wait up to a minute for absent servers that may have more.
    A damaged state.sqlite is renamed. A cluster whose controller and servers are on one
    host recovers automatically when it starts. Drained servers are no longer drained.

    Examples:

      cotswold cluster recover --folder cluster

      cotswold cluster recover /mnt/b/cluster /mnt/c/cluster --etcd a:2379,b:2379

    Parameters
    ----------
    others
        Folders of other hosts of the cluster.
    folder
        The --folder of this host.
    without
        Runs to leave out, separated by commas: servers then delete them.
    etcd
        HOST:PORT of the members of an etcd, if controllers keep their state there.
    etcd_ca
        The certificate file of etcd's authority.
    etcd_cert
        The certificate file of this client, if etcd requires one.
    etcd_key
        The key file of that certificate.
    etcd_prefix
        Prefix of all keys; 128 bytes at most.
    """
    from cotswold.cli.cluster.host import state_place
    from cotswold.errors import UserError
    from cotswold.files import DirectoryLock
    from cotswold.replication.metadata_recovery import read_disks, recover
    from cotswold.replication.runtime.host_settings import DISKS_FOLDER, METADATA_FILE
    from cotswold.ui.terminal import print_result

    place = state_place(etcd, etcd_ca, etcd_cert, etcd_key, etcd_prefix)
    if lacking := [each for each in (folder, *others) if not (each / DISKS_FOLDER).is_dir()]:
        raise UserError(f"{lacking[0]} has no server disks; give the --folder of a host")
    with DirectoryLock(folder, "cluster host"):
        disks = [disk for each in (folder, *others) for disk in sorted((each / DISKS_FOLDER).iterdir())]
        left_out = [each.strip() for each in without.split(",") if each.strip()]
        has = recover(place or folder / METADATA_FILE, read_disks(disks), left_out)
    print_result(f"recovered {has}; now start the hosts of the cluster as before")
