"""Which interface Gloo is told."""

from __future__ import annotations

import socket
import sys

import pytest

from cotswold.host.interface import interface_to

pytestmark = pytest.mark.skipif(sys.platform != "linux", reason="the system does not say")


def test_the_loopback_leads_to_this_host() -> None:
    assert interface_to("127.0.0.1", several_hosts=False) == "lo"
    assert interface_to("127.0.1.1", several_hosts=False) == "lo"


def test_the_loopback_never_leads_to_other_hosts() -> None:
    assert interface_to("127.0.0.1", several_hosts=True) != "lo"


def test_a_host_that_nobody_knows_has_none() -> None:
    assert interface_to("no.such.host.invalid", several_hosts=False) in {
        None,
        *(name for _, name in socket.if_nameindex() if name != "lo"),
    }
