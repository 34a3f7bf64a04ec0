"""Renting: ownership of nodes, facts of a placement, and the start and the end of a rental."""

from datetime import UTC, datetime, timedelta
from typing import Any

from hypothesis import given
from hypothesis import strategies as st

from evenkeel.domain.admission.admission_request import AdmissionRequest
from evenkeel.domain.admission.pool_fits import pool_fits
from evenkeel.domain.capacity.compatibility import PoolEnvironment
from evenkeel.domain.capacity.node_capacity import NodeCapacity
from evenkeel.domain.capacity.pools import LaunchDelay, Market
from evenkeel.domain.capacity.shortages import Shortages
from evenkeel.domain.external.kueue_status import KueueCheck, KueueCondition, KueueStatus
from evenkeel.domain.jobs.attempt import Attempt, AttemptState
from evenkeel.domain.jobs.charge import Charge
from evenkeel.domain.jobs.job import Job, JobState
from evenkeel.domain.jobs.spec import JobSpec
from evenkeel.domain.nodes import KubernetesNode, NodeLife
from evenkeel.domain.policy import Policy
from evenkeel.domain.renting.burst_policy import BurstPolicy, RentedPool
from evenkeel.domain.renting.candidates import PlacementContext, placement_facts
from evenkeel.domain.renting.placement import PlacementAction, choose_pool
from evenkeel.domain.renting.rental import UNASSIGNED, Rental, RentalOffer, RentalState, end_rental
from evenkeel.domain.renting.rental_book import RentalAllocation, RentalBook, reserve_rented_nodes
from evenkeel.domain.renting.rental_waits import evaluate_rental_over, evaluate_rental_ready
from evenkeel.domain.resources import Resources
from evenkeel.domain.waiting import WaitAnswer, WaitOutcome
from tests.fakes import a_node

START = datetime(2026, 11, 3, 10, 15, tzinfo=UTC)
POOL = RentedPool(
    name="burst",
    cluster="research-eks",
    market=Market.ON_DEMAND,
    instance_type="p5.48xlarge",
    accelerators_per_node=8,
    max_nodes=4,
    micros_per_node_hour=50_000_000,
    launch=LaunchDelay(p50_seconds=60, p90_seconds=120),
    environment=PoolEnvironment(),
)
POLICY = Policy(
    burst=BurstPolicy(
        pools=(POOL,),
        fleet_cap_micros_per_hour=10**9,
        other_team_cap_micros_per_hour=10**9,
        other_delay_micros_per_hour=10**8,
    )
)


def a_job(**changes: Any) -> Job:
    spec = JobSpec(name="llama", image="i", command=("c",), nodes=2, checkpoint_uri="s3://b/llama")
    facts: dict[str, Any] = {
        "job_id": "job-a",
        "spec": spec,
        "state": JobState.PENDING,
        "submitted_at": START,
        "cluster": "research-eks",
        "namespace": "evenkeel-jobs",
        "rentals": 1,
    }
    return Job.model_validate({**facts, **changes})


def a_rental(**changes: Any) -> Rental:
    facts: dict[str, Any] = {
        "job_id": "job-a",
        "number": 1,
        "team": "default",
        "namespace": "evenkeel-jobs",
        "state": RentalState.OPENING,
        "reason": "It cannot wait.",
        "nodes": 2,
        "offers": (RentalOffer.of(POOL, START),),
        "begun_at": START,
        "ready_by": START + timedelta(seconds=900),
        "decision_id": "dec-1",
    }
    return Rental.model_validate({**facts, **changes})


def a_ready_rental(**changes: Any) -> Rental:
    facts = {"state": RentalState.READY, "node_names": ("ip-1", "ip-2"), "handed_over_at": START}
    return a_rental(**{**facts, **changes})


def rented_node(number: int, **changes: Any) -> KubernetesNode:
    return a_node(number, name=f"ip-{number}", pool="burst", hyperpod_cluster_id=None, **changes)


def a_node_capacity(
    number: int, pool: str = "burst", *, accelerators: int = 8, free: int = 0, **changes: Any
) -> NodeCapacity:
    facts: dict[str, Any] = {
        "life": NodeLife(cluster="research-eks", instance_id=f"i-{number:017x}", launched_at=START),
        "node_name": f"ip-{number}",
        "cluster": "research-eks",
        "pool": pool,
        "instance_type": "p5.48xlarge",
        "allocatable": Resources(accelerators=accelerators),
        "free": Resources(accelerators=free),
    }
    return NodeCapacity.model_validate({**facts, **changes})


def an_attempt(state: AttemptState = AttemptState.RUNNING, **changes: Any) -> Attempt:
    facts: dict[str, Any] = {
        "job_id": "job-a",
        "attempt": 1,
        "state": state,
        "cluster": "research-eks",
        "namespace": "evenkeel-jobs",
        "pool": "burst",
        "nodes": (),
        "node_names": ("ip-1", "ip-2"),
        "accelerators": 16,
        "admitted_at": START,
    }
    return Attempt.model_validate({**facts, **changes})


# ---------------------------------------------------------------- ownership of nodes


def test_rented_node_is_reserved_for_its_job() -> None:
    capacities = reserve_rented_nodes(
        [a_node_capacity(1), a_node_capacity(2), a_node_capacity(3), a_node_capacity(4, "p5-workers")],
        [a_ready_rental()],
        (POOL,),
    )

    assert [(capacity.reserved_for, capacity.free.accelerators) for capacity in capacities] == [
        ("job-a", 8),
        ("job-a", 8),
        (UNASSIGNED, 0),
        ("", 0),
    ]


def test_nodes_being_launched_or_released_are_unavailable() -> None:
    for state in (RentalState.OPENING, RentalState.ENDING):
        capacities = reserve_rented_nodes([a_node_capacity(1)], [a_ready_rental(state=state)], (POOL,))
        assert capacities[0].reserved_for == UNASSIGNED


def test_removed_pool_stays_known_while_nodes_are_rented() -> None:
    assert reserve_rented_nodes([a_node_capacity(1)], [a_ready_rental()], ())[0].reserved_for == "job-a"
    assert reserve_rented_nodes([a_node_capacity(1)], [], ())[0].reserved_for == ""


def test_reserved_nodes_are_offered_whole_and_only_to_their_job() -> None:
    reserved = reserve_rented_nodes([a_node_capacity(1), a_node_capacity(2)], [a_ready_rental()], (POOL,))
    common = a_node_capacity(3, "p5-workers", free=8)
    owner, other_job = AdmissionRequest.of(a_job()), AdmissionRequest.of(a_job(job_id="job-b"))

    assert [fit.pool for fit in pool_fits(owner, (*reserved, common), POLICY.scheduling)] == ["burst"]
    assert [fit.pool for fit in pool_fits(other_job, (*reserved, common), POLICY.scheduling)] == ["p5-workers"]
    with_lost_node = (reserved[0], reserved[1].replace(unschedulable_reason="not ready"), common)
    assert [fit.pool for fit in pool_fits(owner, with_lost_node, POLICY.scheduling)] == ["p5-workers"]


def test_evicted_attempt_keeps_its_rental_until_its_pods_have_saved() -> None:
    """Kueue resets the check when it evicts; the nodes of the attempt may not be recorded yet."""
    conditions = tuple(KueueCondition(type=kind, is_true=True) for kind in ("QuotaReserved", "Admitted", "Evicted"))
    check = KueueCheck(name="burst", state="Pending", message="Reset to Pending after eviction. Previously: Ready")
    status = KueueStatus(name="w", queue="q", conditions=conditions, checks=(check,))
    attempt = an_attempt(local_queue="q", node_names=(), size=2)
    job = a_job(state=JobState.RUNNING, current_attempt=1, rentals=1)
    nodes = [rented_node(1), rented_node(2)]

    def answer(state: AttemptState, seconds: float) -> WaitAnswer | None:
        now = START + timedelta(seconds=seconds)
        return evaluate_rental_over(a_ready_rental(), job, attempt.replace(state=state), nodes, 60, now, status)

    assert answer(AttemptState.RUNNING, 300) is None
    assert answer(AttemptState.LAUNCHED, 30) is None
    idle = answer(AttemptState.LAUNCHED, 90)
    assert idle
    assert idle.reason == "No pod has used these nodes for 90 s."


# ---------------------------------------------------------------- facts of a placement


def market_conditions(*capacities: NodeCapacity, **changes: Any) -> PlacementContext:
    return PlacementContext(START + timedelta(seconds=5), capacities, queue=(a_job(),))._replace(**changes)


def a_committed_node(number: int, **changes: Any) -> NodeCapacity:
    return a_node_capacity(number, "p5-workers", instance_type="ml.p5.48xlarge", **changes)


def test_no_node_is_rented_while_a_fitting_node_boots() -> None:
    node_capacities = [
        a_committed_node(1, unschedulable_reason="not ready"),
        a_committed_node(2, unschedulable_reason="not ready"),
    ]
    short = Shortages().with_refusal("p5-workers", "", Market.COMMITTED, START)

    soon = placement_facts(a_job(), market_conditions(*node_capacities), POLICY)
    never = placement_facts(a_job(), market_conditions(*node_capacities, shortages=short), POLICY)

    assert soon.candidates[0].wait_seconds == POLICY.jobs.expected_replace_seconds
    assert never.candidates[0].wait_seconds == 30 * 86_400
    assert (choose_pool(soon).action, choose_pool(never).action) == (PlacementAction.WAIT, PlacementAction.RENT)


def test_forecast_of_required_level_counts_one_domain() -> None:
    spec = a_job().spec.replace(nodes=2, required_network_level="layer-3")
    job = a_job(spec=spec)
    left, right = ("top", "middle", "left"), ("top", "middle", "right")
    idle = {"free": 8, "network_layers": left}
    idle_elsewhere = {**idle, "network_layers": right}
    booting = {"network_layers": left, "unschedulable_reason": "not ready"}

    def wait(*nodes: NodeCapacity) -> float:
        return placement_facts(job, market_conditions(*nodes, queue=(job,)), POLICY).candidates[0].wait_seconds

    together = wait(a_committed_node(1, **idle), a_committed_node(2, **idle))
    apart = wait(a_committed_node(1, **idle), a_committed_node(2, **idle_elsewhere))
    after_the_boot = wait(
        a_committed_node(1, **idle), a_committed_node(2, **booting), a_committed_node(3, **idle_elsewhere)
    )

    assert (together, apart) == (5.0, 30 * 86_400)
    assert after_the_boot == POLICY.jobs.expected_replace_seconds


def test_forecast_never_empties_nodes_in_unmanaged_use() -> None:
    job = a_job(spec=a_job().spec.replace(nodes=1))
    charge = Charge.of(
        an_attempt(
            job_id="job-b", pool="p5-workers", instance_type="ml.p5.48xlarge", node_names=("ip-1",), accelerators=2
        )
    )

    def wait(*nodes: NodeCapacity, **changes: Any) -> float:
        conditions = market_conditions(*nodes, queue=(job,), charges=(charge,), **changes)
        return placement_facts(job, conditions, POLICY).candidates[0].wait_seconds

    of_charge_alone = wait(a_committed_node(1, free=6), a_committed_node(2, free=8))
    beside_unmanaged_pods = wait(a_committed_node(1, free=5), a_committed_node(2, free=7))

    assert (of_charge_alone, beside_unmanaged_pods) == (5.0, 30 * 86_400)


def test_wait_of_interrupted_job_begins_with_the_interruption() -> None:
    job = a_job(submitted_at=START - timedelta(hours=9))
    booting = [a_committed_node(number, unschedulable_reason="not ready") for number in (1, 2)]
    conditions = market_conditions(*booting, now=START, queue=(job,))

    interrupted = placement_facts(job, conditions, POLICY, 8 * 3600, waiting_since=START - timedelta(minutes=5))
    never_ran = placement_facts(job, conditions, POLICY)

    assert interrupted.candidates[0].wait_seconds == max(300, POLICY.jobs.expected_replace_seconds)
    assert never_ran.candidates[0].wait_seconds == 9 * 3600


def test_placement_from_stored_facts_is_the_same() -> None:
    facts = placement_facts(a_job(), market_conditions(a_committed_node(1), a_committed_node(2)), POLICY)

    stored = type(facts).model_validate(facts.to_json())

    assert choose_pool(stored).to_json() == choose_pool(facts).to_json()


@given(st.integers(0, 4), st.integers(0, 300_000_000))
def test_no_placement_breaks_a_cap_or_a_limit(rented: int, cap: int) -> None:
    burst = POLICY.burst.replace(fleet_cap_micros_per_hour=cap)
    hold = RentalAllocation(
        job_id="job-z",
        number=1,
        team="other",
        cluster=POOL.cluster,
        pool=POOL.name,
        nodes=rented,
        accelerators_per_node=8,
        micros_per_hour=rented * 50_000_000,
    )
    placement_context = market_conditions(
        a_committed_node(1), a_committed_node(2), rented=RentalBook(allocations=(hold,))
    )

    decision = choose_pool(placement_facts(a_job(), placement_context, POLICY.replace(burst=burst)))

    if decision.action is PlacementAction.RENT:
        assert rented * 50_000_000 + 2 * POOL.micros_per_node_hour <= cap
        assert rented + 2 <= POOL.max_nodes


# ---------------------------------------------------------------- waits


def test_rental_is_ready_when_all_its_nodes_are() -> None:
    nodes = [rented_node(1), rented_node(2)]

    assert evaluate_rental_ready(a_rental(), a_job(), nodes[:1], "") is None
    assert rental_outcome(nodes=nodes) == WaitOutcome.NODES_READY
    assert evaluate_rental_ready(a_rental(), a_job(), nodes, "", other_nodes=("ip-1",)) is None


def rental_outcome(**changes: Any) -> str:
    arguments: dict[str, Any] = {"rental": a_rental(), "job": a_job(), "nodes": [], "refusal": "", **changes}
    answer = evaluate_rental_ready(**arguments)
    return answer.outcome if answer else ""


def test_refusal_ends_the_wait_unless_nodes_launched() -> None:
    assert rental_outcome(refusal="no capacity") == WaitOutcome.REFUSED
    assert rental_outcome(refusal="no capacity", nodes=[rented_node(1), rented_node(2)]) == WaitOutcome.NODES_READY
    assert rental_outcome(refusal="no capacity", job=a_job(state=JobState.CANCELLED)) == WaitOutcome.NOT_WANTED
    assert rental_outcome(job=a_job(rentals=2)) == WaitOutcome.NOT_WANTED


def why_rental_ended(job: Job, attempt: Attempt | None, seconds: int = 0, nodes: int = 2) -> str:
    nodes_present = [rented_node(number) for number in range(1, nodes + 1)]
    answer = evaluate_rental_over(a_ready_rental(), job, attempt, nodes_present, 60, START + timedelta(seconds=seconds))
    return answer.outcome if answer else ""


def test_rented_nodes_stay_while_the_job_runs_on_them() -> None:
    assert why_rental_ended(a_job(state=JobState.RUNNING), an_attempt(), 10_000, nodes=0) == ""


def test_ended_or_moved_job_frees_its_rental_at_once() -> None:
    over = an_attempt(AttemptState.SUCCEEDED, ended_at=START)
    elsewhere = an_attempt(node_names=("hyperpod-1", "hyperpod-2"), attempt=2)

    assert why_rental_ended(a_job(state=JobState.SUCCEEDED), over) == WaitOutcome.OVER
    assert why_rental_ended(a_job(state=JobState.SUSPENDED), over) == WaitOutcome.OVER
    assert why_rental_ended(a_job(state=JobState.RUNNING), elsewhere) == WaitOutcome.OVER


def test_pending_job_keeps_its_rental_for_the_quiet_period() -> None:
    with_lost_node = an_attempt(AttemptState.FAILED, ended_at=START + timedelta(seconds=30))

    assert why_rental_ended(a_job(), with_lost_node, 80) == ""
    assert why_rental_ended(a_job(), with_lost_node, 90) == WaitOutcome.OVER
    assert why_rental_ended(a_job(), None, 59) == ""
    assert why_rental_ended(a_job(), None, 60) == WaitOutcome.OVER


def test_migrating_or_interrupted_job_keeps_no_rental() -> None:
    stopped = an_attempt(AttemptState.STOPPED, ended_at=START)

    assert why_rental_ended(a_job(is_migrating_back=True), stopped) == WaitOutcome.OVER
    assert why_rental_ended(a_job(), stopped, nodes=1) == WaitOutcome.OVER


# ---------------------------------------------------------------- the bill


@given(st.integers(1, 8), st.integers(1, 100_000_000), st.integers(0, 10**9), st.integers(1, 5))
def test_bill_is_exact_and_offers_without_nodes_cost_nothing(
    nodes: int, price: int, microseconds: int, offers: int
) -> None:
    empty = RentalOffer.of(POOL, START).replace(refused="no", closed_at=START + timedelta(hours=5))
    joined = tuple(f"ip-{number}" for number in range(nodes))
    last = RentalOffer.of(POOL.replace(micros_per_node_hour=price), START).replace(joined_node_names=joined)
    rental = a_rental(nodes=nodes, offers=(*[empty] * offers, last), state=RentalState.ENDING)

    over = end_rental(rental, START + timedelta(microseconds=microseconds)).rental

    seconds = max(60, -(-microseconds // 1_000_000))
    assert over.cost_parts == price * nodes * seconds
    assert over.state is RentalState.ENDED
