"""An etcd on hosts that are namespaces."""

from __future__ import annotations

import shutil
from collections.abc import Mapping
from pathlib import Path

import pytest

from cotswold.errors import MachineError
from cotswold.replication.metadata import Etcd, EtcdStore, Tls
from cotswold.testing import Authority, Certificate, EtcdHosts, EtcdPlan, Hosts, wait_until, why_not

WHY_NOT = why_not()
pytestmark = [
    pytest.mark.slow,
    pytest.mark.skipif(WHY_NOT is not None, reason=str(WHY_NOT)),
    pytest.mark.skipif(shutil.which("etcd") is None, reason="etcd is not installed"),
]


def three(
    hosts: Hosts, folder: Path, certificates: Mapping[int, Certificate] | None = None, network: int = 0
) -> EtcdHosts:
    folders = [folder / f"etcd-{at}" for at in range(3)]
    return EtcdHosts(hosts, EtcdPlan(range(3), folders, network, certificates or {}))


def test_a_member_that_was_killed_goes_on_with_what_it_had(tmp_path: Path) -> None:
    with Hosts(4) as hosts, three(hosts, tmp_path) as etcd:
        with hosts.entered(3), EtcdStore(Etcd(etcd.endpoints)) as state:
            assert state.transact([], [("a", "1")])
            etcd.kill(0)
            wait_until(lambda: etcd.is_well(1), "the others go on")
            assert etcd.pid(0) is None and not etcd.is_well(0)
            assert state.transact([], [("b", "2")])
        etcd.start(0)
        etcd.wait()
        with hosts.entered(3), EtcdStore(Etcd(etcd.endpoints[:1])) as state:
            assert state.read("") == {"a": "1", "b": "2"}
    assert etcd.pid(1) is None


def test_a_member_that_is_cut_off_is_not_well_until_its_links_are_mended(tmp_path: Path) -> None:
    with Hosts(4, interfaces=2) as hosts, three(hosts, tmp_path, network=1) as etcd:
        for other in (0, 1, 3):
            hosts.cut(2, other, [1])
        wait_until(lambda: not etcd.is_well(2), "it hears of no leader")
        wait_until(lambda: etcd.is_well(0) and etcd.is_well(1), "they elect another leader if it led")
        for other in (0, 1, 3):
            hosts.mend(2, other)
        etcd.wait()


def test_members_and_clients_show_certificates(tmp_path: Path) -> None:
    authority = Authority(tmp_path / "certificates")
    with Hosts(3) as hosts:
        own = {at: authority.signed(f"host-{at}", [hosts.address(at)]) for at in range(3)}
        with three(hosts, tmp_path, own) as etcd, hosts.entered(1):
            tls = Tls(own[1].authority, own[1].certificate, own[1].key)
            with EtcdStore(Etcd(etcd.endpoints, tls)) as state:
                assert state.transact([], [("a", "1")]) and state.read("") == {"a": "1"}
            with EtcdStore(Etcd(etcd.endpoints)) as plain, pytest.raises(MachineError, match="no member of"):
                plain.read("")


def test_a_member_that_cannot_start_is_named_with_its_log(tmp_path: Path) -> None:
    (tmp_path / "etcd-1").mkdir()
    (tmp_path / "etcd-1" / "data").write_text("no folder")
    with Hosts(3) as hosts, pytest.raises(MachineError, match=r"member \d of etcd .*etcd-\d/etcd.log"):
        three(hosts, tmp_path).__enter__()
