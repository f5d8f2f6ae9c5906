"""The logo: shapes alone, with colours for light and dark pages."""

from __future__ import annotations

from itertools import combinations
from math import hypot
from pathlib import Path
from xml.etree import ElementTree

LOGO = Path(__file__).parents[2] / "docs" / "assets" / "logo.svg"
SVG = "{http://www.w3.org/2000/svg}"


def test_the_logo_is_drawn_from_shapes_and_has_a_description() -> None:
    root = ElementTree.fromstring(LOGO.read_text(encoding="utf-8"))
    assert root.get("viewBox") == "0 0 128 128" and root.get("role") == "img"
    assert root.findtext(f"{SVG}title") == "Cotswold" and root.findtext(f"{SVG}desc")
    tags = {each.tag.removeprefix(SVG) for each in root.iter()}
    assert tags == {"svg", "title", "desc", "style", "mask", "rect", "g", "path", "circle"}
    assert "prefers-color-scheme: dark" in (root.findtext(f"{SVG}style") or "")


def test_its_nodes_are_inside_the_picture_and_apart() -> None:
    root = ElementTree.fromstring(LOGO.read_text(encoding="utf-8"))
    circles = root.findall(f"{SVG}circle")
    nodes = [tuple(float(each.get(name, "nan")) for name in ("cx", "cy", "r")) for each in circles]
    assert len(nodes) == 9
    assert all(r < x < 128 - r and r < y < 128 - r for x, y, r in nodes)
    assert all(hypot(a[0] - b[0], a[1] - b[1]) > a[2] + b[2] + 2 for a, b in combinations(nodes, 2))
