"""A job that can never start on the configured fleet is refused. Temporary obstacles refuse no job."""

from typing import Any

import pytest

from evenkeel.domain.jobs.job import Job
from evenkeel.domain.jobs.validation import SpecError
from evenkeel.domain.policy import Policy, changed
from evenkeel.domain.quotas.teams import TeamSetup
from evenkeel.domain.sources import Source, SourceKind
from evenkeel.services.jobs import check_fit
from evenkeel.services.storage import heartbeats
from tests.fakes.cluster import CLUSTER
from tests.fakes.system import A_MOMENT
from tests.unit.api.gateway import ApiResponse, Gateway
from tests.unit.api.seeds import a_fleet_node, a_job, store
from tests.unit.api.test_idempotent_changes import A_JOB
from tests.unit.api.test_pool_costs import BURST
from tests.unit.scheduling.test_sharing import a_setup, a_team

PATHS = ("/v1/jobs", "/v1/jobs/plan")


@pytest.fixture
def gateway_with_nodes(gateway: Gateway) -> Gateway:
    """A fleet of four nodes with eight GPUs each."""
    store(gateway.fakes.ledger, *(a_fleet_node(number) for number in range(1, 5)))
    return gateway


def submit_or_plan(gateway_with_nodes: Gateway, path: str, **changes: Any) -> ApiResponse:
    return gateway_with_nodes.post(path, {**A_JOB, **changes})


@pytest.mark.parametrize("path", PATHS)
@pytest.mark.parametrize(
    ("changes", "field"),
    [
        ({"nodes": 5}, "nodes"),
        ({"nodes": 64}, "nodes"),
        ({"nodes": 1, "gpusPerNode": 9}, "gpusPerNode"),
        ({"nodes": 1, "instanceTypes": ["ml.p9.xlarge"]}, "instanceTypes"),
        ({"nodes": 1, "requires": {"architectures": ["arm64"]}}, "requires"),
        ({"nodes": 6, "elastic": {"minNodes": 5, "maxNodes": 8}}, "nodes"),
    ],
)
def test_job_beyond_the_fleet_is_refused_by_field(
    gateway_with_nodes: Gateway, path: str, changes: dict[str, Any], field: str
) -> None:
    answer = submit_or_plan(gateway_with_nodes, path, **changes)

    assert (answer.status, answer.document["code"]) == (400, "VALIDATION_FAILED")
    (error,) = answer.document["errors"]
    assert error["field"] == field
    assert error["message"].count("The job can never start here") == 1
    assert gateway_with_nodes.get("/v1/jobs").document["items"] == []


@pytest.mark.parametrize("path", PATHS)
@pytest.mark.parametrize(
    "changes",
    [
        {"nodes": 4},
        {"nodes": 1, "gpusPerNode": 8},
        {"nodes": 1, "gpusPerNode": 0},
        {"nodes": 1, "instanceTypes": ["ml.p9.xlarge", "ml.p5.48xlarge"]},
        {"nodes": 6, "elastic": {"minNodes": 4, "maxNodes": 8}},
    ],
)
def test_job_within_the_fleet_is_accepted(gateway_with_nodes: Gateway, path: str, changes: dict[str, Any]) -> None:
    assert submit_or_plan(gateway_with_nodes, path, **changes).status in (200, 202)


@pytest.mark.parametrize(
    "state",
    [
        {"is_ready": False},
        {"is_cordoned": True},
        {"is_awaiting_validation": True},
        {"accelerators": 0, "node_name": ""},
        {"accelerators": 7},
        {"accelerators_in_use": 8},
        {"taints": ("own=x:NoSchedule",)},
        {"is_gone": True},
    ],
)
def test_job_is_accepted_if_it_fits_once_nodes_return(gateway: Gateway, state: dict[str, Any]) -> None:
    store(gateway.fakes.ledger, *(a_fleet_node(number, **state) for number in range(1, 5)))

    assert submit_or_plan(gateway, "/v1/jobs/plan", nodes=5).status == 400
    assert submit_or_plan(gateway, "/v1/jobs", nodes=4).status == 202


def test_submission_counts_two_nodes_of_one_slot_once(gateway_with_nodes: Gateway) -> None:
    store(gateway_with_nodes.fakes.ledger, a_fleet_node(5, slot=a_fleet_node(4).slot))

    assert submit_or_plan(gateway_with_nodes, "/v1/jobs/plan", nodes=4).status == 200
    assert submit_or_plan(gateway_with_nodes, "/v1/jobs/plan", nodes=5).status == 400


NETWORK = {"nodes": 3, "network": {"requiredLevel": "layer-3"}}


@pytest.mark.parametrize(
    ("why", "leaves", "is_accepted"),
    [
        ("one leaf has three nodes", ("a", "a", "a", "b"), True),
        ("no leaf has three nodes", ("a", "a", "b", "b"), False),
        ("no node shows its location", ("", "", "", ""), False),
        ("a node has not joined, and may be in either leaf", ("a", "a", "b", ""), True),
    ],
)
def test_job_whose_required_network_level_never_fits_is_refused(
    gateway: Gateway, why: str, leaves: tuple[str, ...], is_accepted: bool
) -> None:
    layers = [("top", "middle", leaf) if leaf else () for leaf in leaves]
    nodes = [a_fleet_node(number, network_layers=layer) for number, layer in enumerate(layers, start=1)]
    store(gateway.fakes.ledger, *nodes)

    answer = submit_or_plan(gateway, "/v1/jobs", **NETWORK)

    assert (answer.status == 202) is is_accepted, why
    if not is_accepted:
        assert [error["field"] for error in answer.document["errors"]] == ["network.requiredLevel"]
        assert "in one layer-3 domain" in answer.document["errors"][0]["message"]


def test_job_of_any_size_is_accepted_before_the_first_sweep(gateway: Gateway) -> None:
    planned = submit_or_plan(gateway, "/v1/jobs/plan", nodes=64)

    assert planned.document["decision"]["action"] == "WAIT"
    assert planned.document["decision"]["reason"].startswith("No sweep has read the fleet yet")
    assert planned.document["placement"] is None
    assert submit_or_plan(gateway, "/v1/jobs", nodes=64).status == 202


def why_unschedulable(
    gateway_with_nodes: Gateway, nodes: int, setup: TeamSetup, policy: Policy, **more: Any
) -> SpecError | None:
    job: Job = a_job()
    job = job.replace(spec=job.spec.replace(nodes=nodes, **more), queue=more.get("team", ""))
    fleet = check_fit.read_configured_fleet(job.cluster, gateway_with_nodes.fakes.ledger)
    return check_fit.why_never_fits(job, fleet, setup, policy, A_MOMENT)


def test_spare_nodes_do_not_count_for_a_submission(gateway_with_nodes: Gateway) -> None:
    spares = changed(Policy(), {"scheduling": {"spareNodes": {a_fleet_node().pool: 1}}})

    assert why_unschedulable(gateway_with_nodes, 3, TeamSetup(), spares) is None
    fault = why_unschedulable(gateway_with_nodes, 4, TeamSetup(), spares)
    assert fault
    assert "keeps 1 free node for recoveries" in fault.message


def test_job_beyond_the_largest_possible_quota_is_refused(gateway_with_nodes: Gateway) -> None:
    setup = a_setup(a_team("nlp", 16, cohort=""))

    assert why_unschedulable(gateway_with_nodes, 2, setup, Policy(), team="nlp") is None
    fault = why_unschedulable(gateway_with_nodes, 3, setup, Policy(), team="nlp")
    assert fault
    assert (fault.field, "16 at most" in fault.message) == ("nodes", True)


def test_stopped_queue_or_removed_team_refuses_no_job(gateway_with_nodes: Gateway) -> None:
    setup_with_stopped_queue = a_setup(a_team("nlp", 16, cohort="", queue={"stop": "Hold", "cohort": ""}))

    assert why_unschedulable(gateway_with_nodes, 3, setup_with_stopped_queue, Policy(), team="nlp") is None
    assert why_unschedulable(gateway_with_nodes, 64, a_setup(a_team("other", 16)), Policy(), team="nlp") is None


def test_submission_may_count_on_rental_pools_up_to_their_limit(gateway_with_nodes: Gateway) -> None:
    policy = changed(Policy(), {"burst": BURST})
    max_nodes = max(pool.max_nodes for pool in policy.burst.pools)
    kind = max(policy.burst.pools, key=lambda pool: pool.max_nodes)

    assert (
        why_unschedulable(
            gateway_with_nodes, max_nodes, TeamSetup(), policy, accelerators_per_node=kind.accelerators_per_node
        )
        is None
    )
    assert why_unschedulable(
        gateway_with_nodes, max_nodes + 5, TeamSetup(), policy, accelerators_per_node=kind.accelerators_per_node
    )


@pytest.mark.parametrize("kind", [SourceKind.KUBERNETES_LIST, SourceKind.HYPERPOD])
def test_job_of_any_size_is_accepted_while_source_is_unreachable(gateway_with_nodes: Gateway, kind: SourceKind) -> None:
    results = heartbeats.SourceResults()
    results.record_failure(
        Source(kind=kind, target=CLUSTER if kind is SourceKind.KUBERNETES_LIST else ""), "Unreachable"
    )
    heartbeats.record_heartbeat("sweep_fleet", gateway_with_nodes.fakes.context(now=A_MOMENT), results)

    assert submit_or_plan(gateway_with_nodes, "/v1/jobs", nodes=5).status == 202
