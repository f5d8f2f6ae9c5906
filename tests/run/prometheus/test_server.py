"""The endpoint for Prometheus: replies, access, and two runs with one port."""

from __future__ import annotations

import http.client
import socket
import urllib.error
import urllib.request
from collections.abc import Iterator

import pytest
from tests.run.prometheus.test_exposition import parsed

from cotswold.errors import UserError
from cotswold.recipe.schema.cluster import metrics_place
from cotswold.run.prometheus.server import PrometheusObserver

ROW = {
    "name": "replica-1",
    "samples": 640,
    "samples_per_second": 12.5,
    "activity": "pushing",
    "samples_in_flight": 32,
}
STEP = {"phase_step": 10, "phase_steps": 40, "gflops": 0.5, "training_seconds": 3.0}
REPLICAS = {
    "kind": "replicas",
    "epoch": 2,
    "samples": {"counted": 5, "torn": 1},
    "replicas": [ROW],
    "servers": [{"name": "server-0", "updates": 7, "queued_bytes": 8, "refused_updates": [["stale", 3]]}],
    "evaluators": [
        {"name": "evaluator-1", "activity": "evaluating", "evaluated_samples": 480, "activity_seconds": 1.5}
    ],
}


@pytest.fixture
def scraped() -> Iterator[PrometheusObserver]:
    made = PrometheusObserver("127.0.0.1", 0, {"run": 'a"b\\c\nd'})
    yield made
    made.close()
    made.close()


def read(url: str) -> tuple[str, str]:
    with urllib.request.urlopen(url, timeout=5) as answer:
        return answer.read().decode(), answer.headers["Content-Type"]


def test_what_events_say_is_read_as_metrics(scraped: PrometheusObserver) -> None:
    scraped.write(
        {"kind": "step", "loss": 0.25, "pushed_bytes_by_layer": {"layer 1": {"factors": 12}}} | STEP
    )
    scraped.write(REPLICAS)
    for _ in range(3):
        scraped.write({"kind": "checkpoint"})
    text, kind = read(scraped.url)
    assert kind.startswith("text/plain; version=0.0.4")
    found = parsed(text)
    assert all(name.startswith("cotswold_") for name in found)
    assert found["cotswold_run_info"]["values"] == {(("run", 'a"b\\c\nd'),): 1}
    assert found["cotswold_samples_total"]["values"] == {
        (("outcome", "counted"),): 5,
        (("outcome", "torn"),): 1,
    }
    assert found["cotswold_replica_samples_total"]["values"] == {(("replica", "replica-1"),): 640}
    assert found["cotswold_server_updates_total"]["values"] == {(("server", "server-0"),): 7}
    activities = found["cotswold_replica_activity"]["values"]
    assert [labels for labels, value in activities.items() if value] == [
        (("replica", "replica-1"), ("activity", "pushing"))
    ]
    for name, value in {"loss": 0.25, "progress_ratio": 0.25, "epoch": 3, "checkpoints_total": 3}.items():
        assert found[f"cotswold_{name}"]["values"] == {(): value}
    assert found["cotswold_flops_per_second"]["values"] == {(): 5e8}
    pushed = found["cotswold_pushed_bytes_total"]["values"]
    assert pushed == {(("layer", "layer 1"), ("kind", "factors")): 12}
    refused = found["cotswold_server_refused_updates_total"]["values"]
    assert refused == {(("server", "server-0"), ("reason", "stale")): 3}
    activities = found["cotswold_evaluator_activity"]["values"]
    assert (
        activities[("evaluator", "evaluator-1"), ("activity", "evaluating")] == 1
        and sum(activities.values()) == 1
    )
    assert found["cotswold_evaluator_evaluated_samples"]["values"] == {(("evaluator", "evaluator-1"),): 480}
    assert found["cotswold_evaluator_activity_seconds"]["values"] == {(("evaluator", "evaluator-1"),): 1.5}


def test_before_any_event_there_is_a_sound_answer(scraped: PrometheusObserver) -> None:
    assert "cotswold_run_info" in parsed(read(scraped.url)[0])


def test_other_paths_and_verbs_are_refused_and_disconnects_are_harmless(
    scraped: PrometheusObserver,
) -> None:
    with pytest.raises(urllib.error.HTTPError, match="404"):
        urllib.request.urlopen(scraped.url.replace("/metrics", "/"), timeout=5)
    host, port = metrics_place(scraped.url.removeprefix("http://").removesuffix("/metrics")) or ("", 0)
    asked = http.client.HTTPConnection(host, port, timeout=5)
    asked.request("POST", "/metrics", b"x")
    assert asked.getresponse().status == 501
    asked.close()
    for rubbish in (b"", b"\x00\xff\n\n", b"GET"):
        with socket.create_connection((host, port), timeout=5) as stranger:
            stranger.sendall(rubbish)
    assert read(scraped.url)[0]


def test_a_port_that_another_run_has_is_refused_with_a_sentence(scraped: PrometheusObserver) -> None:
    host, port = metrics_place(scraped.url.removeprefix("http://").removesuffix("/metrics")) or ("", 0)
    with pytest.raises(UserError, match=f"cannot be served at 127.0.0.1:{port} .*--metrics PORT"):
        PrometheusObserver(host, port, {})


def test_it_is_bound_to_the_loopback_unless_told_otherwise() -> None:
    assert metrics_place("9100") == ("127.0.0.1", 9100)
    assert metrics_place("0.0.0.0:9100") == ("0.0.0.0", 9100)
    assert metrics_place("[::1]:9100") == ("::1", 9100)
    assert metrics_place(None) is None
    for wrong in ("", "x", ":9100", "host:", "9100000", "-1", "1.5"):
        with pytest.raises(ValueError, match="is not a port"):
            metrics_place(wrong)
