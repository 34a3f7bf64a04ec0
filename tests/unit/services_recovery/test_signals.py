"""Events with many facts: partial failures are retried without loss or duplicates; facts of other fleets are
dropped."""

from datetime import timedelta
from typing import Any

import pytest

from evenkeel.domain.health.group_facts import GroupFact, GroupFactKind
from evenkeel.domain.health.incidents import FactKind, Incident, NodeFact
from evenkeel.domain.nodes import FleetNode, NodeLife
from evenkeel.ports import Put, Table, Unreachable, WorkflowName
from evenkeel.services.incidents import ingest_event, note_group_fact
from evenkeel.services.tables import fleet_rows, incident_rows, rows
from tests.fakes import Crash, CrashPlan, FakeWorld, crashing
from tests.fakes.cluster import CLUSTER, instance_id
from tests.fakes.system import A_MOMENT
from tests.fakes.world import CLUSTER_ARN
from tests.unit.services_recovery.recovery_scenario import a_fact

Fact = NodeFact | GroupFact


def ingest_facts(world: FakeWorld, *facts: Fact, cluster_arn: str = CLUSTER_ARN, **ports: Any) -> list[str]:
    results = ingest_event.ingest_facts(
        facts,
        world.context(hyperpod_cluster_arn=cluster_arn, **ports),
    )
    return [result.outcome for result in results]


def stored_incidents(world: FakeWorld) -> list[Incident]:
    incident_rows = [row for key, row in world.ledger.rows.items() if key.pk.startswith("INC#") and key.sk == "META"]
    return [rows.decode(row, Incident) for row in incident_rows]


def record_node(world: FakeWorld, number: int, slot: str) -> None:
    """Let the fleet's memory hold a node."""
    life = NodeLife(cluster=CLUSTER, instance_id=instance_id(number), launched_at=A_MOMENT - timedelta(days=1))
    node = FleetNode(life=life, slot=slot, pool="p5-workers", changed_at=A_MOMENT)
    world.ledger.commit(Put(fleet_rows.node_row(CLUSTER, instance_id(number), node.to_json(), 0, None)))


def a_notice(number: int, **changes: Any) -> NodeFact:
    return a_fact(number, source="ec2.notice", fault_key="ec2:spot_interruption", code="terminate", **changes)


def a_scheduled_event(number: int, **changes: Any) -> NodeFact:
    return a_fact(number, source="health.event", fault_key="health:instance_retirement", **changes)


def progress_fact(number: int, code: str = "replacement_started", **changes: Any) -> NodeFact:
    return a_fact(
        number,
        kind=FactKind.PROGRESS,
        source="hyperpod.cluster-event",
        fault_key="",
        code=code,
        occurrence=f"event-{code}",
        **changes,
    )


# ---------------------------------------------------------------- fan-out

FANNED = [a_fact(number, source="site:role/Detector", fault_key="xid:79") for number in (1, 2, 3)]


def test_event_about_three_nodes_opens_three_incidents() -> None:
    world = FakeWorld()

    assert ingest_facts(world, *FANNED) == ["OPEN", "OPEN", "OPEN"]
    assert {incident.life.instance_id for incident in stored_incidents(world)} == {instance_id(n) for n in (1, 2, 3)}
    assert len(world.workflows.names(WorkflowName.RECOVER_NODE)) == 3


def test_repeated_event_changes_nothing() -> None:
    world = FakeWorld()
    ingest_facts(world, *FANNED)

    assert ingest_facts(world, *FANNED) == ["DUPLICATE", "DUPLICATE", "DUPLICATE"]
    assert len(stored_incidents(world)) == 3


@pytest.mark.parametrize("when", ["before", "after"])
@pytest.mark.parametrize("at", range(1, 7))
def test_crash_during_ingestion_loses_and_duplicates_nothing(at: int, when: str) -> None:
    world = FakeWorld()
    plan = CrashPlan(at, when)
    ports: dict[str, Any] = {
        "ledger": crashing(world.ledger, plan, "commit"),
        "workflows": crashing(world.workflows, plan, "start"),
    }

    with pytest.raises(Crash):
        ingest_facts(world, *FANNED, **ports)
    ingest_facts(world, *FANNED)

    assert len(stored_incidents(world)) == len(world.workflows.names(WorkflowName.RECOVER_NODE)) == 3
    assert {incident.evidence_count for incident in stored_incidents(world)} == {1}


def test_failed_fact_is_retried_and_stops_no_other_fact() -> None:
    world = FakeWorld()

    class UnreachableProvider:
        """Answers for every node but one."""

        def node(self, machine: str) -> Any:
            if machine == instance_id(2):
                raise Unreachable("no answer")
            return world.provider.node(machine)

    with pytest.raises(Unreachable):
        ingest_facts(world, *FANNED, provider=UnreachableProvider())
    assert len(stored_incidents(world)) == 2

    assert ingest_facts(world, *FANNED) == ["DUPLICATE", "OPEN", "DUPLICATE"]


def test_two_faults_of_one_event_are_two_evidence_entries() -> None:
    world = FakeWorld()

    assert ingest_facts(world, a_fact(fault_key="xid:79"), a_fact(fault_key="hp:XidHardwareFailure")) == [
        "OPEN",
        "JOIN",
    ]
    [incident] = stored_incidents(world)
    assert len(world.ledger.partition(Table.INCIDENTS, f"INC#{incident.incident_id}", "EVIDENCE#")) == 2


# ---------------------------------------------------------------- what is not ours


@pytest.mark.parametrize("fact", [a_notice(77), a_scheduled_event(77)])
def test_notices_about_unknown_instances_are_counted_and_kept(fact: NodeFact) -> None:
    world = FakeWorld()

    assert ingest_facts(world, fact, fact) == ["OTHER_FLEET", "OTHER_FLEET"]
    assert list(world.ledger.rows) == [incident_rows.notice_before_listing_key(fact.instance_id)]
    assert world.ledger.rows[incident_rows.notice_before_listing_key(fact.instance_id)].doc["facts"] == [fact.to_json()]
    assert world.telemetry.totals["FactsOtherFleet"] == 2


@pytest.mark.parametrize("fact", [a_notice(1), a_scheduled_event(1)])
def test_account_wide_notices_do_not_call_hyperpod(fact: NodeFact) -> None:
    class CountingProvider:
        def node(self, machine: str) -> Any:
            raise AssertionError(f"asked about {machine}")

    assert ingest_facts(FakeWorld(), fact, provider=CountingProvider()) == ["OTHER_FLEET"]


def test_plan_about_many_instances_opens_incidents_for_known_nodes() -> None:
    world = FakeWorld()
    record_node(world, 1, f"{CLUSTER}/seat-1")
    record_node(world, 2, f"{CLUSTER}/seat-2")

    assert ingest_facts(world, a_scheduled_event(1), a_scheduled_event(2), a_scheduled_event(77)) == [
        "OPEN",
        "OPEN",
        "OTHER_FLEET",
    ]


def test_notice_about_a_recorded_node_opens_an_incident() -> None:
    world = FakeWorld()
    record_node(world, 77, f"{CLUSTER}/burst-77")
    ends_notice_at = A_MOMENT + timedelta(minutes=2)

    assert ingest_facts(world, a_notice(77, deadline_at=ends_notice_at)) == ["OPEN"]
    assert stored_incidents(world)[0].deadline_at == ends_notice_at


OTHER_ARN = CLUSTER_ARN.replace("k3v9x2m7q1ab", "zzzzzzzzzzzz")


@pytest.mark.parametrize(
    ("event_arn", "own_arn", "outcome"),
    [
        (OTHER_ARN, CLUSTER_ARN, "OTHER_FLEET"),
        (OTHER_ARN, "", "OTHER_FLEET"),
        (CLUSTER_ARN, CLUSTER_ARN, "OPEN"),
        ("", CLUSTER_ARN, "OPEN"),
        # AWS's own samples end in the name.
        (CLUSTER_ARN.replace("k3v9x2m7q1ab", "research-train"), CLUSTER_ARN, "OPEN"),
    ],
)
def test_events_of_other_clusters_are_ignored(event_arn: str, own_arn: str, outcome: str) -> None:
    assert ingest_facts(FakeWorld(), a_fact(cluster_arn=event_arn), cluster_arn=own_arn) == [outcome]


def test_group_facts_of_other_clusters_are_dropped() -> None:
    world = FakeWorld()
    fact = a_group_fact(cluster_arn=OTHER_ARN)

    assert ingest_facts(world, fact) == ["OTHER_FLEET"]
    assert note_group_fact.recent_facts("p5-workers", world.context(now=A_MOMENT)) == ()


def a_group_fact(**changes: Any) -> GroupFact:
    facts: dict[str, Any] = {
        "kind": GroupFactKind.NO_CAPACITY,
        "source": "hyperpod.cluster-event",
        "cluster_arn": CLUSTER_ARN,
        "instance_group": "p5-workers",
        "observed_at": A_MOMENT,
        "envelope_id": "one",
    }
    return GroupFact.model_validate({**facts, **changes})


def test_event_may_contain_node_and_group_facts() -> None:
    world = FakeWorld()

    assert ingest_facts(world, progress_fact(1, "insufficient_capacity"), a_group_fact()) == ["IGNORED", "NOTED"]
    assert ingest_facts(world, progress_fact(1, "insufficient_capacity"), a_group_fact()) == ["IGNORED", "DUPLICATE"]


# ---------------------------------------------------------------- signals of a repair


def progress_of_incident(world: FakeWorld) -> list[str]:
    return [repair_progress.code for incident in stored_incidents(world) for repair_progress in incident.progress]


def test_progress_of_the_node_joins_its_incident() -> None:
    world = FakeWorld()
    record_node(world, 1, f"{CLUSTER}/seat-1")
    ingest_facts(world, a_fact(1))

    assert ingest_facts(world, progress_fact(1, "reboot_in_progress"), progress_fact(1, "reboot_in_progress")) == [
        "JOIN",
        "DUPLICATE",
    ]
    assert progress_of_incident(world) == ["reboot_in_progress"]


def test_progress_of_a_replacement_joins_incident_of_node_slot() -> None:
    world = FakeWorld()
    record_node(world, 1, f"{CLUSTER}/seat-1")
    ingest_facts(world, a_fact(1))

    assert ingest_facts(world, progress_fact(9, logical_id="seat-1")) == ["JOIN"]
    [incident] = stored_incidents(world)
    assert [(repair_progress.code, repair_progress.instance_id) for repair_progress in incident.progress] == [
        ("replacement_started", instance_id(9))
    ]
    assert incident.fault_key == "hp:NvidiaErrorReboot"


@pytest.mark.parametrize("fact", [progress_fact(9), progress_fact(9, logical_id="seat-2"), progress_fact(1)])
def test_progress_without_an_incident_is_dropped(fact: NodeFact) -> None:
    world = FakeWorld()

    assert ingest_facts(world, fact) == ["IGNORED"]
    assert world.ledger.rows == {}


def test_progress_after_settlement_changes_nothing() -> None:
    world = FakeWorld()
    record_node(world, 1, f"{CLUSTER}/seat-1")
    ingest_facts(world, a_fact(1))
    [incident] = stored_incidents(world)
    row = world.ledger.get(incident_rows.incident_key(incident.incident_id))
    assert row
    world.ledger.commit(Put(incident_rows.incident_row(incident.replace(state="RECOVERED"), row.version)))

    assert ingest_facts(world, progress_fact(9, logical_id="seat-1")) == ["IGNORED"]


# ---------------------------------------------------------------- lines of a new format


def test_unreadable_line_is_kept_and_counted_once() -> None:
    world = FakeWorld()
    unread = a_fact(fault_key="xid:*", code="xid_unparsed", detail="Xid of tomorrow: 79")

    assert ingest_facts(world, unread, unread) == ["OPEN", "DUPLICATE"]
    assert world.telemetry.totals["XidsUnparsed"] == 1


# ---------------------------------------------------------------- times


def test_fact_with_future_time_gets_the_present_time() -> None:
    world = FakeWorld()
    ahead = a_fact(observed_at=A_MOMENT + timedelta(days=400))

    assert ingest_facts(world, ahead) == ["OPEN"]
    world.clock.advance(90)
    assert ingest_facts(world, ahead) == ["DUPLICATE"]
    [incident] = stored_incidents(world)
    assert incident.first_signal_at == incident.last_signal_at == A_MOMENT


def test_small_clock_difference_is_accepted() -> None:
    world = FakeWorld()
    a_little = A_MOMENT + timedelta(minutes=4)

    ingest_facts(world, a_fact(observed_at=a_little))

    assert stored_incidents(world)[0].first_signal_at == a_little
