from collections import Counter
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from evenkeel.domain.admission.admission_input import AdmissionInput
from evenkeel.domain.admission.admission_request import AdmissionRequest
from evenkeel.domain.admission.decide_job import AdmissionAction, AdmissionDecision, AdmissionFacts, decide
from evenkeel.domain.admission.queue_without_teams import decide_in_queue_order
from evenkeel.domain.admission.scheduling_policy import SchedulingPolicy
from evenkeel.domain.capacity.node_capacity import NodeCapacity, node_capacity
from evenkeel.domain.jobs.attempt import PodPhase
from evenkeel.domain.jobs.charge import Charge, resources_in_use_or_charged
from evenkeel.domain.jobs.job import ResumeOption, ResumePlan
from evenkeel.domain.nodes import KubernetesNode, Node, ProviderNode, join_nodes
from evenkeel.domain.resources import Resources
from tests.unit.scheduling.builders import (
    CLUSTER,
    NOW,
    a_job,
    a_life,
    a_node_capacity,
    a_pod,
    a_request,
    a_workload,
    an_attempt,
    at,
)

POLICY = SchedulingPolicy()


def decisions_for(
    capacities: list[NodeCapacity], *pending: AdmissionRequest, policy: SchedulingPolicy = POLICY
) -> dict[str, AdmissionDecision]:
    answers = decide_in_queue_order(AdmissionInput(capacities=tuple(capacities), pending=pending), policy, at(1000))
    return {answer.job_id: answer for answer in answers}


def actions_for(
    capacities: list[NodeCapacity], *pending: AdmissionRequest, policy: SchedulingPolicy = POLICY
) -> list[tuple[str, AdmissionAction]]:
    return [(job, answer.action) for job, answer in decisions_for(capacities, *pending, policy=policy).items()]


def test_fitting_gang_gets_one_node_for_each_pod() -> None:
    answer = decisions_for([a_node_capacity(1), a_node_capacity(2), a_node_capacity(3)], a_request(nodes=2))["job-1"]

    assert (answer.action, answer.pool, answer.node_names) == (AdmissionAction.ADMIT, "workers", ("node-1", "node-2"))
    assert (a_life(1), a_life(2)) == answer.nodes
    assert answer.reason == "workers has 2 nodes with 8 free accelerators each."


def test_job_that_does_not_fit_blocks_later_jobs() -> None:
    capacities = [a_node_capacity(1), a_node_capacity(2), a_node_capacity(3, unschedulable_reason="cordoned")]

    answers = decisions_for(capacities, a_request(1, nodes=1), a_request(2, nodes=3), a_request(3, nodes=1))

    assert [answer.action for answer in answers.values()] == [
        AdmissionAction.ADMIT,
        AdmissionAction.WAIT,
        AdmissionAction.BLOCKED,
    ]
    reason = answers["job-2"].reason
    assert (
        reason
        == "The job waits for 3 nodes with 8 free accelerators each: workers has 1 of them (1 cordoned, 1 in use)."
    )
    assert answers["job-3"].reason == "The job waits behind job-2, which waits for free nodes."


def test_job_larger_than_every_pool_blocks_no_other_job() -> None:
    answers = decisions_for([a_node_capacity(1), a_node_capacity(2)], a_request(1, nodes=3), a_request(2))

    assert [answer.action for answer in answers.values()] == [AdmissionAction.NEVER_FITS, AdmissionAction.ADMIT]
    assert "No pool is large enough" in answers["job-1"].reason
    assert "the largest matching pool has 2 nodes" in answers["job-1"].reason


def test_reason_names_no_largest_pool_where_none_matches() -> None:
    answers = decisions_for([a_node_capacity(1)], a_request(1, instance_types=("ml.trn1.32xlarge",)))

    assert answers["job-1"].action is AdmissionAction.NEVER_FITS
    assert answers["job-1"].reason.startswith("No pool has such nodes: the job asks for 1 node")


def test_job_that_ran_before_waits_for_the_fleet_to_recover() -> None:
    assert actions_for([a_node_capacity(1)], a_request(nodes=2, attempts=1)) == [("job-1", AdmissionAction.WAIT)]


def test_job_without_nodes_of_its_type_blocks_no_other_job() -> None:
    lost = a_request(1, attempts=1, instance_types=("ml.trn1.32xlarge",))

    assert actions_for([a_node_capacity(1)], lost, a_request(2)) == [
        ("job-1", AdmissionAction.WAIT),
        ("job-2", AdmissionAction.ADMIT),
    ]


def test_job_waiting_for_type_blocks_only_same_type() -> None:
    capacities = [a_node_capacity(1), a_node_capacity(2, instance_type="ml.g5.12xlarge", pool="small")]
    large = a_request(1, nodes=2, attempts=1, instance_types=("ml.p5.48xlarge",))

    answers = decisions_for(capacities, large, a_request(2), a_request(3, instance_types=("ml.g5.12xlarge",)))

    assert [answer.action for answer in answers.values()] == [
        AdmissionAction.WAIT,
        AdmissionAction.BLOCKED,
        AdmissionAction.ADMIT,
    ]
    assert answers["job-2"].reason == "The job waits behind job-1, which waits for free nodes."


def test_job_in_backoff_blocks_no_other_job() -> None:
    paused = a_request(1, not_before=at(2000))

    assert actions_for([a_node_capacity(1)], paused, a_request(2)) == [
        ("job-1", AdmissionAction.BACK_OFF),
        ("job-2", AdmissionAction.ADMIT),
    ]


def test_job_whose_backoff_ended_is_admitted() -> None:
    assert actions_for([a_node_capacity(1)], a_request(not_before=at(1000))) == [("job-1", AdmissionAction.ADMIT)]


def test_recovering_job_is_admitted_before_new_jobs() -> None:
    late = a_request(9, is_recovery=True, attempts=1)

    assert actions_for([a_node_capacity(1)], a_request(1), late) == [
        ("job-9", AdmissionAction.ADMIT),
        ("job-1", AdmissionAction.WAIT),
    ]


def test_avoided_nodes_are_not_used() -> None:
    answer = decisions_for([a_node_capacity(1), a_node_capacity(2)], a_request(avoid=(a_life(1).key,)))["job-1"]

    assert answer.node_names == ("node-2",)


def test_gang_never_spans_two_pools() -> None:
    capacities = [a_node_capacity(1, pool="east"), a_node_capacity(2, pool="west")]

    assert actions_for(capacities, a_request(nodes=2)) == [("job-1", AdmissionAction.NEVER_FITS)]


def test_only_the_requested_instance_type_is_used() -> None:
    capacities = [a_node_capacity(1), a_node_capacity(2, instance_type="ml.g5.12xlarge", pool="small")]

    answer = decisions_for(capacities, a_request(instance_types=("ml.g5.12xlarge",)))["job-1"]

    assert answer.node_names == ("node-2",)


def test_fullest_fitting_node_is_used_first() -> None:
    answer = decisions_for([a_node_capacity(1), a_node_capacity(2, free=4)], a_request(accelerators_per_node=2))[
        "job-1"
    ]

    assert answer.node_names == ("node-2",)


def test_pool_with_fewest_free_nodes_is_used_alternative_listed() -> None:
    capacities = [a_node_capacity(1, pool="large"), a_node_capacity(2, pool="large"), a_node_capacity(3, pool="tight")]

    answer = decisions_for(capacities, a_request())["job-1"]

    assert answer.pool == "tight"
    assert [other.option for other in answer.alternatives] == ["large (ml.p5.48xlarge)"]


SPARES = SchedulingPolicy(spare_nodes={"workers": 1})


def test_ordinary_job_does_not_use_a_spare() -> None:
    answer = decisions_for([a_node_capacity(1), a_node_capacity(2)], a_request(nodes=2), policy=SPARES)["job-1"]

    assert answer.action is AdmissionAction.WAIT
    assert "keeps 1 free node for recoveries" in answer.reason


def test_recovering_job_uses_the_spare_node() -> None:
    back = a_request(nodes=2, is_recovery=True, attempts=1)

    assert actions_for([a_node_capacity(1), a_node_capacity(2)], back, policy=SPARES) == [
        ("job-1", AdmissionAction.ADMIT)
    ]


def test_partly_used_node_does_not_count_as_spare() -> None:
    capacities = [a_node_capacity(1, free=4), a_node_capacity(2)]

    assert actions_for(capacities, a_request(accelerators_per_node=4), policy=SPARES) == [
        ("job-1", AdmissionAction.ADMIT)
    ]


def test_job_without_accelerators_uses_any_schedulable_node() -> None:
    answer = decisions_for(
        [a_node_capacity(1, free=0), a_node_capacity(2, unschedulable_reason="not ready")],
        a_request(accelerators_per_node=0),
    )

    assert answer["job-1"].node_names == ("node-1",)


# ---------------------------------------------------------------- node capacity


def a_node(number: int = 1, **changes: Any) -> Node:
    fields = {
        "cluster": CLUSTER,
        "name": f"node-{number}",
        "instance_id": f"i-{number:017x}",
        "pool": "workers",
        "is_ready": True,
        "accelerators": 8,
    }
    return Node(life=a_life(number), kubernetes=KubernetesNode.model_validate({**fields, **changes}))


def free_by_node(*, in_use: dict[tuple[str, str], Resources], charges: list[Charge], pods: bool) -> list[int]:
    workload = a_workload(a_pod(0), a_pod(1))
    workloads = [(CLUSTER, workload)] if pods else []
    return [
        capacity.free.accelerators
        for capacity in node_capacity([a_node(1), a_node(2)], resources_in_use_or_charged(in_use, charges, workloads))
    ]


def test_attempt_without_pods_yet_is_charged() -> None:
    assert free_by_node(in_use={}, charges=[Charge.of(an_attempt())], pods=False) == [0, 0]


def test_attempt_with_pods_is_not_counted_twice() -> None:
    four = Resources(accelerators=4)
    in_use = {(CLUSTER, "node-1"): four, (CLUSTER, "node-2"): four}

    assert free_by_node(in_use=in_use, charges=[Charge.of(an_attempt(accelerators=8))], pods=True) == [4, 4]


def test_ended_attempt_keeps_its_nodes_until_settled() -> None:
    ended = a_workload(a_pod(0, PodPhase.FAILED, 1), a_pod(1, PodPhase.FAILED, 1))

    capacities = node_capacity(
        [a_node(1), a_node(2)], resources_in_use_or_charged({}, [Charge.of(an_attempt())], [(CLUSTER, ended)])
    )

    assert [capacity.free.accelerators for capacity in capacities] == [0, 0]


def test_pod_end_between_reads_frees_nothing_before_settlement() -> None:
    assert free_by_node(in_use={}, charges=[Charge.of(an_attempt())], pods=True) == [0, 0]


@pytest.mark.parametrize(
    ("changes", "why"),
    [
        ({"is_ready": False}, "not ready"),
        ({"is_cordoned": True}, "cordoned"),
        (
            {"is_awaiting_validation": True, "taints": ("evenkeel.io/awaiting-validation=true:NoSchedule",)},
            "awaiting validation",
        ),
        ({"taints": ("team=infra:NoSchedule",)}, "tainted"),
        ({}, ""),
    ],
)
def test_unusable_node_states_its_reason(changes: dict[str, Any], why: str) -> None:
    assert [why] == [capacity.unschedulable_reason for capacity in node_capacity([a_node(**changes)], {})]


def test_node_that_has_not_joined_is_unusable() -> None:
    record = ProviderNode(
        instance_id="i-00000000000000001",
        instance_group="workers",
        instance_type="ml.p5.48xlarge",
        launched_at=NOW,
        status="Pending",
    )

    capacities = list(node_capacity(join_nodes([], [record], CLUSTER), {}))

    assert [capacity.unschedulable_reason for capacity in capacities] == ["not joined yet"]
    assert actions_for(capacities, a_request()) == [("job-1", AdmissionAction.WAIT)]


def test_hyperpod_node_without_provider_record_is_ignored() -> None:
    node = a_node().kubernetes
    assert node

    assert join_nodes([node.replace(hyperpod_cluster_id="abcdefghijkl", created_at=NOW)], [], CLUSTER) == ()


def test_burst_node_life_starts_with_its_node_object() -> None:
    kubernetes_node = a_node().kubernetes
    assert kubernetes_node

    (node,) = join_nodes([kubernetes_node.replace(created_at=NOW)], [], "another")

    assert (node.life.launched_at, node.pool) == (NOW, "workers")


def test_resume_plan_applies_until_a_later_attempt_exists() -> None:
    plan = ResumePlan(
        incident_id="inc-1", after_attempt=1, option=ResumeOption.SPARE, avoid=("somewhere",), planned_at=NOW
    )

    due = AdmissionRequest.of(a_job(resume_plan=plan))
    dead = AdmissionRequest.of(a_job(resume_plan=plan, current_attempt=2))

    assert (due.is_recovery, due.avoid) == (True, ("somewhere",))
    assert (dead.is_recovery, dead.avoid) == (False, ())


def test_preempted_interrupted_job_does_not_overtake_its_preemptor() -> None:
    plan = ResumePlan(
        incident_id="inc-1", after_attempt=1, option=ResumeOption.PREEMPT, avoid=("somewhere",), planned_at=NOW
    )

    preempted_request = AdmissionRequest.of(a_job(resume_plan=plan, current_attempt=1, is_preempted=True))

    assert (
        preempted_request.is_recovery,
        preempted_request.resumes_by_preemption,
        preempted_request.has_prior_grant,
    ) == (False, False, False)
    assert preempted_request.avoid == ("somewhere",), "keep the faulty node of the earlier plan out of the next attempt"


# ---------------------------------------------------------------- properties

capacities_strategy = st.lists(
    st.builds(
        lambda pool, accelerators, free, closed: (pool, accelerators, min(free, accelerators), closed),
        st.sampled_from(["a", "b"]),
        st.sampled_from([4, 8]),
        st.integers(0, 8),
        st.sampled_from(["", "", "", "cordoned"]),
    ),
    max_size=8,
).map(
    lambda drawn: tuple(
        a_node_capacity(number, pool=pool, accelerators=accelerators, free=free, unschedulable_reason=closed)
        for number, (pool, accelerators, free, closed) in enumerate(drawn, 1)
    )
)
requests_strategy = st.lists(
    st.tuples(st.integers(1, 4), st.sampled_from([0, 1, 4, 8]), st.booleans(), st.booleans()), max_size=8
).map(
    lambda drawn: tuple(
        a_request(
            number,
            nodes=nodes,
            accelerators_per_node=gpus,
            is_recovery=recovers,
            attempts=int(recovers),
            not_before=at(5000) if paused else None,
        )
        for number, (nodes, gpus, recovers, paused) in enumerate(drawn, 1)
    )
)
snapshots = st.builds(
    lambda capacities, pending: AdmissionInput(capacities=capacities, pending=pending),
    capacities_strategy,
    requests_strategy,
)
policies = st.builds(lambda count: SchedulingPolicy(spare_nodes={"a": count}), st.integers(0, 2))


@given(snapshots, policies)
def test_no_node_is_overcommitted(admission_input: AdmissionInput, policy: SchedulingPolicy) -> None:
    requests = {request.job_id: request for request in admission_input.pending}
    taken: Counter[str] = Counter()
    for answer in decide_in_queue_order(admission_input, policy, at(1000)):
        if answer.action is AdmissionAction.ADMIT:
            assert len(set(answer.nodes)) == requests[answer.job_id].nodes
            taken.update({life.key: requests[answer.job_id].accelerators_per_node for life in answer.nodes})

    assert all(taken[capacity.life.key] <= capacity.free.accelerators for capacity in admission_input.capacities)
    closed = {capacity.life.key for capacity in admission_input.capacities if capacity.unschedulable_reason}
    assert not closed & set(taken)


@given(snapshots, policies)
def test_no_job_overtakes_a_waiting_job(admission_input: AdmissionInput, policy: SchedulingPolicy) -> None:
    answers = decide_in_queue_order(admission_input, policy, at(1000))
    requests = {request.job_id: request for request in admission_input.pending}

    keys = [requests[answer.job_id].queue_order_key for answer in answers]
    assert sorted(keys) == keys
    assert len(answers) == len(admission_input.pending)
    held: dict[tuple[str, str], str] = {}
    for answer in answers:
        kinds = {(fit.pool, fit.instance_type) for fit in answer.facts.fits}
        if answer.action in (AdmissionAction.ADMIT, AdmissionAction.WAIT):
            assert not kinds & held.keys()
        if answer.action is AdmissionAction.BLOCKED:
            assert answer.facts.blocked_by in {held[kind] for kind in kinds & held.keys()}
        if answer.action is AdmissionAction.WAIT:
            held.update(dict.fromkeys(kinds, answer.job_id))


@given(snapshots, policies)
def test_ordinary_job_never_uses_spares(admission_input: AdmissionInput, policy: SchedulingPolicy) -> None:
    empty = {
        capacity.node_name for capacity in admission_input.capacities if capacity.pool == "a" and capacity.is_unused
    }
    for answer in decide_in_queue_order(admission_input, policy, at(1000)):
        if answer.action is AdmissionAction.ADMIT and answer.facts.request.accelerators_per_node:
            used = empty & set(answer.node_names)
            empty -= used
            if used and not answer.facts.request.is_recovery:
                assert len(empty) >= policy.spare_nodes["a"]


@given(snapshots, policies, st.randoms(use_true_random=False))
def test_order_of_the_facts_does_not_matter(
    admission_input: AdmissionInput, policy: SchedulingPolicy, random: object
) -> None:
    capacities, pending = list(admission_input.capacities), list(admission_input.pending)
    random.shuffle(capacities)  # type: ignore[attr-defined]  # a random.Random, by hypothesis
    random.shuffle(pending)  # type: ignore[attr-defined]

    assert decide_in_queue_order(admission_input, policy, at(1000)) == decide_in_queue_order(
        AdmissionInput(capacities=tuple(capacities), pending=tuple(pending)), policy, at(1000)
    )


@given(snapshots, policies)
def test_every_decision_replays_from_its_record(admission_input: AdmissionInput, policy: SchedulingPolicy) -> None:
    for answer in decide_in_queue_order(admission_input, policy, at(1000)):
        assert answer == decide(AdmissionFacts.model_validate(answer.facts.to_json()))
