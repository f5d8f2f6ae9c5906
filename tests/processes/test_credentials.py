"""Tokens of a cluster of parameter servers are never sent to another machine, which must have them itself."""

from __future__ import annotations

import asyncio
import itertools
from contextlib import closing
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from cotswold.errors import UserError
from cotswold.host import Call, Token
from cotswold.host.token import CLUSTER_VARIABLE, VARIABLE
from cotswold.processes.credentials import has_any_token, inherited_credentials, token_fingerprints
from cotswold.processes.ray.agent import Agent, StartRefusal
from cotswold.processes.ray.processes import RayProcesses
from cotswold.testing.processes import play
from cotswold.transport.token_rotation import FILE_VARIABLE

OWN, CLUSTER, OTHER = Token.new(), Token.new(), Token.new()


def file_of(folder: Path, *tokens: Token) -> str:
    path = folder / "token"
    path.write_text("\n".join(each.text for each in tokens))
    path.chmod(0o600)
    return str(path)


def test_neither_the_runs_token_nor_the_clusters_is_sent_to_a_machine(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    sent: list[Any] = []

    def remote(*given: Any) -> StartRefusal:
        sent.append(given)
        return StartRefusal("it was asked", True)

    machine = SimpleNamespace(agent=SimpleNamespace(start=SimpleNamespace(remote=remote)))
    processes = RayProcesses.__new__(RayProcesses)
    processes._keys = itertools.count()
    monkeypatch.setattr(processes, "machines", dict)
    monkeypatch.setattr(processes, "_choose", lambda call, name: machine)
    monkeypatch.setattr(processes, "_call_agent", lambda name, chosen, answer: answer)
    path = file_of(tmp_path, CLUSTER)
    for more in ({CLUSTER_VARIABLE: CLUSTER.text}, {FILE_VARIABLE: path}, {}):
        call = Call("replica-1", play("wait"), {}, {VARIABLE: OWN.text, "A": "b", **more})
        with pytest.raises(UserError, match="it was asked"):
            processes.start(call)
        _, told, tokens = sent.pop()
        assert told.environ == {"A": "b"}
        assert CLUSTER.text not in repr((told, tokens)) and bool(tokens) is bool(more)


@pytest.mark.parametrize("by", ["token", "file", "another token", "no token", "no file"])
def test_a_machine_starts_only_what_knows_the_clusters_token(
    by: str, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    for name in (CLUSTER_VARIABLE, FILE_VARIABLE):
        monkeypatch.delenv(name, raising=False)
    monkeypatch.setenv(VARIABLE, OWN.text)
    has = {
        "token": {CLUSTER_VARIABLE: CLUSTER.text},
        "file": {FILE_VARIABLE: file_of(tmp_path, OTHER, CLUSTER)},
        "another token": {CLUSTER_VARIABLE: OTHER.text},
        "no token": {},
        "no file": {FILE_VARIABLE: str(tmp_path / "nothing")},
    }[by]
    for name, text in has.items():
        monkeypatch.setenv(name, text)
    agent = Agent(["json"])
    monkeypatch.setattr(agent._server, "start", lambda call: SimpleNamespace(pid=7, fileno=lambda: 0))
    monkeypatch.setattr(agent, "_set_exit", lambda key: None)

    async def started(tokens: tuple[str, ...]) -> int | StartRefusal:
        monkeypatch.setattr(asyncio.get_running_loop(), "add_reader", lambda *given: None)
        return await agent.start(1, Call("replica-1", play("wait")), tokens)

    with closing(agent._server):
        answer = asyncio.run(started(token_fingerprints({CLUSTER_VARIABLE: CLUSTER.text})))
        assert asyncio.run(started(())) == 7, "which asks for no cluster"
    if by in ("token", "file"):
        assert answer == 7
    else:
        assert isinstance(answer, StartRefusal) and answer.is_users
        assert "start its 'cotswold worker' with COTSWOLD_CLUSTER_TOKEN" in answer.why
    assert not (tmp_path / "nothing").exists()


def test_a_run_with_the_clusters_own_token_needs_no_other() -> None:
    assert has_any_token(token_fingerprints({CLUSTER_VARIABLE: OWN.text}), {VARIABLE: OWN.text})


def test_the_file_with_tokens_is_named_for_processes_in_other_folders(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    monkeypatch.chdir(tmp_path)
    assert inherited_credentials({FILE_VARIABLE: "token", "A": "b"}) == {
        FILE_VARIABLE: str(tmp_path / "token")
    }
    assert inherited_credentials({CLUSTER_VARIABLE: "x"}) == {CLUSTER_VARIABLE: "x"}
