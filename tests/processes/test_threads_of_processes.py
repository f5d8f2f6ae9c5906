"""Processes of a fork server compute with the requested number of threads."""

from __future__ import annotations

import os
import sys
from pathlib import Path

import pytest

from cotswold.host import Call, ForkServer
from cotswold.testing.processes import ended

MODULE = """
import os
from pathlib import Path
import torch
torch.mm(torch.ones(600, 600), torch.ones(600, 600))  # as careless as a module can be

def compute(path, threads):
    before = torch.get_num_threads()
    torch.set_num_threads(threads)
    torch.mm(torch.ones(600, 600), torch.ones(600, 600)).exp_()
    Path(path).write_text(f"{before} {torch.get_num_threads()} {os.environ.get('OMP_NUM_THREADS')}")
"""


@pytest.mark.parametrize("wish", [None, "2"])
def test_a_module_that_computes_when_it_is_imported_stops_no_process(
    tmp_path: Path, wish: str | None
) -> None:
    (tmp_path / "careless.py").write_text(MODULE)
    environ = {name: text for name, text in os.environ.items() if name != "OMP_NUM_THREADS"}
    sys.path.insert(0, str(tmp_path))
    try:
        server = ForkServer(["careless"], environ | ({} if wish is None else {"OMP_NUM_THREADS": wish}))
    finally:
        sys.path.remove(str(tmp_path))
    try:
        path = tmp_path / "said"
        process = server.start(Call("worker", "careless:compute", {"path": str(path), "threads": 2}))
        assert ended(process) == 0
        assert path.read_text() == f"1 2 {wish}"
    finally:
        server.close()
