"""The page about data parallelism is true, on four ranks."""

from __future__ import annotations

import re
from pathlib import Path

from tests.support.mesh.ranks import on_ranks

from cotswold import recipe

PAGE = Path(__file__).parents[2] / "docs" / "data-parallel.md"
TEXT = PAGE.read_text(encoding="utf-8")


def _blocks(language: str) -> list[str]:
    return re.findall(rf"^```{language}\n(.*?)^```", TEXT, re.DOTALL | re.MULTILINE)


def _run(block: str) -> None:
    exec(compile(block, str(PAGE), "exec"), {"__name__": "docs"})


def test_the_loop_of_the_page_runs() -> None:
    (block,) = _blocks("python")
    on_ranks(4, _run, block)


def test_the_settings_of_the_page_are_those_of_recipes(tmp_path: Path) -> None:
    (block,) = _blocks("toml")
    file = tmp_path / "x.toml"
    file.write_text(
        'name = "x"\ndata = { type = "vectors", source = "x.npy", labels = "file" }\n'
        'network = { layers = [{ type = "linear", features = 2 }] }\n'
        f'training = {{ strategy = "supervised" }}\n{block}'
    )
    mesh = recipe.load(file).mesh
    assert (mesh.replicas, mesh.grid, mesh.sync_batchnorm) == (2, "1x2", True)
