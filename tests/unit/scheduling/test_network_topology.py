"""A gang starts on nodes that are close to each other in the network."""

from itertools import combinations
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from evenkeel.domain.admission.admission_input import AdmissionInput
from evenkeel.domain.admission.build_request import build_request
from evenkeel.domain.admission.decide_job import AdmissionAction, decide
from evenkeel.domain.admission.pool_fits import pool_fits
from evenkeel.domain.admission.queue_without_teams import decide_in_queue_order
from evenkeel.domain.admission.scheduling_policy import SchedulingPolicy
from evenkeel.domain.capacity.network_topology import (
    LEVELS,
    NetworkLevel,
    NetworkNeeds,
    closest_nodes,
    nodes_to_reserve,
    spread_of,
)
from evenkeel.domain.capacity.node_capacity import NodeCapacity
from evenkeel.domain.capacity.pod_shares import NodeShares
from evenkeel.domain.jobs.job import ResumeOption, ResumePlan
from evenkeel.domain.policy import Policy
from tests.examples import examples
from tests.unit.scheduling.builders import a_job, a_node_capacity, a_request, a_spec, at

POLICY = SchedulingPolicy()
LAYER_2, LAYER_3 = NetworkLevel.LAYER_2, NetworkLevel.LAYER_3
TWO_LEAVES = ("top/left/a", "top/left/a", "top/left/b", "top/left/b", "top/left/b", "top/right/c")


def a_fleet(*paths: str) -> tuple[NodeCapacity, ...]:
    """Return one free node below each path of network nodes, such as `top/left/a`; an empty path is unknown."""
    return tuple(
        a_node_capacity(number, network_layers=tuple(path.split("/")) if path else ())
        for number, path in enumerate(paths, start=1)
    )


def leaves_of(nodes: tuple[NodeCapacity, ...]) -> str:
    return "".join(node.network_layers[-1] if node.network_layers else "?" for node in nodes)


@pytest.mark.parametrize(
    ("why", "paths", "count", "needs", "expected", "level"),
    [
        ("the smallest leaf that is large enough", TWO_LEAVES, 2, {}, "aa", LAYER_3),
        ("no smaller leaf is large enough", TWO_LEAVES, 3, {}, "bbb", LAYER_3),
        ("the lowest common layer, with few leaves", TWO_LEAVES, 4, {}, "bbba", LAYER_2),
        ("the top is the only common network node", TWO_LEAVES, 6, {}, "bbbaac", NetworkLevel.LAYER_1),
        ("a wide level is enough", TWO_LEAVES, 2, {"preferred": "layer-2"}, "aa", LAYER_2),
        ("a preferred level that is full", TWO_LEAVES, 4, {"preferred": "layer-3"}, "bbba", LAYER_2),
        ("a required level", TWO_LEAVES, 5, {"required": "layer-2"}, "bbbaa", LAYER_2),
        ("a required level, and a narrower one fits", TWO_LEAVES, 3, {"required": "layer-1"}, "bbb", LAYER_3),
        ("no domain of the required level", TWO_LEAVES, 4, {"required": "layer-3"}, "", None),
        ("a required level that no node shows", ("", "", ""), 2, {"required": "layer-3"}, "", None),
        ("no node shows its location", ("", "", ""), 2, {}, "??", None),
        ("known locations before unknown ones", ("", "top/left/a", "", "top/left/a"), 3, {}, "aa?", None),
        ("one node has no distance", TWO_LEAVES, 1, {"required": "layer-3"}, "a", None),
        ("separate tops", ("x", "x", "y"), 3, {}, "xxy", None),
    ],
)
def test_gang_uses_the_closest_nodes(
    why: str, paths: tuple[str, ...], count: int, needs: dict[str, str], expected: str, level: NetworkLevel | None
) -> None:
    closest = closest_nodes(a_fleet(*paths), count, NetworkNeeds.model_validate(needs))

    assert (leaves_of(closest.nodes), closest.level) == (expected, level), why


def test_nodes_of_an_ultra_server_are_the_closest() -> None:
    nodes = [
        a_node_capacity(number, network_layers=("top", "left", "a"), ultra_server=server)
        for number, server in enumerate(("us-1", "us-2", "us-1", "us-2", "us-2"), start=1)
    ]

    closest = closest_nodes(nodes, 2, NetworkNeeds())

    assert (closest.level, closest.domain) == (NetworkLevel.ULTRA_SERVER, "us-1")
    assert [node.node_name for node in closest.nodes] == ["node-1", "node-3"]


a_path = st.one_of(
    st.just(""),
    st.tuples(st.sampled_from("xy"), st.sampled_from("lr"), st.sampled_from("abc")).map(
        lambda ids: f"{ids[0]}/{ids[0]}{ids[1]}/{''.join(ids)}"
    ),
)


@settings(max_examples=examples(300), deadline=None)
@given(st.lists(a_path, min_size=2, max_size=8), st.data())
def test_no_other_set_of_nodes_is_closer_together(paths: list[str], data: st.DataObject) -> None:
    """Compares with a search through all sets of nodes."""
    fleet = a_fleet(*paths)
    count = data.draw(st.integers(2, len(fleet)))
    required = data.draw(st.sampled_from([None, *LEVELS]))

    closest = closest_nodes(fleet, count, NetworkNeeds(required=required))

    def domain_of(node: NodeCapacity, level: NetworkLevel) -> str:
        return node.network_layers[LEVELS.index(level)] if LEVELS.index(level) < len(node.network_layers) else ""

    def shared_levels(nodes: tuple[NodeCapacity, ...]) -> list[NetworkLevel]:
        return [level for level in LEVELS if len({domain_of(node, level) for node in nodes} | {""}) == 2
                and all(domain_of(node, level) for node in nodes)]  # fmt: skip

    narrowest = max(
        (LEVELS.index(level) for nodes in combinations(fleet, count) for level in shared_levels(nodes)), default=-1
    )
    if required and narrowest < LEVELS.index(required):
        assert closest.nodes == ()
    else:
        assert len({node.life for node in closest.nodes}) == count
        assert closest.level is (LEVELS[narrowest] if narrowest >= 0 else None)
        assert closest.level in {None, *shared_levels(closest.nodes)}


def test_waiting_job_reserves_nodes_of_domain_large_enough() -> None:
    fleet = a_fleet(*TWO_LEAVES, "top/right/c", "top/right/c", "top/right/c")
    free = fleet[:7]  # of leaf c, two of its four nodes are in use

    assert leaves_of(nodes_to_reserve(free, fleet, 4, NetworkNeeds(required=LAYER_3))) == "cc"
    assert leaves_of(nodes_to_reserve(free, fleet, 3, NetworkNeeds(required=LAYER_3))) == "bbb"
    assert nodes_to_reserve(free, fleet, 5, NetworkNeeds(required=LAYER_3)) == ()
    assert leaves_of(nodes_to_reserve(free, fleet, 8, NetworkNeeds())) == "aabbbcc"
    assert nodes_to_reserve(a_fleet("", ""), a_fleet("", ""), 2, NetworkNeeds(required=LAYER_3)) == ()


def decide_gang(fleet: tuple[NodeCapacity, ...], **changes: Any) -> Any:
    return decide_in_queue_order(AdmissionInput(pending=(a_request(**changes),), capacities=fleet), POLICY, at(60))[0]


def test_admission_reason_says_how_close_the_nodes_are() -> None:
    decision = decide_gang(a_fleet(*TWO_LEAVES), nodes=3)

    assert decision.action is AdmissionAction.ADMIT
    assert decision.node_names == ("node-3", "node-4", "node-5")
    assert decision.reason.endswith("They share layer-3 domain b.")


def test_admission_reason_names_an_unmet_network_preference() -> None:
    decision = decide_gang(a_fleet(*TWO_LEAVES), nodes=4, network_needs={"preferred": "layer-3"})

    assert decision.reason.endswith("They share layer-2 domain left. No layer-3 domain has 4 of them.")


def test_job_waits_until_its_required_level_fits() -> None:
    decision = decide_gang(a_fleet(*TWO_LEAVES), nodes=4, network_needs={"required": "layer-3"})

    assert decision.action is AdmissionAction.WAIT
    assert "workers has 6 of them, at most 3 in one layer-3 domain" in decision.reason


def test_decision_to_wait_for_required_network_level_replays() -> None:
    decision = decide_gang(a_fleet(*TWO_LEAVES), nodes=4, network_needs={"required": "layer-3"})

    assert decide(decision.facts).reason == decision.reason


def test_gang_avoids_a_network_leaf_without_enough_free_nodes() -> None:
    fleet = a_fleet(*TWO_LEAVES)
    used = (fleet[0].with_free(fleet[0].free.minus(fleet[0].free)), *fleet[1:])

    (fit,) = pool_fits(a_request(nodes=2), used, POLICY)

    assert (fit.level, fit.domain) == (LAYER_3, "b")


@pytest.mark.parametrize(
    ("paths", "level", "levels_apart"),
    [
        (("top/left/a", "top/left/a"), LAYER_3, 0),
        (("top/left/a", "top/left/b"), LAYER_2, 1),
        (("top/left/a", "top/right/c"), NetworkLevel.LAYER_1, 2),
        (("top/left/a", "other/right/c"), None, 3),
        (("top", "top"), NetworkLevel.LAYER_1, 0),
    ],
)
def test_spread_counts_levels_at_which_nodes_are_apart(
    paths: tuple[str, ...], level: NetworkLevel | None, levels_apart: int
) -> None:
    spread = spread_of(a_fleet(*paths))

    assert spread
    assert (spread.level, spread.levels_apart) == (level, levels_apart)


@pytest.mark.parametrize("paths", [("", ""), ("top/left/a", ""), ("top/left/a", "top/left")])
def test_spread_is_unknown_if_a_label_is_missing(paths: tuple[str, ...]) -> None:
    assert spread_of(a_fleet(*paths)) is None


@pytest.mark.parametrize(("seconds", "is_admitted"), [(599, False), (600, True)])
def test_interrupted_job_takes_distant_nodes_after_its_wait(seconds: int, is_admitted: bool) -> None:
    plan = ResumePlan(
        incident_id="inc-1",
        after_attempt=1,
        option=ResumeOption.WAIT_FOR_REPAIR,
        near_level=LAYER_3,
        far_nodes_at=at(600),
        planned_at=at(0),
    )
    job = a_job(spec=a_spec(nodes=2), resume_plan=plan)
    nodes = a_fleet("top/left/a", "top/left/b")

    request = build_request(job, NodeShares(nodes, ()), Policy(), at(seconds))

    assert any(fit.fits_now for fit in pool_fits(request, nodes, POLICY)) is is_admitted


@pytest.mark.parametrize(
    ("needs", "required"), [({}, LAYER_2), ({"required": "layer-1"}, LAYER_2), ({"required": "layer-3"}, LAYER_3)]
)
def test_narrower_of_two_required_levels_counts(needs: dict[str, Any], required: NetworkLevel) -> None:
    assert NetworkNeeds(**needs).narrowed_to(LAYER_2).required is required
