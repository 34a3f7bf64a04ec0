"""The choice of topology domains: tables of cases, and properties in random trees."""

import random
from collections import Counter
from pathlib import Path
from typing import Any

import pytest
import yaml
from hypothesis import given, settings
from hypothesis import strategies as st

from evenkeel.domain.kueue.objects import (
    PODS,
    Flavor,
    FlavorToleration,
    NodeTopology,
    PodSet,
    SliceConstraint,
    Taint,
    TopologyAssignment,
    TopologyNode,
    TopologyRequest,
)
from evenkeel.domain.kueue.topology import HOSTNAME
from evenkeel.domain.kueue.topology_state import DomainUse, PlacementResult, TopologyDemand, TopologyState
from tests.examples import examples

Json = dict[str, Any]

CHOICES = yaml.safe_load(
    (Path(__file__).resolve().parents[3] / "fixtures" / "topology_choices.yaml").read_text(encoding="utf-8")
)
LEVELS = ("block", "rack", HOSTNAME)


def a_tree(nodes: Json, levels: tuple[str, ...] = LEVELS, name: str = "f") -> Flavor:
    """Return a flavor with these nodes: each name with the topology path and the capacity of the node."""
    members = tuple(a_node(node, facts, levels) for node, facts in nodes.items())
    return Flavor(name, topology=NodeTopology("default", levels, members))


def a_node(name: str, facts: Json | str, levels: tuple[str, ...]) -> TopologyNode:
    given: Json = facts if isinstance(facts, dict) else {"at": facts, "has": {"gpu": 8, PODS: 110}}
    labels = dict(zip(levels, given["at"].split("/"), strict=True))
    taints = []
    for text in given.get("taints", ()):
        key, value, effect = text.replace(":", "=").split("=")
        taints.append(Taint(key, value, effect))
    return TopologyNode(name, labels | given.get("labels", {}), given["has"], tuple(taints), given.get("used", {}))


def pods_demand(given: Json, number: int = 0) -> TopologyDemand:
    """Return a pod set that needs domains of flavor `f`."""
    request = given.get("request")
    tolerations = []
    for text in given.get("tolerates", ()):
        key, value, effect = text.replace(":", "=").split("=")
        tolerations.append(FlavorToleration(key, "Equal", value, effect))
    pod_set = PodSet(
        f"pods{number}",
        given["count"],
        given["needs"],
        selector=given.get("selector", {}),
        tolerations=tuple(tolerations),
        group=given.get("group", ""),
        topology=None
        if request is None
        else TopologyRequest(
            request.get("required", ""),
            request.get("preferred", ""),
            request.get("unconstrained"),
            tuple(SliceConstraint(level, size) for level, size in request.get("slices", ())),
        ),
    )
    return TopologyDemand(number, given["count"], "f", pod_set)


def place_pods(flavor: Flavor, *pods: Json, least_free_capacity: bool = True) -> PlacementResult:
    state = TopologyState({flavor.name: flavor}, least_free_capacity=least_free_capacity)
    return state.place([pods_demand(given, number) for number, given in enumerate(pods)])


def pods_by_domain(assignment: TopologyAssignment | None) -> dict[str, int]:
    """Return the pods by domain."""
    return {"/".join(domain.values): domain.count for domain in assignment.domains} if assignment else {}


def why_not(result: PlacementResult) -> str:
    assert result.failed is not None
    assert result.assignments == {}
    return result.reason


# ---------------------------------------------------------------- tables


@pytest.mark.parametrize("case", CHOICES["cases"], ids=lambda case: case["name"])
def test_job_gets_the_expected_topology_domains(case: Json) -> None:
    nodes = case.get("nodes", {})
    nodes = CHOICES["nodeSets"][nodes] if isinstance(nodes, str) else nodes
    levels = tuple(case["levels"])
    state = TopologyState({"f": a_tree(nodes, levels)})
    for use in case.get("inUse", ()):
        state.add([DomainUse(("f",), tuple(use["at"].split("/")), use["needs"], use["pods"])])

    result = state.place([pods_demand(given, number) for number, given in enumerate(case["podSets"])])

    assert result.reason == case.get("reason", "")
    if not result.reason:
        chosen = [pods_by_domain(result.assignments[number]) for number in range(len(case["podSets"]))]
        assert chosen == [given["gets"] for given in case["podSets"]]
        named = levels[-1:] if levels[-1] == HOSTNAME else levels
        assert all(assignment.levels == named for assignment in result.assignments.values())


def test_nested_slices_spread_over_zones_and_racks() -> None:
    """Kueue's case of a GB200 cluster: 8 racks in 2 zones, with 18 nodes of 2 devices each."""
    racks = [f"dc/z{number // 4}/b{number // 2}/r{number}" for number in range(8)]
    nodes = {
        f"{rack.replace('/', '-')}-n{number}": {"at": rack, "has": {"gpu": 2, PODS: 110}}
        for rack in racks
        for number in range(18)
    }
    request = {"required": "datacenter", "slices": [["zone", 48], ["rack", 16]]}

    result = place_pods(
        a_tree(nodes, ("datacenter", "zone", "block", "rack")), {"count": 96, "needs": {"gpu": 2}, "request": request}
    )

    chosen = [racks[number] for number in (0, 1, 2, 4, 5, 6)]
    assert pods_by_domain(result.assignments[0]) == dict.fromkeys(chosen, 16)


RACKS = {
    "a": "b1/r1/a",
    "b": "b1/r1/b",
    "c": "b1/r2/c",
    "d": "b2/r3/d",
}
"""Four nodes with 8 devices each: two racks in the first block, one in the second."""


def test_required_level_holds_all_pods_or_none() -> None:
    two = {"count": 2, "needs": {"gpu": 8}, "request": {"required": "rack"}}

    assert pods_by_domain(place_pods(a_tree(RACKS), two).assignments[0]) == {"a": 1, "b": 1}
    reason = why_not(place_pods(a_tree(RACKS), two | {"count": 3}))
    assert reason == 'topology "default" allows to fit only 2 out of 3 pod(s)'


def test_preferred_level_widens_until_all_pods_fit() -> None:
    three = {"count": 3, "needs": {"gpu": 8}, "request": {"preferred": "rack"}}

    assert pods_by_domain(place_pods(a_tree(RACKS), three).assignments[0]) == {"a": 1, "b": 1, "c": 1}
    assert pods_by_domain(place_pods(a_tree(RACKS), three | {"count": 4}).assignments[0]) == {
        "a": 1,
        "b": 1,
        "c": 1,
        "d": 1,
    }
    reason = why_not(place_pods(a_tree(RACKS), three | {"count": 5}))
    assert reason == 'topology "default" allows to fit only 4 out of 5 pod(s)'


@pytest.mark.parametrize(("least_free", "chosen"), [(True, {"a": 1, "b": 1, "big": 2}), (False, {"a": 1, "big": 3})])
def test_unconstrained_pods_fill_small_nodes_first(least_free: bool, chosen: dict[str, int]) -> None:
    sizes = {"a": 1, "b": 1, "big": 3}
    nodes = {name: {"at": name, "has": {"gpu": size, PODS: 9}} for name, size in sizes.items()}
    pods = {"count": 4, "needs": {"gpu": 1}}

    result = place_pods(a_tree(nodes, (HOSTNAME,)), pods, least_free_capacity=least_free)

    assert pods_by_domain(result.assignments[0]) == chosen


def test_best_fit_keeps_large_domains_free() -> None:
    nodes = RACKS | {"e": {"at": "b2/r4/e", "has": {"gpu": 2, PODS: 9}}}
    two = {"count": 2, "needs": {"gpu": 1}, "request": {"required": "rack"}}

    assert pods_by_domain(place_pods(a_tree(nodes), two).assignments[0]) == {"e": 2}


def test_pods_that_form_no_whole_slices_do_not_fit() -> None:
    pods = {"count": 3, "needs": {"gpu": 1}, "request": {"required": "block", "slices": [["rack", 2]]}}

    assert why_not(place_pods(a_tree(RACKS), pods)) == "the count 3 is not a multiple of the slice size 2"


@pytest.mark.parametrize(
    ("counts", "reason"),
    [
        ((1, 2, 2), "pod set group g has 3 pod sets; with a topology, 2 are possible"),
        ((2, 2), "pod set group g needs a pod set of one pod, its leader"),
    ],
)
def test_group_without_exactly_one_leader_does_not_fit(counts: tuple[int, ...], reason: str) -> None:
    pods = [{"count": count, "needs": {"gpu": 1}, "request": {"required": "rack"}, "group": "g"} for count in counts]

    assert why_not(place_pods(a_tree(RACKS), *pods)) == reason


def test_two_flavors_share_the_nodes_that_both_select() -> None:
    flavors = {name: a_tree(RACKS, name=name) for name in ("f", "g")}
    state = TopologyState(flavors)
    demand = pods_demand({"count": 1, "needs": {"gpu": 8}, "request": {"required": HOSTNAME}})

    state.add([DomainUse(("g",), ("a",), {"gpu": 8, PODS: 1}, 1)])

    assert pods_by_domain(state.place([demand]).assignments[0]) == {"b": 1}
    assert pods_by_domain(state.place([demand], ignores_workloads=True).assignments[0]) == {"a": 1}


def test_use_on_a_removed_node_is_ignored() -> None:
    state = TopologyState({"f": a_tree(RACKS)})
    use = [DomainUse(("f",), ("gone",), {"gpu": 8, PODS: 1}, 1)]

    state.add(use)

    assert not state.fits(use)
    assert state.fits([DomainUse(("f",), ("a",), {"gpu": 8, PODS: 1}, 1)])


def test_pod_sets_in_one_domain_share_its_capacity() -> None:
    state = TopologyState({"f": a_tree(RACKS)})
    use = DomainUse(("f",), ("a",), {"gpu": 5, PODS: 1}, 1)

    assert state.fits([use])
    assert not state.fits([use, use])


# ---------------------------------------------------------------- properties


def _random_nodes(rng: random.Random) -> Json:
    nodes = {}
    for number in range(rng.randint(1, 12)):
        at = f"b{rng.randint(1, 2)}/r{rng.randint(1, 3)}/n{number}"
        has = {"gpu": rng.choice((0, 1, 2, 4, 8)), "cpu": rng.randint(0, 16), PODS: rng.choice((1, 4, 110))}
        nodes[f"n{number}"] = {"at": at, "has": has, "used": {"cpu": rng.randint(0, 4), PODS: rng.randint(0, 1)}}
    return nodes


def _random_pods(rng: random.Random, group: str = "") -> Json:
    kind = rng.choice(("required", "preferred", "unconstrained", "slices", "implied"))
    count, slices = rng.randint(1, 9), []
    if (not group and rng.random() < 0.5) or kind == "slices":
        size = rng.choice((1, 2, 3))
        count, slices = size * rng.randint(1, 4), [[rng.choice(LEVELS), size]]
    request: Json | None = {"slices": slices}
    if kind in ("required", "preferred"):
        request = {kind: rng.choice(LEVELS), "slices": slices}
    elif kind == "unconstrained":
        request = {"unconstrained": True, "slices": slices}
    elif kind == "implied":
        request = None
    needs = {"gpu": rng.randint(0, 2), "cpu": rng.randint(0, 3)}
    return {"count": count, "needs": needs, "request": request, "group": group}


@settings(max_examples=examples(200), deadline=None)
@given(st.integers(0, 2**32))
def test_placement_never_exceeds_a_node_and_is_complete(seed: int) -> None:
    rng = random.Random(seed)
    nodes = _random_nodes(rng)
    pods = [_random_pods(rng) for _ in range(rng.randint(1, 2))]
    if rng.random() < 0.4:
        leader = {"count": 1, "needs": {"gpu": rng.randint(0, 2), "cpu": 1}, "group": "g"}
        worker = _random_pods(rng, "g")
        request = worker["request"]
        pods += [worker, leader | {"request": request and {**request, "slices": []}}]
    result = place_pods(a_tree(nodes), *pods, least_free_capacity=rng.random() < 0.7)
    if result.failed is not None:
        assert result.assignments == {}
        assert result.reason
        return

    used = {name: Counter(node["used"]) for name, node in nodes.items()}
    for number, given_pods in enumerate(pods):
        chosen = pods_by_domain(result.assignments[number])
        assert sum(chosen.values()) == given_pods["count"]
        for name, count in chosen.items():
            used[name].update({key: amount * count for key, amount in {**given_pods["needs"], PODS: 1}.items()})
        request = given_pods["request"] or {}
        paths = {name: nodes[name]["at"].split("/") for name in chosen}
        if request.get("required"):
            depth = LEVELS.index(request["required"]) + 1
            assert len({tuple(path[:depth]) for path in paths.values()}) == 1
        for level, size in request.get("slices", ()):
            within: Counter[tuple[str, ...]] = Counter()
            for name, count in chosen.items():
                within[tuple(paths[name][: LEVELS.index(level) + 1])] += count
            assert all(count % size == 0 for count in within.values())
    for name, amounts in used.items():
        before, has = nodes[name]["used"], nodes[name]["has"]
        # A node that is over its limit from the start gets no more of that resource.
        assert all(amount <= max(has.get(key, 0), before.get(key, 0)) for key, amount in amounts.items())


@settings(max_examples=examples(200), deadline=None)
@given(st.integers(0, 2**32))
def test_pods_do_not_fit_only_if_no_domain_has_capacity(seed: int) -> None:
    rng = random.Random(seed)
    nodes, pods = _random_nodes(rng), _random_pods(rng)
    request = pods["request"] or {"unconstrained": True}
    if request.get("slices"):
        return
    room: Counter[tuple[str, ...]] = Counter()
    for node in nodes.values():
        free = {key: node["has"][key] - node["used"].get(key, 0) for key in node["has"]}
        needs = {**pods["needs"], PODS: 1}
        fitting = min(max(0, free[key]) // amount for key, amount in needs.items() if amount)
        depth = LEVELS.index(request["required"]) + 1 if request.get("required") else 0
        room[tuple(node["at"].split("/")[:depth])] += fitting

    result = place_pods(a_tree(nodes), pods, least_free_capacity=rng.random() < 0.7)

    assert (result.failed is None) is (max(room.values()) >= pods["count"])
