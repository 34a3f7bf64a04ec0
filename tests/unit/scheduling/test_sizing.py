"""The size at which a pending elastic job starts, with one queue for all jobs."""

from evenkeel.domain.admission.admission_input import AdmissionInput
from evenkeel.domain.admission.admission_request import AdmissionRequest
from evenkeel.domain.admission.decide_job import AdmissionAction, AdmissionDecision
from evenkeel.domain.admission.scheduling_policy import SchedulingPolicy
from evenkeel.domain.admission.start_size import decide_with_sizes
from evenkeel.domain.capacity.node_capacity import NodeCapacity
from evenkeel.domain.policy import Policy
from tests.unit.scheduling.builders import a_node_capacity, a_request, at

POLICY = Policy(scheduling=SchedulingPolicy(spare_nodes={"spared": 1}))
NOW = at(1000)


def decide_sizes(
    capacities: list[NodeCapacity], *pending: AdmissionRequest, whole: frozenset[str] = frozenset()
) -> dict[str, AdmissionDecision]:
    admission_input = AdmissionInput(capacities=tuple(capacities), pending=pending)
    return {
        admission_decision.job_id: admission_decision
        for admission_decision in decide_with_sizes(admission_input, POLICY, NOW, whole)
    }


def sizes_by_job(decisions: dict[str, AdmissionDecision]) -> dict[str, int]:
    return {
        name: len(decision.nodes) for name, decision in decisions.items() if decision.action is AdmissionAction.ADMIT
    }


def an_elastic_request(number: int, nodes: int, *smaller: int, **changes: object) -> AdmissionRequest:
    return a_request(number, nodes=nodes, requested_nodes=nodes, sizes=smaller, **changes)


def test_largest_allowed_size_that_fits_is_used() -> None:
    capacities = [a_node_capacity(number) for number in range(1, 7)]

    assert sizes_by_job(decide_sizes(capacities, an_elastic_request(1, 8, 1, 2, 4))) == {"job-1": 4}
    assert sizes_by_job(decide_sizes(capacities, an_elastic_request(1, 6, 1, 2, 4))) == {"job-1": 6}


def test_elastic_job_larger_than_the_fleet_starts_smaller() -> None:
    assert sizes_by_job(decide_sizes([a_node_capacity(1)], an_elastic_request(1, 2, 1))) == {"job-1": 1}


def test_two_small_jobs_start_before_one_grows() -> None:
    capacities = [a_node_capacity(number) for number in range(1, 5)]

    assert sizes_by_job(
        decide_sizes(capacities, an_elastic_request(1, 8, 1, 2, 3, 4), an_elastic_request(2, 8, 1, 2))
    ) == {"job-1": 3, "job-2": 1}


def test_inelastic_job_still_blocks_later_jobs() -> None:
    decisions = decide_sizes(
        [a_node_capacity(1), a_node_capacity(2)], a_request(1, nodes=3, attempts=1), an_elastic_request(2, 2, 1)
    )

    assert [admission_decision.action for admission_decision in decisions.values()] == [
        AdmissionAction.WAIT,
        AdmissionAction.BLOCKED,
    ]


def test_interrupted_job_shrinks_only_after_its_spare_wait() -> None:
    waiting = an_elastic_request(1, 2, 1, attempts=1, is_recovery=True, shrinks_at=at(1001))
    shrinks = an_elastic_request(1, 2, 1, attempts=1, is_recovery=True, shrinks_at=at(1000))

    assert sizes_by_job(decide_sizes([a_node_capacity(1)], waiting)) == {}
    assert sizes_by_job(decide_sizes([a_node_capacity(1)], shrinks)) == {"job-1": 1}


def test_interrupted_shrunk_job_starts_once_its_last_size_fits() -> None:
    ran_on_one = an_elastic_request(1, 4, 1, 2, attempts=1, is_recovery=True, shrinks_at=at(1001), last_nodes=1)
    ran_on_two = an_elastic_request(1, 4, 1, 2, attempts=1, is_recovery=True, shrinks_at=at(1001), last_nodes=2)

    assert sizes_by_job(decide_sizes([a_node_capacity(1), a_node_capacity(2)], ran_on_one)) == {"job-1": 2}
    assert sizes_by_job(decide_sizes([a_node_capacity(1), a_node_capacity(2)], ran_on_two)) == {"job-1": 2}
    assert sizes_by_job(decide_sizes([a_node_capacity(1)], ran_on_two)) == {}


def test_job_waits_for_all_launching_rented_nodes() -> None:
    assert (
        sizes_by_job(decide_sizes([a_node_capacity(1)], an_elastic_request(1, 2, 1), whole=frozenset({"job-1"}))) == {}
    )


def test_spare_nodes_stay_spare_at_every_size() -> None:
    capacities = [a_node_capacity(1, pool="spared"), a_node_capacity(2, pool="spared")]

    assert sizes_by_job(decide_sizes(capacities, an_elastic_request(1, 2, 1))) == {"job-1": 1}


def test_backoff_delays_an_elastic_job_at_every_size() -> None:
    assert sizes_by_job(decide_sizes([a_node_capacity(1)], an_elastic_request(1, 2, 1, not_before=at(2000)))) == {}


def test_elastic_jobs_that_cannot_start_do_not_starve_later_jobs() -> None:
    capacities = [a_node_capacity(number, instance_type="ml.p4d.24xlarge", pool="p4") for number in range(1, 9)] + [
        a_node_capacity(20)
    ]
    too_large = [an_elastic_request(number, 8, 4, instance_types=("ml.p5.48xlarge",)) for number in range(1, 7)]

    decisions = decide_sizes(
        capacities, *too_large, an_elastic_request(7, 12, 1, 2, instance_types=("ml.p4d.24xlarge",))
    )

    assert sizes_by_job(decisions) == {"job-7": 2}


def test_elastic_jobs_start_small_before_one_grows() -> None:
    capacities = [a_node_capacity(number) for number in range(1, 9)]

    decisions = decide_sizes(capacities, *(an_elastic_request(number, 16, 1, 2, 4) for number in range(1, 8)))

    assert sizes_by_job(decisions) == {"job-1": 2} | {f"job-{number}": 1 for number in range(2, 8)}
