"""Drills and real incidents are kept apart: whatever drills say, and whenever, a real recovery runs as if alone."""

import itertools
from collections.abc import Callable
from dataclasses import dataclass, field
from datetime import timedelta
from typing import Any, TypeVar

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from evenkeel.domain.health.group_facts import GroupFact, GroupFactKind
from evenkeel.domain.health.incidents import FactKind, Incident, IncidentState, NodeFact
from evenkeel.ports import Table
from evenkeel.services.incidents import (
    ingest_event,
    note_group_fact,
    recovery_step,
    settle_incident,
    unresolved_facts,
)
from evenkeel.services.recovery import cordon_node, plan_recovery
from evenkeel.services.tables import fleet_rows, incident_rows
from tests.fakes import a_provider_node
from tests.fakes.cluster import CLUSTER, instance_id
from tests.unit.services_recovery.recovery_scenario import RecoveryScenario, a_fact

T = TypeVar("T")


class DrillIds:
    """Ids that a test tells from those of real incidents."""

    def __init__(self) -> None:
        self._numbers = itertools.count(1)

    def new(self, prefix: str) -> str:
        return f"{prefix}-drill-{next(self._numbers)}"


@dataclass(frozen=True)
class DrillEvent:
    """An event of a drill, at a time relative to its delivery."""

    fact: dict[str, Any]
    seconds: float
    runs: bool
    """Whether the workflow that it starts runs at once."""


@dataclass
class RecoveryWithDrills(RecoveryScenario):
    """A recovery with drills before any of its steps."""

    drills: dict[int, list[DrillEvent]] = field(default_factory=dict)
    """By number of the call before which they come."""

    def __post_init__(self) -> None:
        self.calls = 0
        self.is_drilling = False
        self.drill_ids = DrillIds()
        super().__post_init__()

    def call_until_done(self, call: Callable[[], T]) -> T:
        if not self.is_drilling:
            self.is_drilling = True
            for drill in self.drills.get(self.calls, []):
                self.inject_drill(drill)
            self.calls += 1
            self.is_drilling = False
        return super().call_until_done(call)

    def inject_drill(self, drill: DrillEvent) -> None:
        world = self.world
        at = self.now + timedelta(seconds=drill.seconds)
        if "kind" in drill.fact and drill.fact["kind"] in set(GroupFactKind):
            group = GroupFact.model_validate(
                {
                    "source": "hyperpod.cluster-event",
                    "envelope_id": "d",
                    **drill.fact,
                    "observed_at": at,
                    "is_drill": True,
                }
            )
            note_group_fact.run(group, world.context())
            return
        outcome = ingest_event.ingest_fact(
            a_fact(**{**drill.fact, "observed_at": drill.fact.get("observed_at", at)}, is_drill=True),
            world.context(ids=self.drill_ids, drills_may_act=self.drills_may_act, policy=self.policy),
        )
        if drill.runs and outcome.has_started_recovery and not self.drills_may_act:
            self.run_drill(outcome.incident_id)

    def run_drill(self, incident_id: str) -> None:
        """Run the workflow of a drill that may not act: plan and settle."""
        world = self.world
        request = {"incident_id": incident_id, "run": 1}
        plan = plan_recovery.run(
            recovery_step.RecoveryStepRequest(**request),
            world.context(ids=self.drill_ids, policy=self.policy, mode=self.mode),
        )
        ended = {"outcome": plan.outcome, "reason": plan.reason}
        settle_incident.run(
            settle_incident.SettleIncidentRequest.model_validate({**request, "plan": ended}),
            world.context(policy=self.policy, now=self.now),
        )

    def real_end(self) -> dict[str, Any]:
        """Return all that a real recovery reads, writes and does, to the letter."""
        world = self.world
        return {
            "rows": {
                f"{key.pk} {key.sk}": (row.doc, row.version, row.state)
                for key, row in world.ledger.rows.items()
                if "drill" not in f"{key.pk}{key.sk}".lower()
            },
            "visited": self.visited,
            "executions": [name for name in self.execution_names() if "drill" not in name],
            "nodes": dict(world.cluster.by_name),
            "rebooted": world.provider.accepted_calls("reboot"),
            "replaced": world.provider.accepted_calls("replace"),
            "pages": [(page.subject, page.key) for page in world.on_call.alerts],
        }


def run_reboot(recovery: RecoveryScenario) -> None:
    recovery.report_fault()
    recovery.recover()


def run_replacement(recovery: RecoveryScenario) -> None:
    recovery.report_fault(fault_key="hp:NvidiaErrorTerminate")
    recovery.recover()


def run_escalation(recovery: RecoveryScenario) -> None:
    recovery.replacement_is_faulty = True
    recovery.report_fault()
    recovery.recover()


def run_recovery_signal(recovery: RecoveryScenario) -> None:
    recovery.report_fault()
    recovery.ingest(
        a_fact(kind=FactKind.RECOVERED, fault_key="", observed_at="2026-11-03T10:15:30Z", envelope_id="well")
    )
    recovery.recover()


def run_second_fault(recovery: RecoveryScenario) -> None:
    recovery.report_fault()
    recovery.recover()
    recovery.report_fault(observed_at=recovery.now + timedelta(seconds=1), envelope_id="again")
    recovery.recover()


def run_in_observe_mode(recovery: RecoveryScenario) -> None:
    """A fault that is counted: the third time it calls for more."""
    for _ in range(3):
        recovery.report_fault(fault_key="xid:31", observed_at=recovery.now, envelope_id=f"at {recovery.now}")
        recovery.recover()
        recovery.world.clock.advance(600)


def run_with_progress_signal(recovery: RecoveryScenario) -> None:
    recovery.report_fault(fault_key="hp:NvidiaErrorTerminate")
    recovery.ingest(a_fact(kind=FactKind.PROGRESS, fault_key="", code="replacement_started", envelope_id="p"))
    recovery.recover()


def run_notice_before_listing(recovery: RecoveryScenario) -> None:
    """EC2 tells of a node that the sweep has not seen yet."""
    recovery.ingest(a_fact(77, source="ec2.notice", fault_key="ec2:spot_interruption", envelope_id="notice"))
    recovery.report_fault()
    recovery.recover()


SCENARIOS = [
    run_reboot,
    run_replacement,
    run_escalation,
    run_recovery_signal,
    run_second_fault,
    run_in_observe_mode,
    run_with_progress_signal,
    run_notice_before_listing,
]

FACTS = st.one_of(
    st.fixed_dictionaries(
        {
            "number": st.sampled_from([1, 1, 1, 2, 77]),
            "source": st.sampled_from(
                ["hyperpod.node-health", "kubernetes.node", "ec2.notice", "hyperpod.node-labels"]
            ),
            "fault_key": st.sampled_from(
                ["hp:NvidiaErrorReboot", "hp:NvidiaErrorTerminate", "node:not_ready", "xid:31", "ec2:spot_interruption"]
            ),
        },
        optional={"observed_at": st.just("2026-11-03T10:15:00Z"), "deadline_at": st.just("2026-11-03T10:17:00Z")},
    ),
    st.fixed_dictionaries(
        {
            "number": st.sampled_from([1, 2]),
            "kind": st.just(FactKind.RECOVERED),
            "fault_key": st.sampled_from(["", "hp:NvidiaErrorReboot"]),
        }
    ),
    st.fixed_dictionaries(
        {
            "number": st.sampled_from([1, 2]),
            "kind": st.just(FactKind.PROGRESS),
            "fault_key": st.just(""),
            "code": st.sampled_from(
                ["reboot_in_progress", "replacement_started", "replacement_completed", "replacement_failed"]
            ),
            "logical_id": st.sampled_from(["", "seat-1"]),
        },
    ),
    st.fixed_dictionaries(
        {
            "kind": st.sampled_from(
                [GroupFactKind.NO_CAPACITY, GroupFactKind.CLUSTER_FAILED, GroupFactKind.PROVISIONED]
            ),
            "instance_group": st.sampled_from(["", "p5-workers"]),
        }
    ),
)
DRILLS = st.dictionaries(
    st.integers(0, 40),
    st.lists(
        st.builds(DrillEvent, fact=FACTS, seconds=st.sampled_from([-60, 0, 0, 60]), runs=st.booleans()), max_size=3
    ),
    max_size=8,
)


@pytest.mark.parametrize("examples", [6, pytest.param(40, marks=pytest.mark.exhaustive)])
@pytest.mark.parametrize("drills_may_act", [False, True])
@pytest.mark.parametrize("scenario", SCENARIOS, ids=lambda scenario: scenario.__name__)
def test_drills_never_change_a_real_recovery(
    scenario: Callable[[RecoveryScenario], None], *, drills_may_act: bool, examples: int
) -> None:
    alone = RecoveryWithDrills(drills_may_act=drills_may_act)
    scenario(alone)
    expected = alone.real_end()

    @settings(max_examples=examples)
    @given(drills=DRILLS)
    def holds(drills: dict[int, list[DrillEvent]]) -> None:
        disturbed = RecoveryWithDrills(drills=drills, drills_may_act=drills_may_act)
        scenario(disturbed)
        assert disturbed.real_end() == expected

    holds()


# ---------------------------------------------------------------- one by one


def real_incident(recovery: RecoveryScenario) -> Incident:
    [real] = [incident for incident in recovery.incidents() if not incident.is_drill]
    return real


@pytest.mark.parametrize("drills_may_act", [False, True])
@pytest.mark.parametrize("is_first", [True, False])
def test_drill_does_not_make_the_same_real_fact_duplicate(*, is_first: bool, drills_may_act: bool) -> None:
    recovery = RecoveryScenario(drills_may_act=drills_may_act)
    facts = [a_fact(), a_fact(is_drill=True)]

    outcomes = [recovery.ingest(fact).outcome for fact in (facts[::-1] if is_first else facts)]

    assert outcomes == ["OPEN", "OPEN"]
    assert real_incident(recovery).evidence_count == 1


def test_drill_during_a_recovery_does_not_change_the_incident() -> None:
    recovery = RecoveryScenario(with_job=False)
    recovery.report_fault(fault_key="gpu:slow_throttle_thermal")
    recovery.run_state("PlanRecovery", plan_recovery)
    recovery.ingest(a_fact(kind=FactKind.RECOVERED, fault_key="", observed_at=recovery.now, is_drill=True))
    before = real_incident(recovery)

    recovery.ingest(a_fact(fault_key="hp:NvidiaErrorTerminate", observed_at=recovery.now, is_drill=True))

    assert real_incident(recovery) == before


def test_real_notice_is_kept_despite_many_drills_about_its_machine() -> None:
    recovery = RecoveryScenario(drills_may_act=True)
    notice = a_fact(77, source="ec2.notice", fault_key="ec2:spot_interruption", envelope_id="real")
    drills = [notice.replace(is_drill=True, occurrence=str(number)) for number in range(9)]
    for fact in [*drills[:4], notice, *drills[4:]]:
        recovery.ingest(fact)

    row = recovery.world.ledger.get(incident_rows.notice_before_listing_key(instance_id(77)))

    assert row
    assert unresolved_facts.facts_of_unlisted_instance(row) == (notice,)


def fact_about_unknown_node(number: int, **changes: Any) -> NodeFact:
    return a_fact(number, occurrence=f"{number}", envelope_id=f"of {number}", **changes)


@pytest.mark.parametrize("drills_may_act", [False, True])
def test_real_unresolved_fact_is_retried_before_any_drill(*, drills_may_act: bool) -> None:
    recovery = RecoveryScenario(drills_may_act=drills_may_act)
    for number in range(100, 160):
        recovery.ingest(fact_about_unknown_node(number, is_drill=True))
    recovery.ingest(fact_about_unknown_node(77))
    recovery.world.provider.by_id[instance_id(77)] = a_provider_node(77)

    outcomes = unresolved_facts.retry_unresolved(recovery.context())

    assert [outcome.outcome for outcome in outcomes] == ["OPEN"]


def test_every_unresolved_fact_is_retried_within_one_call_per_page() -> None:
    recovery = RecoveryScenario()
    for number in range(100, 160):
        recovery.ingest(fact_about_unknown_node(number))
        recovery.world.clock.advance(1)
    recovery.world.provider.by_id[instance_id(159)] = a_provider_node(159)

    outcomes = [unresolved_facts.retry_unresolved(recovery.context()) for _ in range(3)]

    assert [result.outcome for outcome in outcomes for result in outcome] == ["OPEN"]


def test_unresolved_drill_facts_are_retried_too() -> None:
    recovery = RecoveryScenario(drills_may_act=True)
    recovery.ingest(fact_about_unknown_node(78, is_drill=True))
    recovery.world.provider.by_id[instance_id(78)] = a_provider_node(78)

    assert [result.outcome for result in unresolved_facts.retry_unresolved(recovery.context())] == ["OPEN"]


def test_drill_stands_down_while_a_real_incident_is_open() -> None:
    recovery = RecoveryScenario(drills_may_act=True)
    recovery.report_fault()
    recovery.report_fault(is_drill=True, envelope_id="drill")

    assert recovery.recover() == IncidentState.OBSERVED
    assert recovery.execution_names()
    assert not recovery.world.provider.accepted_calls("reboot")


def test_real_recovery_takes_over_the_node_that_a_drill_cordoned() -> None:
    recovery = RecoveryScenario(drills_may_act=True)
    drill = recovery.report_fault(is_drill=True, envelope_id="drill")
    recovery.run_state("PlanRecovery", plan_recovery)
    assert recovery.cluster.cordon(CLUSTER, f"hyperpod-{instance_id(1)}", drill)

    recovery.report_fault()

    assert recovery.recover() == IncidentState.RECOVERED
    assert not any(node.is_cordoned for node in recovery.world.cluster.by_name.values())


def test_drill_keeps_cordon_of_settled_real_incident() -> None:
    recovery = RecoveryScenario(drills_may_act=True, with_job=False)
    recovery.report_fault()
    recovery.run_state("PlanRecovery", plan_recovery)
    recovery.run_state("CordonNode", cordon_node)
    parts = {"plan": {"outcome": "ACT"}, "node": {"outcome": "WAITING_FOR_PERSON"}, "jobs": {"outcome": "NO_JOBS"}}
    recovery.run_state("SettleIncident", settle_incident, **parts)
    recovery.world.clock.advance(60)

    recovery.report_fault(observed_at=recovery.now, is_drill=True)
    recovery.recover()

    node = recovery.world.cluster.node(CLUSTER, f"hyperpod-{instance_id(1)}")
    assert node
    assert node.is_cordoned
    assert recovery.incident.node_branch == "STAYS_CORDONED"


def test_drills_do_not_count_against_limits_of_real_recoveries() -> None:
    recovery = RecoveryScenario(drills_may_act=True)
    recovery.report_fault(2, is_drill=True, fault_key="hp:NvidiaErrorTerminate")
    recovery.recover()

    rows_of_registers = {key.pk: row.doc for key, row in recovery.world.ledger.rows.items() if "REGISTER#" in key.pk}

    assert all(pk.startswith("DRILL-") for pk in rows_of_registers)
    assert recovery.world.ledger.get(fleet_rows.lease_key(recovery.incident.slot)) is None
    assert recovery.world.ledger.by_state(Table.FLEET, "LEMON").rows == ()
