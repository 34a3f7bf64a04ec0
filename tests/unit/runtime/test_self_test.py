"""The self test of a function answers without running the handler."""

from collections.abc import Iterator
from typing import Any

import pytest

import evenkeel
from evenkeel.ports import KubernetesPermission, NotAllowed, Unreachable
from evenkeel.runtime import entry, self_test, wiring
from tests.fakes import FakeWorld
from tests.fakes.cluster import CLUSTER
from tests.unit.runtime.test_entry import CONTEXT

PATCH = {"verb": "patch", "group": "", "resource": "nodes", "namespace": ""}


@pytest.fixture
def world() -> Iterator[FakeWorld]:
    fake = FakeWorld()
    with wiring.use_ports(fake.as_ports()):
        yield fake


def run_self_test(world: FakeWorld, **request: Any) -> Any:
    return self_test.run(request, world.as_ports())


@pytest.mark.parametrize("wrapper", [entry.task, entry.scheduled, entry.api], ids=lambda wrapper: wrapper.__name__)
def test_self_test_never_reaches_the_handler(world: FakeWorld, wrapper: Any) -> None:
    def handler(event: entry.Json, _context: Any) -> entry.Json:
        raise AssertionError(event)

    assert wrapper(handler)({"selfTest": {}}, CONTEXT)["version"] == evenkeel.__version__
    assert world.cluster.calls == []


@pytest.mark.parametrize("event", [{"selfTest": {}, "incidentId": "inc-1"}, {"incidentId": "inc-1"}, {}])
def test_event_without_self_test_goes_to_the_handler(world: FakeWorld, event: entry.Json) -> None:
    @entry.task
    def handler(event: entry.Json, _context: Any) -> entry.Json:
        return {"outcome": "HANDLED"}

    assert handler(event, CONTEXT) == {"outcome": "HANDLED"}


def test_self_test_names_missing_rights_for_each_cluster(world: FakeWorld) -> None:
    world.cluster.refused_rights = {KubernetesPermission("patch", "", "nodes")}

    answer = run_self_test(world, rights=[PATCH, {**PATCH, "verb": "get"}])

    assert answer["clusters"] == [
        {
            "cluster": CLUSTER,
            "serverVersion": "v1.33.0",
            "missing": [PATCH],
            "error": "",
            "kueueNamespaces": None,
            "kueueError": "",
        }
    ]


def test_self_test_reports_a_cluster_that_does_not_answer(world: FakeWorld, monkeypatch: pytest.MonkeyPatch) -> None:
    def raise_unreachable(_cluster: str) -> str:
        raise Unreachable("no answer")

    monkeypatch.setattr(world.cluster, "server_version", raise_unreachable)

    assert run_self_test(world)["clusters"][0]["error"] == "Unreachable: no answer"


GET = {**PATCH, "verb": "get"}


def test_self_test_reports_a_cluster_whose_nodes_cannot_be_read(
    world: FakeWorld, monkeypatch: pytest.MonkeyPatch
) -> None:
    def unavailable(_cluster: str, name: str) -> None:
        raise Unreachable(f"GET /api/v1/nodes/{name} of research-eks: 503 ServiceUnavailable")

    monkeypatch.setattr(world.cluster, "node", unavailable)

    (answer,) = run_self_test(world, rights=[GET])["clusters"]

    assert answer["error"].endswith("of research-eks: 503 ServiceUnavailable")
    assert answer["serverVersion"] == "v1.33.0"


@pytest.mark.parametrize("rights", [[], [PATCH]])
def test_self_test_reads_no_node_without_the_right(
    world: FakeWorld, monkeypatch: pytest.MonkeyPatch, rights: Any
) -> None:
    monkeypatch.setattr(world.cluster, "node", lambda *_: pytest.fail("read"))

    assert run_self_test(world, rights=rights)["clusters"][0]["error"] == ""


def test_missing_right_to_read_kueue_is_reported_separately(world: FakeWorld, monkeypatch: pytest.MonkeyPatch) -> None:
    def refused(_cluster: str) -> dict[str, str]:
        raise NotAllowed("403")

    monkeypatch.setattr(world.cluster, "kueue_namespaces", refused)

    (answer,) = run_self_test(world, readsKueue=True)["clusters"]
    assert (answer["error"], answer["kueueError"]) == ("", "NotAllowed: 403")


def test_self_test_returns_policy_in_force_on_request(world: FakeWorld) -> None:
    assert run_self_test(world)["policy"] is None
    assert run_self_test(world, readsPolicy=True)["policy"] == {
        "name": "production",
        "hash": world.policy.hash,
        "refused": "",
        "inForce": 0,
    }


@pytest.mark.parametrize("request_", [{"rights": [{"verb": "x"}]}, {"rights": [PATCH] * 501}, {"other": 1}, [], "x"])
def test_invalid_self_test_calls_nothing(world: FakeWorld, request_: Any) -> None:
    assert "not a self-test" in self_test.run(request_, world.as_ports())["error"]
