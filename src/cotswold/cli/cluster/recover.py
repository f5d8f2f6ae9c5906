"""`cotswold cluster recover`: the controllers' state, made again from the disks of servers.

Knows: the words of the command. Does not know: what is on a disk.
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
    """Make the controllers' state again, where it is lost or damaged, from what servers have on disk.

    (1) End `cotswold cluster start` and `add` on all hosts. (2) This, on the host of the
    controller, with the folders of other hosts, as copies or over a network file system,
    if this host has not a copy of everything. (3) Start the hosts as before: runs go on.
    For each part of the parameters controllers then choose the server that lost the
    least; they wait up to a minute for servers that may have more than those that are
    there. A damaged state.sqlite is renamed. A cluster whose controller and servers are
    on one host does this by itself when it starts. What was drained is drained no more.

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
        Runs that are left out, with commas: servers then forget them.
    etcd
        HOST:PORT of the members of an etcd, where controllers keep their state there.
    etcd_ca
        The file with the certificate of etcd's authority.
    etcd_cert
        The file with a certificate of this client, where etcd asks for one.
    etcd_key
        The file with the key to that.
    etcd_prefix
        Before all keys; 128 bytes at most.
    """
    from cotswold.cli.cluster.host import state_place
    from cotswold.errors import UserError
    from cotswold.files import DirectoryLock
    from cotswold.replication.disk_recovery import found_on, recover
    from cotswold.replication.runtime.host_supervisor import DISKS, STATE
    from cotswold.ui.progress import say

    place = state_place(etcd, etcd_ca, etcd_cert, etcd_key, etcd_prefix)
    if lacking := [each for each in (folder, *others) if not (each / DISKS).is_dir()]:
        raise UserError(f"{lacking[0]} has no disks of servers; name the --folder of a host")
    with DirectoryLock(folder, "cluster host"):
        disks = [disk for each in (folder, *others) for disk in sorted((each / DISKS).iterdir())]
        left_out = [each.strip() for each in without.split(",") if each.strip()]
        has = recover(place or folder / STATE, found_on(disks), left_out)
    say(f"recovered {has}; now start the hosts of the cluster as before")
