"""Encrypted connections to etcd."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest
from tests.support.replication.etcd_members import Members, members

from cotswold.errors import MachineError
from cotswold.replication.metadata import Etcd, EtcdStore, Tls
from cotswold.testing import Authority


def certificates(folder: Path) -> Tls:
    """Make an authority and its certificate for 127.0.0.1."""
    try:
        made = Authority(folder).signed("client", ["127.0.0.1"])
    except MachineError as error:
        pytest.skip(str(error))
    return Tls(made.authority, made.certificate, made.key)


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return tmp_path_factory.mktemp("tls")


@pytest.fixture(scope="module")
def tls(folder: Path) -> Tls:
    return certificates(folder / "own")


@pytest.fixture(scope="module")
def encrypted(folder: Path, tls: Tls) -> Iterator[Members]:
    """Yield a member that requires certificates."""
    more = [
        f"--cert-file={tls.certificate}",
        f"--key-file={tls.key}",
        f"--trusted-ca-file={tls.authority}",
        "--client-cert-auth",
    ]
    with members(folder, 1, tls, more) as found:
        yield found


def test_with_certificates_a_transaction_is_done(encrypted: Members, tls: Tls) -> None:
    with EtcdStore(Etcd(encrypted.endpoints, tls)) as state:
        assert state.transact([("a", None)], [("a", "1")]) and state.read("") == {"a": "1"}


def test_who_has_no_certificate_is_told(encrypted: Members, tls: Tls) -> None:
    with (
        EtcdStore(Etcd(encrypted.endpoints, Tls(tls.authority))) as state,
        pytest.raises(MachineError, match=r"no member of etcd .* (do not trust each other|hung up)"),
    ):
        state.transact([], [("b", "1")])


def test_a_member_of_another_authority_is_not_trusted(encrypted: Members, tls: Tls, tmp_path: Path) -> None:
    other = certificates(tmp_path / "other")
    with (
        EtcdStore(Etcd(encrypted.endpoints, Tls(other.authority, tls.certificate, tls.key))) as state,
        pytest.raises(MachineError, match=r"do not trust each other .*CERTIFICATE_VERIFY_FAILED"),
    ):
        state.read("")


def test_who_does_not_encrypt_is_told(encrypted: Members) -> None:
    with (
        EtcdStore(Etcd(encrypted.endpoints)) as state,
        pytest.raises(MachineError, match="no member of etcd can answer"),
    ):
        state.read("")


def test_certificates_that_are_none_are_told(tls: Tls, tmp_path: Path) -> None:
    (tmp_path / "no.pem").write_text("no")
    for wrong in (Tls(tmp_path / "missing.pem"), Tls(tls.authority, tmp_path / "no.pem")):
        with pytest.raises(MachineError, match=r"cannot be read from .*\.pem.*; name files in PEM"):
            EtcdStore(Etcd(("127.0.0.1:1",), wrong))
