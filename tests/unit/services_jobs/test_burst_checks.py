"""Kueue asks for nodes by the admission check `evenkeel.io/burst`: the cycle weighs, rents, and answers."""

import contextlib
from dataclasses import dataclass
from datetime import datetime
from typing import Any

import pytest

from evenkeel.adapters.admission_checks import read_checked_workload
from evenkeel.domain.admission.authority import AdmissionAuthority
from evenkeel.domain.decisions import Decision
from evenkeel.domain.external.burst_check_protocol import (
    RENTAL_NODE_LABEL,
    BurstCheckAnswer,
    BurstCheckState,
    CheckedWorkload,
)
from evenkeel.domain.external.kueue_status import KueueCheck, KueueCondition
from evenkeel.domain.jobs.attempt import Attempt, AttemptState
from evenkeel.domain.jobs.job import Job, JobState
from evenkeel.domain.policy_section import Mode
from evenkeel.domain.renting.rental import RentalState
from evenkeel.domain.replay import replay
from evenkeel.ports import BurstChecks, Conflict, PermanentError, Put, Row
from evenkeel.services.attempts import record_nodes
from evenkeel.services.queries.fleet import read_status
from evenkeel.services.queries.jobs import read_jobs
from evenkeel.services.tables import job_rows, rows
from tests.fakes.cluster import CLUSTER
from tests.fakes.crashes import Crash, CrashPlan, CrashTiming
from tests.unit.services_jobs.job_scenario import NAMESPACE, JobScenario
from tests.unit.services_jobs.test_rentals import ON_DEMAND, SPOT, RentalScenario, a_policy
from tests.unit.services_jobs.test_scheduling_hold import hold_scheduling

CHECK = "evenkeel-burst"
FLAVOR_LABELS = {"node.kubernetes.io/instance-type": "p5.48xlarge"}


@dataclass
class BurstCheckScenario(RentalScenario):
    """A fleet where Kueue admits, with two busy committed nodes and a job that Kueue has reserved burst quota for."""

    def __post_init__(self) -> None:
        super().__post_init__()
        self.scenario = JobScenario(
            size=2, policy=self.policy, mode=self.mode, plan=self.plan, admission=AdmissionAuthority.KUEUE
        )
        self.world = self.scenario.world
        self.cluster = self.world.cluster
        self.cluster.limits = {(CLUSTER, SPOT): (0, 0), (CLUSTER, ON_DEMAND): (0, 0)}
        self.cluster.burst_check_names[CHECK] = True
        for node in self.cluster.nodes(CLUSTER):
            self.cluster.foreign_accelerators[node.name] = 8

    def submit_and_reserve(self, key: str = "key-1", spec: dict[str, Any] | None = None, **facts: Any) -> Job:
        """Submit a job; Kueue reserves quota of the burst flavor and asks for the check."""
        job = self.scenario.submit(key, **(spec or {}))
        self.scenario.run_scheduling_cycle()
        self.scenario.launch(job.job_id)
        self.reserve(job.job_id, 1, **facts)
        return self.scenario.job(job.job_id)

    def reserve(self, job_id: str, attempt: int, **facts: Any) -> None:
        launched = self.scenario.attempt(job_id, attempt)
        name = f"job-{launched.workload_name}"
        known = {
            "cluster": CLUSTER,
            "namespace": NAMESPACE,
            "name": name,
            "resource_version": "1",
            "job_name": launched.workload_name,
            "job_uid": launched.workload_uid,
            "check": CHECK,
            "state": BurstCheckState.PENDING,
            "has_quota": True,
            "pod_sets": ("main",),
            "pods": launched.ranks,
            "flavors": ("burst-p5",),
            "node_labels": FLAVOR_LABELS,
        }
        self.cluster.checked[f"{NAMESPACE}/{name}"] = CheckedWorkload.model_validate(known | facts)
        self.say(job_id, attempt, KueueCondition(type="QuotaReserved", is_true=True, changed_at=self.world.clock.now()))

    def say(
        self, job_id: str, attempt: int, *conditions: KueueCondition, selector: dict[str, str] | None = None
    ) -> None:
        check = KueueCheck(name=CHECK, state="Ready" if selector else "Pending", node_selector=selector or {})
        self.cluster.kueue_says(job_id, attempt, *conditions, checks=(check,))

    def admit(self, job_id: str, attempt: int = 1) -> None:
        """Kueue admits a job whose check is Ready; its pods run on nodes that its selector names."""
        workload = self.checked(job_id, attempt)
        selector = dict(workload.node_selector)
        names = [node.name for node in self.cluster.nodes(CLUSTER) if selector.items() <= node.labels.items()]
        check = KueueCheck(name=CHECK, state="Ready", node_selector=selector)
        self.cluster.kueue_admits(job_id, attempt, *names, checks=(check,))
        self.change(job_id, attempt, is_admitted=True)
        self.scenario.mark_running(job_id, attempt)
        record_nodes.run(job_id, attempt, self.scenario.context())

    def change(self, job_id: str, attempt: int = 1, **facts: Any) -> None:
        workload = self.checked(job_id, attempt)
        version = {"resource_version": f"{workload.resource_version}x"}
        self.cluster.checked[workload.label] = workload.replace(**{**version, **facts})

    def checked(self, job_id: str, attempt: int = 1) -> CheckedWorkload:
        return self.cluster.checked[f"{NAMESPACE}/job-{job_id}-a{attempt}"]

    def provide_nodes(self) -> None:
        for step in (self.advance_executions, self.launch_nodes, self.advance_executions):
            step()

    def run_on_rented_nodes(self) -> Job:
        job = self.submit_and_reserve()
        self.scenario.run_scheduling_cycle()
        self.provide_nodes()
        self.scenario.run_scheduling_cycle()
        self.admit(job.job_id)
        return self.scenario.job(job.job_id)

    def answers(self) -> list[str]:
        return [call[2] for call in self.cluster.calls if call[0] == "answer_check"]

    def burst_records(self) -> list[Decision]:
        return self.decision_records("BURST_CHECK")


def test_ready_check_names_the_nodes_rented_for_its_job() -> None:
    burst = BurstCheckScenario()
    job = burst.submit_and_reserve()

    burst.scenario.run_scheduling_cycle()
    opening = burst.checked(job.job_id)
    rental = burst.rental(job.job_id, 1)
    burst.provide_nodes()
    burst.scenario.run_scheduling_cycle()
    ready = burst.checked(job.job_id)

    assert (opening.state, rental.state) == (BurstCheckState.PENDING, RentalState.OPENING)
    assert "sooner" in opening.message
    assert (ready.state, ready.node_selector) == (BurstCheckState.READY, {RENTAL_NODE_LABEL: rental.name})
    assert ready.message == f"2 nodes of {SPOT} are rented for the job and ready."
    labelled = [node.name for node in burst.cluster.nodes(CLUSTER) if node.labels.get(RENTAL_NODE_LABEL) == rental.name]
    assert sorted(labelled) == sorted(burst.rental(job.job_id, 1).node_names)
    assert burst.cluster.capacity == {}
    assert burst.scenario.job(job.job_id).state is JobState.STARTING


def test_rental_released_during_the_cycle_is_not_answered_ready() -> None:
    burst = BurstCheckScenario()
    job = burst.submit_and_reserve()
    burst.scenario.run_scheduling_cycle()
    burst.provide_nodes()
    list_nodes = burst.cluster.nodes

    def list_nodes_after_release(cluster: str) -> Any:
        burst.cluster.nodes = list_nodes  # type: ignore[method-assign]
        row = burst.world.ledger.get(job_rows.rental_key(job.job_id, 1))
        assert row
        released = burst.rental(job.job_id, 1).replace(state=RentalState.ENDING)
        burst.world.ledger.commit(Put(job_rows.rental_row(released, row.version)))
        return list_nodes(cluster)

    burst.cluster.nodes = list_nodes_after_release  # type: ignore[method-assign]

    burst.scenario.run_scheduling_cycle()

    assert burst.rental(job.job_id, 1).state is RentalState.ENDING
    assert "Ready" not in burst.answers()
    assert burst.checked(job.job_id).state is BurstCheckState.PENDING


def test_job_runs_on_its_rental_which_ends_with_it() -> None:
    burst = BurstCheckScenario()
    job = burst.run_on_rented_nodes()
    burst.advance_executions()
    running = burst.rental(job.job_id, 1)
    attempt = burst.scenario.attempt(job.job_id, 1)

    burst.cluster.finish_pods(job.job_id, 1)
    burst.scenario.settle(job.job_id, 1)
    for _ in range(3):
        burst.advance_executions()

    assert (running.state, attempt.is_rented, attempt.pool) == (RentalState.READY, True, SPOT)
    assert burst.rental(job.job_id, 1).state is RentalState.ENDED
    assert not [node for node in burst.cluster.nodes(CLUSTER) if node.pool == SPOT]


def test_repeated_cycles_answer_once_and_rent_once() -> None:
    burst = BurstCheckScenario()
    job = burst.submit_and_reserve()

    for _ in range(3):
        burst.scenario.run_scheduling_cycle()
    burst.provide_nodes()
    for _ in range(3):
        burst.scenario.run_scheduling_cycle()

    assert burst.answers() == ["Pending", "Ready"]
    assert burst.scenario.job(job.job_id).rentals == 1


@pytest.mark.parametrize(
    ("changes", "expected"),
    [
        ({"fleet_cap_micros_per_hour": 0}, "exceeds the limit"),
        ({"other_team_cap_micros_per_hour": 0}, "exceeds the limit"),
        ({"other_delay_micros_per_hour": 0}, "The job waits about"),
    ],
    ids=["cap of the fleet", "cap of the team", "no price of delay"],
)
def test_rent_that_is_not_allowed_is_retried_later(changes: dict[str, Any], expected: str) -> None:
    burst = BurstCheckScenario(policy=a_policy(**changes))
    job = burst.submit_and_reserve(retry_count=2)

    burst.scenario.run_scheduling_cycle()

    workload = burst.checked(job.job_id)
    assert workload.state is BurstCheckState.RETRY
    assert expected in workload.message
    assert burst.scenario.job(job.job_id).rentals == 0
    (record,) = burst.burst_records()
    assert record.action == "RETRY"


@pytest.mark.parametrize("covers_all", [True, False])
def test_flavor_without_pool_is_retried_as_kueue_may_reserve_another(covers_all: bool) -> None:
    burst = BurstCheckScenario()
    labels = {"node.kubernetes.io/instance-type": "p4d.24xlarge"}
    job = burst.submit_and_reserve(node_labels=labels, covers_all_flavors=covers_all)

    burst.scenario.run_scheduling_cycle()

    workload = burst.checked(job.job_id)
    assert workload.state is BurstCheckState.RETRY
    assert "Kueue's flavor burst-p5 selects nodes with node.kubernetes.io/instance-type=p4d" in workload.message


@pytest.mark.parametrize(("covers_all", "state"), [(True, BurstCheckState.REJECTED), (False, BurstCheckState.RETRY)])
def test_impossible_job_is_rejected_only_without_other_flavors(covers_all: bool, state: BurstCheckState) -> None:
    policy = a_policy()
    tainted = tuple(pool.replace(taints=("team=red:NoSchedule",)) for pool in policy.burst.pools)
    burst = BurstCheckScenario(policy=policy.replace(burst=policy.burst.replace(pools=tainted)))
    job = burst.submit_and_reserve(covers_all_flavors=covers_all)

    burst.scenario.run_scheduling_cycle()

    assert burst.checked(job.job_id).state is state


def test_policy_without_pools_is_retried() -> None:
    policy = a_policy()
    burst = BurstCheckScenario(policy=policy.replace(burst=policy.burst.replace(pools=())))
    job = burst.submit_and_reserve(covers_all_flavors=True)

    burst.scenario.run_scheduling_cycle()

    workload = burst.checked(job.job_id)
    assert (workload.state, "The policy lists no pool." in workload.message) == (BurstCheckState.RETRY, True)


def test_quota_for_fewer_pods_is_retried_and_rents_nothing() -> None:
    burst = BurstCheckScenario()
    job = burst.submit_and_reserve(pods=1, covers_all_flavors=True)

    burst.scenario.run_scheduling_cycle()

    workload = burst.checked(job.job_id)
    assert (workload.state, burst.scenario.job(job.job_id).rentals) == (BurstCheckState.RETRY, 0)
    assert "Kueue reserved quota for 1 pod, but the job needs 2 nodes" in workload.message


ELASTIC: dict[str, Any] = {"nodes": 4, "elastic": {"min_nodes": 1, "max_nodes": 4}}
POWERS: dict[str, Any] = {"nodes": 4, "elastic": {"min_nodes": 1, "max_nodes": 4, "sizes": (1, 2, 4)}}


def test_elastic_job_gets_a_node_for_each_reserved_pod() -> None:
    burst = BurstCheckScenario()
    job = burst.submit_and_reserve(spec=ELASTIC, pods=3)

    burst.scenario.run_scheduling_cycle()
    rental = burst.rental(job.job_id, 1)
    burst.provide_nodes()
    burst.scenario.run_scheduling_cycle()
    ready = burst.checked(job.job_id)
    names = [node.name for node in burst.cluster.nodes(CLUSTER) if node.labels.get(RENTAL_NODE_LABEL) == rental.name]
    check = KueueCheck(name=CHECK, state="Ready", node_selector=ready.node_selector)
    burst.cluster.kueue_admits(job.job_id, 1, *names, checks=(check,))
    burst.scenario.launch(job.job_id)
    burst.scenario.mark_running(job.job_id)
    record_nodes.run(job.job_id, 1, burst.scenario.context())

    attempt = burst.scenario.attempt(job.job_id)
    assert (rental.nodes, ready.state, len(names)) == (3, BurstCheckState.READY, 3)
    assert ready.message == f"3 nodes of {SPOT} are rented for the job and ready."
    assert (attempt.size, attempt.requested_size, attempt.is_rented, attempt.accelerators) == (3, 4, True, 24)
    assert burst.rental(job.job_id, 1).hosts(attempt)


def test_reserved_pods_between_sizes_ask_again_for_a_smaller_size() -> None:
    burst = BurstCheckScenario()
    job = burst.submit_and_reserve(spec=POWERS, pods=3)

    burst.scenario.run_scheduling_cycle()
    burst.scenario.run_scheduling_cycle()
    stopping = burst.scenario.job(job.job_id)
    burst.scenario.stop(job.job_id)
    burst.scenario.settle(job.job_id)
    burst.scenario.run_scheduling_cycle()

    workload = burst.checked(job.job_id)
    assert (workload.state, burst.answers(), stopping.rentals) == (BurstCheckState.RETRY, ["Retry"], 0)
    assert "3 pods, but the job needs 4 nodes, or a smaller size. Its next attempt asks for 2." in workload.message
    stop_request = stopping.stop_of(1)
    assert stop_request
    assert stop_request.reason == workload.message
    assert burst.scenario.attempt(job.job_id, 1).state is AttemptState.STOPPED
    assert burst.scenario.attempt(job.job_id, 2).size == 2
    (record,) = burst.burst_records()
    assert (record.action, replay(record, burst.policy).reason) == ("RESIZE", record.reason)


def test_rental_of_another_size_is_released_first() -> None:
    burst = BurstCheckScenario()
    job = burst.submit_and_reserve(spec=ELASTIC, pods=3)
    burst.scenario.run_scheduling_cycle()
    burst.provide_nodes()
    burst.change(job.job_id, pods=2)

    burst.scenario.run_scheduling_cycle()

    workload = burst.checked(job.job_id)
    assert workload.state is BurstCheckState.RETRY
    assert f"3 nodes of {SPOT} are rented, but the job needs 2 nodes." in workload.message


def test_rental_with_too_few_nodes_is_never_ready() -> None:
    burst = BurstCheckScenario()
    job = burst.submit_and_reserve()
    burst.scenario.run_scheduling_cycle()
    burst.provide_nodes()
    key = job_rows.rental_key(job.job_id, 1)
    row = burst.world.ledger.get(key)
    assert row
    burst.world.ledger.commit(Put(Row(key, {**row.doc, "nodes": 1}, row.version)))

    burst.scenario.run_scheduling_cycle()

    workload = burst.checked(job.job_id)
    assert workload.state is BurstCheckState.RETRY
    assert "1 node of burst-spot is rented, but the job needs 2 nodes." in workload.message


@pytest.mark.parametrize("state", ["ready", "retried"])
def test_answer_that_cannot_be_written_is_recorded_once(monkeypatch: pytest.MonkeyPatch, state: str) -> None:
    changes = {} if state == "ready" else {"other_delay_micros_per_hour": 0}
    burst = BurstCheckScenario(policy=a_policy(**changes))
    job = burst.submit_and_reserve()
    if state == "ready":
        burst.scenario.run_scheduling_cycle()
        burst.provide_nodes()

    def refuse(workload: CheckedWorkload, given: BurstCheckAnswer, at: datetime) -> None:
        raise PermanentError("workloads/status: 403 Forbidden")

    monkeypatch.setattr(burst.cluster, "answer_check", refuse)
    before = len(burst.burst_records())
    for _ in range(5):
        burst.world.clock.advance(60)
        burst.scenario.run_scheduling_cycle()

    entries = [
        entry for entry in read_jobs.job_timeline(burst.world.ledger, job.job_id) if entry["kind"] == "burst check"
    ]
    assert len(burst.burst_records()) == before + 1
    assert len(entries) == before + 1


def test_status_counts_the_jobs_that_wait_for_the_check() -> None:
    burst = BurstCheckScenario()
    burst.submit_and_reserve()
    burst.scenario.run_scheduling_cycle()

    waiting = read_status.show_status((), burst.scenario.context())["jobs"]["waitingForCheck"]
    burst.provide_nodes()
    burst.scenario.run_scheduling_cycle()
    ready = read_status.show_status((), burst.scenario.context())["jobs"]["waitingForCheck"]

    assert (waiting, ready) == (1, 0)


def test_long_answer_is_written_once() -> None:
    burst = BurstCheckScenario()
    names = tuple(f"check-{number:04d}" for number in range(600))
    burst.submit_and_reserve(open_checks=names)

    for _ in range(3):
        burst.scenario.run_scheduling_cycle()

    assert burst.answers() == ["Pending"]


def test_workload_of_an_ended_attempt_gets_no_answer() -> None:
    burst = BurstCheckScenario()
    job = burst.submit_and_reserve(covers_all_flavors=True)
    burst.cluster.finish_pods(job.job_id, 1)
    burst.scenario.settle(job.job_id, 1)

    burst.scenario.run_scheduling_cycle()

    assert burst.answers() == []


def test_two_checks_of_evenkeel_do_not_wait_for_each_other() -> None:
    checks = [{"name": name, "state": "Pending", "message": ""} for name in ("burst-a", "burst-b", "budget")]
    item = {
        "metadata": {"namespace": NAMESPACE, "name": "job-1", "resourceVersion": "1"},
        "status": {"admissionChecks": checks},
    }

    workload = read_checked_workload(CLUSTER, item, checks[0], {"burst-a", "burst-b"}, {}, {})

    assert workload.open_checks == ("budget",)


def test_nothing_is_rented_before_the_other_checks_have_passed() -> None:
    burst = BurstCheckScenario()
    job = burst.submit_and_reserve(open_checks=("budget",))

    burst.scenario.run_scheduling_cycle()
    before = burst.scenario.job(job.job_id).rentals
    burst.change(job.job_id, open_checks=())
    burst.scenario.run_scheduling_cycle()

    assert (before, burst.scenario.job(job.job_id).rentals) == (0, 1)


def test_workload_that_evenkeel_did_not_create_gets_no_nodes() -> None:
    burst = BurstCheckScenario()
    job = burst.submit_and_reserve(job_uid="another", job_name="theirs")

    burst.scenario.run_scheduling_cycle()

    workload = burst.checked(job.job_id)
    assert (workload.state, burst.scenario.job(job.job_id).rentals) == (BurstCheckState.RETRY, 0)
    assert "submit it to Evenkeel" in workload.message


def test_forged_job_name_without_its_uid_gets_no_nodes() -> None:
    burst = BurstCheckScenario()
    job = burst.submit_and_reserve(job_uid="another")

    burst.scenario.run_scheduling_cycle()

    assert burst.scenario.job(job.job_id).rentals == 0


@pytest.mark.parametrize("recorded_uid", [None, ""], ids=["launched", "launch not recorded"])
def test_job_newer_than_the_cycle_is_not_rejected(monkeypatch: pytest.MonkeyPatch, recorded_uid: str | None) -> None:
    burst = BurstCheckScenario()
    started: list[Job] = []
    listed = burst.cluster.burst_checks

    def start_during_the_cycle(cluster: str) -> BurstChecks:
        if not started:
            started.append(burst.scenario.submit())
            nested = burst.scenario.run_scheduling_cycle()
            assert nested.admitted
            burst.scenario.launch(started[0].job_id)
            burst.reserve(started[0].job_id, 1, covers_all_flavors=True)
            if recorded_uid is not None:
                key = job_rows.attempt_key(started[0].job_id, 1)
                row = burst.world.ledger.get(key)
                assert row
                attempt = rows.decode(row, Attempt).replace(workload_uid=recorded_uid)
                burst.world.ledger.commit(Put(Row(key, attempt.to_json(), row.version)))
        return listed(cluster)

    monkeypatch.setattr(burst.cluster, "burst_checks", start_during_the_cycle)
    burst.scenario.run_scheduling_cycle()

    assert burst.answers() == []


def test_workload_changed_since_its_read_is_answered_later(monkeypatch: pytest.MonkeyPatch) -> None:
    burst = BurstCheckScenario()
    job = burst.submit_and_reserve()
    answer = burst.cluster.answer_check
    raced: list[bool] = []

    def race(workload: CheckedWorkload, given: BurstCheckAnswer, at: datetime) -> None:
        if not raced:
            raced.append(True)
            burst.change(job.job_id)
        answer(workload, given, at)

    monkeypatch.setattr(burst.cluster, "answer_check", race)
    burst.scenario.run_scheduling_cycle()
    first = burst.checked(job.job_id).message
    burst.scenario.run_scheduling_cycle()

    assert raced
    assert first == ""
    assert burst.checked(job.job_id).message
    assert burst.scenario.job(job.job_id).rentals == 1


def test_one_workload_that_cannot_be_written_stops_no_other(monkeypatch: pytest.MonkeyPatch) -> None:
    burst = BurstCheckScenario()
    bad = burst.submit_and_reserve("bad")
    good = burst.submit_and_reserve("good")
    answer = burst.cluster.answer_check

    def refuse(workload: CheckedWorkload, given: BurstCheckAnswer, at: datetime) -> None:
        if workload.job_name.startswith(bad.job_id):
            raise Conflict("it always changes")
        answer(workload, given, at)

    monkeypatch.setattr(burst.cluster, "answer_check", refuse)
    burst.scenario.run_scheduling_cycle()

    assert burst.checked(good.job_id).message


@pytest.mark.parametrize("when", list(CrashTiming))
@pytest.mark.parametrize("at", range(1, 7))
def test_crash_while_answering_rents_once_and_answers(at: int, when: CrashTiming) -> None:
    burst = BurstCheckScenario(plan=CrashPlan())
    job = burst.submit_and_reserve()
    burst.plan.effects.clear()
    burst.plan.at, burst.plan.when = at, when
    with contextlib.suppress(Crash):
        burst.scenario.run_scheduling_cycle()
    burst.plan.at = 0
    burst.world.clock.advance(400)

    burst.scenario.run_scheduling_cycle()
    burst.scenario.sweep()
    burst.provide_nodes()
    burst.scenario.run_scheduling_cycle()

    assert burst.scenario.job(job.job_id).rentals == 1
    assert burst.checked(job.job_id).state is BurstCheckState.READY


def test_rental_ends_if_kueue_admits_the_job_on_other_nodes() -> None:
    burst = BurstCheckScenario()
    job = burst.submit_and_reserve()
    burst.scenario.run_scheduling_cycle()
    burst.provide_nodes()
    burst.change(job.job_id, is_admitted=True)
    names = [node.name for node in burst.cluster.nodes(CLUSTER) if node.pool != SPOT]
    burst.cluster.kueue_admits(job.job_id, 1, *names)

    for _ in range(3):
        burst.advance_executions()

    rental = burst.rental(job.job_id, 1)
    assert (rental.state, "admitted" in rental.reason and "on other nodes" in rental.reason) == (
        RentalState.ENDED,
        True,
    )


def test_lost_rented_node_is_never_offered_to_kueue() -> None:
    burst = BurstCheckScenario()
    job = burst.submit_and_reserve()
    burst.scenario.run_scheduling_cycle()
    burst.provide_nodes()
    burst.cluster.lose_node(burst.rental(job.job_id, 1).node_names[0])

    burst.scenario.run_scheduling_cycle()

    workload = burst.checked(job.job_id)
    assert workload.state is BurstCheckState.PENDING
    assert "is out of service" in workload.message


def test_held_automation_answers_no_check() -> None:
    burst = BurstCheckScenario()
    job = burst.submit_and_reserve()
    hold_scheduling(burst.scenario)

    burst.scenario.run_scheduling_cycle()

    assert (burst.answers(), burst.scenario.job(job.job_id).rentals) == ([], 0)


def test_released_quota_ends_the_rental_before_its_nodes_join() -> None:
    burst = BurstCheckScenario()
    job = burst.submit_and_reserve()
    burst.scenario.run_scheduling_cycle()
    burst.advance_executions()
    burst.say(job.job_id, 1, KueueCondition(type="QuotaReserved", is_true=False, changed_at=burst.world.clock.now()))
    burst.change(job.job_id, has_quota=False)

    for _ in range(3):
        burst.advance_executions()

    assert burst.rental(job.job_id, 1).state is RentalState.ENDED
    assert "Kueue released the quota" in burst.rental(job.job_id, 1).reason


def test_ready_nodes_without_quota_are_kept_for_quiet_period() -> None:
    burst = BurstCheckScenario()
    job = burst.submit_and_reserve()
    burst.scenario.run_scheduling_cycle()
    burst.provide_nodes()
    burst.say(job.job_id, 1, KueueCondition(type="QuotaReserved", is_true=False, changed_at=burst.world.clock.now()))
    burst.change(job.job_id, has_quota=False)

    burst.advance_executions()
    kept = burst.rental(job.job_id, 1).state
    burst.world.clock.advance(61)
    for _ in range(3):
        burst.advance_executions()

    assert (kept, burst.rental(job.job_id, 1).state) == (RentalState.READY, RentalState.ENDED)


def test_evicted_job_resumes_on_its_rental_within_the_quiet_period() -> None:
    burst = BurstCheckScenario()
    job = burst.run_on_rented_nodes()
    burst.cluster.kueue_evicts(job.job_id, 1)
    burst.change(job.job_id, has_quota=False, is_admitted=False)
    burst.scenario.settle(job.job_id, 1)
    burst.scenario.run_scheduling_cycle()
    burst.scenario.launch(job.job_id, 2)
    burst.reserve(job.job_id, 2)

    burst.advance_executions()
    burst.scenario.run_scheduling_cycle()

    again = burst.checked(job.job_id, 2)
    assert (again.state, burst.scenario.job(job.job_id).rentals) == (BurstCheckState.READY, 1)
    assert burst.scenario.attempt(job.job_id, 1).state is AttemptState.STOPPED


def test_job_migrates_back_to_free_committed_nodes() -> None:
    burst = BurstCheckScenario()
    job = burst.run_on_rented_nodes()
    burst.scenario.run_scheduling_cycle()
    before = burst.scenario.job(job.job_id).stop_request

    burst.cluster.foreign_accelerators.clear()
    burst.scenario.run_scheduling_cycle()
    stopping = burst.scenario.job(job.job_id)
    burst.cluster.stop(burst.scenario.attempt(job.job_id, 1), 0)
    burst.scenario.settle(job.job_id, 1)
    for _ in range(3):
        burst.advance_executions()

    assert before is None
    assert stopping.stop_request is not None
    assert stopping.stop_request.reason.startswith("The job migrates back to committed capacity: p5-workers has free")
    assert burst.rental(job.job_id, 1).state is RentalState.ENDED
    assert burst.scenario.job(job.job_id).state is JobState.PENDING


def test_job_stays_on_rental_while_others_wait_in_queue() -> None:
    burst = BurstCheckScenario()
    job = burst.run_on_rented_nodes()
    waiting = burst.scenario.submit("waits")
    burst.scenario.run_scheduling_cycle()
    burst.scenario.launch(waiting.job_id)
    burst.cluster.foreign_accelerators.clear()

    burst.scenario.run_scheduling_cycle()

    assert burst.scenario.job(job.job_id).stop_request is None


def test_refused_pool_leads_to_the_next_pool_of_the_flavor() -> None:
    burst = BurstCheckScenario(has_capacity={ON_DEMAND})
    job = burst.submit_and_reserve()
    burst.scenario.run_scheduling_cycle()

    for _ in range(4):
        burst.provide_nodes()
    burst.scenario.run_scheduling_cycle()

    workload = burst.checked(job.job_id)
    assert workload.message == f"2 nodes of {ON_DEMAND} are rented for the job and ready."


def test_observe_mode_answers_nothing() -> None:
    burst = BurstCheckScenario()
    job = burst.submit_and_reserve()
    burst.cluster.burst_check_names[CHECK] = False
    burst.scenario.mode = Mode.OBSERVE

    burst.scenario.run_scheduling_cycle()

    assert burst.answers() == []
    assert not burst.cluster.burst_check_names[CHECK]
    assert burst.scenario.job(job.job_id).rentals == 0


def test_check_is_marked_as_active_once() -> None:
    burst = BurstCheckScenario()
    burst.cluster.burst_check_names[CHECK] = False

    for _ in range(2):
        burst.scenario.run_scheduling_cycle()

    assert [call for call in burst.cluster.calls if call[0] == "mark_check_active"] == [("mark_check_active", CHECK)]


def test_unreadable_cluster_leaves_the_checks_as_they_are() -> None:
    burst = BurstCheckScenario()
    job = burst.submit_and_reserve()
    burst.cluster.unreadable_lists[CLUSTER] = {"burst_checks"}

    burst.scenario.run_scheduling_cycle()

    assert burst.answers() == []
    assert burst.scenario.job(job.job_id).rentals == 0


def test_every_answer_replays() -> None:
    burst = BurstCheckScenario()
    burst.run_on_rented_nodes()

    records = burst.burst_records()

    assert {record.action for record in records} >= {"RENT", "ADMIT"}
    for record in records:
        assert replay(record, burst.policy).differs_from(record) == ""


def test_cycle_without_the_check_reads_no_nodes() -> None:
    burst = BurstCheckScenario()
    burst.cluster.burst_check_names.clear()
    burst.cluster.unreadable_lists[CLUSTER] = {"nodes"}

    burst.scenario.submit("key")
    result = burst.scenario.run_scheduling_cycle()

    assert result.is_complete
