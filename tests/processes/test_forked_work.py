"""Processes forked from a program that has computed with torch already."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest
import torch
from tests.warm import PYTHON

from cotswold.errors import UserError
from cotswold.host import Call
from cotswold.processes.forked_work import fork_server_of_work
from cotswold.testing.processes import ended

pytestmark = pytest.mark.skipif(sys.platform != "linux", reason="a program is forked on Linux alone")
PROGRAM = """
import select, sys
import torch
from cotswold.processes.forked_work import fork_server_of_work
from cotswold.host import Call, inherited

class Squares(torch.utils.data.Dataset):
    def __len__(self):
        return 8
    def __getitem__(self, index):
        return torch.full((300,), float(index)), float(index) ** 2

def learn(path):
    module, data = inherited("module"), inherited("data")
    sum(module(data[index][0]).square().sum() for index in range(8)).backward()
    torch.mm(torch.ones(700, 700), torch.ones(700, 700))
    with open(path, "w") as file:
        file.write(f"{torch.get_num_threads()} {module.weight.grad.abs().sum() > 0}")

module = torch.nn.Linear(300, 300)
torch.set_num_threads(2)
for _ in range(3):  # so that this process has threads of torch's
    module(torch.ones(500, 300)).sum().backward()
    torch.mm(torch.ones(700, 700), torch.ones(700, 700))
module.zero_grad()
server = fork_server_of_work({"module": module, "data": Squares()})
calls = [Call(f"learner {n}", "__main__:learn", {"path": f"{sys.argv[1]}/{n}"}) for n in range(2)]
processes = [server.start(call) for call in calls]
for process in processes:
    assert select.select([process], [], [], 60)[0], "it hangs"
    print(process.name, process.why())
server.close()
print(torch.get_num_threads(), module.weight.grad)
"""


def test_a_programs_own_module_and_data_set_learn_in_forks_of_it(tmp_path: Path) -> None:
    done = subprocess.run(
        [*PYTHON, "-c", PROGRAM, str(tmp_path)],
        capture_output=True,
        text=True,
        timeout=120,
        check=False,
    )
    assert done.stdout.splitlines() == [
        "learner 0 ended with exit code 0",
        "learner 1 ended with exit code 0",
        "2 None",
    ], done.stderr
    assert [(tmp_path / name).read_text() for name in "01"] == ["1 True", "1 True"]


def test_a_program_that_uses_cuda_is_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(torch.cuda, "is_initialized", lambda: True)
    with pytest.raises(UserError, match="has initialised CUDA"):
        fork_server_of_work({})


def test_what_a_process_computes_with_is_one_thread() -> None:
    server = fork_server_of_work({})
    try:
        assert ended(server.start(Call("counter", "torch:get_num_threads"))) == 1
    finally:
        server.close()
