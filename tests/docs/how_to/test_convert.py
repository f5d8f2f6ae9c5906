"""docs/how-to/convert-a-ddp-script.md: each version of the script trains, and computes what it should."""

from __future__ import annotations

import re
import sys
from pathlib import Path
from typing import Any

import pytest
import torch
import torch.distributed as dist
from tests.support.mesh.ranks import on_ranks
from torch import Tensor

import cotswold

PAGE = Path(__file__).parents[3] / "docs" / "how-to" / "convert-a-ddp-script.md"
SECTIONS: dict[str, list[str]] = {
    section.partition("\n")[0]: re.findall(r"```python\n(.*?)```", section, flags=re.DOTALL)
    for section in PAGE.read_text(encoding="utf-8").split("\n## ")
}
(BEFORE,) = SECTIONS["# Convert a DDP script"]
SETUP, _, LOOP = BEFORE.partition("\nmodel = DistributedDataParallel(model)")
"""The script up to its loop: the process group, the samples and the plain network."""


def trained(program: str) -> tuple[Tensor, float]:
    """Run a program on a rank whose process group exists; return its parameters and its last loss."""
    names: dict[str, Any] = {}
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(dist, "init_process_group", lambda backend: None)
        exec(compile(program, PAGE.name, "exec"), names)
    whole = [getattr(each, "full_tensor", lambda each=each: each)() for each in names["model"].parameters()]
    return torch.cat([each.detach().flatten() for each in whole]), float(names["loss"].detach())


def of(heading: str) -> str:
    (block,) = SECTIONS[heading]
    assert block.startswith("# instead of the loop")
    return SETUP + "\n" + block


def test_the_sections_of_the_page_are_those_of_its_table() -> None:
    assert "DistributedSampler(dataset)" in LOOP
    assert list(SECTIONS)[1:] == [
        "Keep DDP, and name dead ranks",
        "Let Cotswold run the loop",
        "Replicas of Cotswold in your loop",
        "Partition the network",
        "L-BFGS under DDP",
        "Asynchronous training",
    ]


def test_replicas_and_joined_ranks_compute_what_ddp_computes() -> None:
    (expected, loss), (other, _) = on_ranks(2, trained, BEFORE)
    assert torch.equal(expected, other) and loss < 0.6
    for heading in ("Keep DDP, and name dead ranks", "Replicas of Cotswold in your loop"):
        for found, _ in on_ranks(2, trained, of(heading)):
            torch.testing.assert_close(found, expected, rtol=1e-4, atol=1e-5)


def test_the_partitioned_network_computes_what_one_process_computes() -> None:
    program = of("Partition the network")
    alone, loss = trained(program.replace('"1x2"', '"1x1"'))
    assert loss < 0.6
    for found, _ in on_ranks(2, trained, program):
        torch.testing.assert_close(found, alone, rtol=1e-4, atol=1e-5)


def test_all_ranks_take_the_same_steps_of_lbfgs() -> None:
    (first, loss), (second, other) = on_ranks(2, trained, of("L-BFGS under DDP"))
    assert torch.equal(first, second) and loss == other < 0.1


@pytest.mark.slow
def test_the_program_without_a_loop_trains_and_continues(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    (program,) = SECTIONS["Let Cotswold run the loop"]
    names: dict[str, Any] = {}
    exec(compile(program, PAGE.name, "exec"), names)
    run = names["run"]
    assert run.status == "finished" and run.loss < 0.6
    assert run.recipe.mesh.replicas == 2


@pytest.mark.slow
def test_the_loop_on_servers_pushes_every_batch(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    monkeypatch.syspath_prepend(tmp_path)
    module, loop = SECTIONS["Asynchronous training"]
    Path("my_module.py").write_text(module)
    made: dict[str, Any] = {}
    exec(compile(module, PAGE.name, "exec"), made)
    try:
        with cotswold.serve(made["make_model"](), update_rule="sgd", learning_rate=0.05) as served:
            Path("token").touch(0o600)
            Path("token").write_text(served.token)
            monkeypatch.setattr(sys, "argv", ["loop.py", served.address, "1"])
            names: dict[str, Any] = {}
            exec(compile(loop, PAGE.name, "exec"), names)
    finally:
        sys.modules.pop("my_module", None)
    assert names["order"].initial_seed() == 1 and names["loss"].item() < 0.7
    assert served.status.pushes == 3 * 16 and served.status.samples == 3 * 512
