"""Cluster files: errors are reported in a sentence."""

from __future__ import annotations

from pathlib import Path

import pytest
from tests.support.simulate.small_cases import cluster

from cotswold.bench.machine.description import toml
from cotswold.errors import ClusterError
from cotswold.simulate import load_cluster, parse_cluster, shipped_clusters

TEXT = """
name = "c"
about = "made up"
hosts = 2
devices = 1

[device]
name = "d"
peak_gflops = 100
memory_gb = 4
bandwidth = 10
rates = [
  {operation = "Wx", rate = 80},
  {operation = "W'x", rate = 70},
  {operation = "δx'", rate = 60},
]

[network]
latency_us = 10
gbits = 10
"""


def complaint(old: str, new: str) -> str:
    assert old in TEXT
    with pytest.raises(ClusterError) as raised:
        parse_cluster(TEXT.replace(old, new), "mine.toml")
    return str(raised.value)


def test_every_shipped_cluster_is_valid_and_says_where_its_numbers_are_from() -> None:
    assert {"coates2013", "dean2012", "adam2014", "h100-rack", "ethernet"} <= set(shipped_clusters())
    for name in shipped_clusters():
        assert load_cluster(name).name == name
        assert len(load_cluster(name).about) > 100


def test_a_misspelt_key_is_named_with_the_right_one() -> None:
    assert (
        complaint("gbits", "gbit")
        == "mine.toml, line 20: network.gbit is not a key; did you mean gbits? (and 1 more)"
    )


def test_a_value_of_the_wrong_kind_is_named() -> None:
    assert complaint("hosts = 2", 'hosts = "two"') == (
        "mine.toml, line 4: hosts must be an integer > 0, not 'two'"
    )


def test_a_product_without_a_rate_is_named() -> None:
    assert "device.rates must have at least one rate for W'x" in complaint(
        """  {operation = "W'x", rate = 70},\n""", ""
    )


def test_several_hosts_need_a_network() -> None:
    assert "several hosts needs [network]" in complaint("[network]\nlatency_us = 10\ngbits = 10\n", "")


def test_several_devices_need_a_link_between_them() -> None:
    assert "several devices needs [inside]" in complaint("devices = 1", "devices = 4")


def test_a_cache_needs_its_bandwidth() -> None:
    assert "needs device.cache_bandwidth" in complaint("bandwidth = 10", "bandwidth = 10\ncache_mb = 8")


def test_no_product_is_faster_than_the_peak() -> None:
    assert "device.peak_gflops is 75, but device.rates has 80 for Wx" in complaint(
        "peak_gflops = 100", "peak_gflops = 75"
    )


def test_an_offload_is_a_part() -> None:
    assert "from 0 to 1, got 2.0" in complaint("gbits = 10", "gbits = 10\noffload = 2.0")


def test_a_mistake_in_toml_is_said() -> None:
    assert complaint("hosts = 2", "hosts = ").startswith("mine.toml is not TOML: ")


def test_a_name_that_is_nearly_a_shipped_one_is_guessed() -> None:
    with pytest.raises(ClusterError, match=r"did you mean coates2013\?"):
        load_cluster("coates2012")


def test_a_folder_is_no_cluster(tmp_path: Path) -> None:
    with pytest.raises(ClusterError, match="is a folder"):
        load_cluster(tmp_path)


def test_what_a_measurement_writes_can_be_read() -> None:
    described = cluster(hosts=3, devices=2, price={"host_dollars": 5.0})
    values = described.model_dump(exclude_none=True)
    assert parse_cluster(toml(values)) == described
