"""The containers of three unequal machines: the file parses, and its commands, files and services exist."""

from __future__ import annotations

import re
import tomllib
from ipaddress import ip_address, ip_network
from pathlib import Path
from typing import Any

import pytest
import yaml
from examples.tools.gallery import ROOT
from tests.cli.test_help_texts import parses

from cotswold.recipe import load

FOLDER = ROOT / "examples" / "machines"
TEXT = (FOLDER / "compose.yaml").read_text(encoding="utf-8")
COMPOSE: dict[str, Any] = yaml.safe_load(TEXT)
SERVICES: dict[str, dict[str, Any]] = COMPOSE["services"]
OTHER_PROGRAMS = {"digits": "python", "curves": "tensorboard"}
"""Services whose program is not `cotswold`."""


def test_the_file_starts_a_controller_servers_replicas_and_dashboards() -> None:
    assert set(SERVICES) == {
        *("servers-a", "servers-b", "servers-c", "replicas-a", "replicas-b", "replicas-c"),
        *("digits", "status", "curves"),
    }
    speeds = [SERVICES[f"replicas-{each}"]["cpus"] for each in "abc"]
    assert speeds == [1.0, 0.5, 0.25]


@pytest.mark.parametrize("name", SERVICES)
def test_commands_of_services_exist(name: str) -> None:
    service = SERVICES[name]
    if name in OTHER_PROGRAMS:
        assert service["entrypoint"][0] == OTHER_PROGRAMS[name]
        if name == "digits":
            compile(service["command"][0], "compose.yaml", "exec")
    else:
        assert "entrypoint" not in service
        parses(" ".join(["cotswold", *service["command"]]))


def test_commands_of_the_comment_exist_and_name_services() -> None:
    joined = re.sub(r" *\\\n# +", " ", TEXT)
    (line,) = re.findall(r"exec ([a-z-]+ cotswold train .*)", joined)
    service, _, words = line.partition(" ")
    assert service in SERVICES
    parses(words)
    assert "/recipes/digits.toml" in words and "./digits.toml:/recipes/digits.toml:ro" in TEXT
    address = words.partition("--address ")[2].partition(":")[0]
    assert SERVICES[service]["networks"]["machines"]["ipv4_address"] == address


def test_services_depend_on_services_and_have_addresses_of_their_own() -> None:
    wanted = {each for service in SERVICES.values() for each in service.get("depends_on", ())}
    assert wanted <= set(SERVICES)
    subnet = ip_network(COMPOSE["networks"]["machines"]["ipam"]["config"][0]["subnet"])
    networks = [each["networks"]["machines"] for each in SERVICES.values() if "networks" in each]
    addresses = [each["ipv4_address"] for each in networks]
    assert len(set(addresses)) == len(addresses) == len(SERVICES) - 1
    assert all(ip_address(each) in subnet for each in addresses)
    named = set(re.findall(r"10\.77\.0\.\d+(?!/|\d)", TEXT))
    assert named == set(addresses)


def test_servers_listen_at_the_addresses_of_their_containers() -> None:
    for each in "abc":
        service = SERVICES[f"servers-{each}"]
        words = service["command"]
        assert words[words.index("--listen") + 1] == service["networks"]["machines"]["ipv4_address"]


def test_the_image_has_the_extras_that_the_services_use() -> None:
    extras = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]["optional-dependencies"]
    for service in SERVICES.values():
        named = service["build"]["args"]["EXTRAS"].strip("[]").split(",")
        assert {"cluster", "sklearn", "tensorboard"} == set(named) <= extras.keys()
        assert (FOLDER / service["build"]["context"]).resolve() == ROOT


def test_the_recipe_of_the_machines_is_valid(tmp_path: Path) -> None:
    recipe = load(FOLDER / "digits.toml")
    assert recipe.training.strategy == "downpour"
    mounted = [each for service in SERVICES.values() for each in service.get("volumes", ()) if each[0] == "."]
    assert all((FOLDER / each.partition(":")[0]).is_file() for each in mounted)
