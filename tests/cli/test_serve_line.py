"""The progress line and the warnings of `cotswold serve`."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import replace
from pathlib import Path
from types import SimpleNamespace

import pytest
from tests.support.cli.command import cotswold

from cotswold.api.servers.parameter_server import ServedStatus
from cotswold.cli.serve import _line

ONE = ServedStatus(("client-1",), 1, 0.2, 1, 0, 0.5, 3, {})


def test_one_of_a_kind_is_one() -> None:
    assert _line(ONE) == "1 client, 1 push (0/s), staleness 0.5 (at most 3), 1 sample counted"
    many = replace(ONE, clients=(), pushes=600, samples=38400, torn=7, refused={"stale": 2})
    assert _line(many).startswith("0 clients, 600 pushes (0/s), ")
    assert _line(many).endswith("38,400 samples counted, 7 torn; refused 2 stale")


def test_a_quiet_server_still_prints_its_address_and_that_nothing_is_saved(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    @contextmanager
    def serve(module: object, **settings: object) -> Iterator[SimpleNamespace]:
        yield SimpleNamespace(address="127.0.0.1:1", status=ONE, wait=lambda seconds: True)

    monkeypatch.setattr("cotswold.api.servers.parameter_server.serve", serve)
    monkeypatch.setattr("cotswold.api.servers.parameter_server.build_module", lambda name: None)
    words = ("serve", "--module", "net:make", "--token-file", tmp_path / "token", "-q")
    said = cotswold(*words)
    assert said.status == 0 and "serving net:make at 127.0.0.1:1; the token: " in said.err
    assert "nothing is saved; give --save FOLDER to save the parameters" in said.err
    assert len(cotswold(*words, "--save", tmp_path).err.splitlines()) == 1
