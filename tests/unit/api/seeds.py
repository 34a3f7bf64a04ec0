"""Builders of rows as the services write them. A test states only the fields that matter."""

from dataclasses import replace
from datetime import UTC, datetime, timedelta
from typing import Any

from evenkeel.domain.decisions import Decision
from evenkeel.domain.health.incidents import AffectedJob, Evidence, FactKind, Incident, NodeFact, StoredRecoveryPlan
from evenkeel.domain.jobs.attempt import Attempt
from evenkeel.domain.jobs.job import Job
from evenkeel.domain.jobs.spec import JobSpec
from evenkeel.domain.nodes import FleetNode, NodeLife
from evenkeel.domain.sources import SourceReport, expected_sources
from evenkeel.domain.timeline import TimelineEntry
from evenkeel.domain.values import rfc3339
from evenkeel.ports import Key, Put, Row
from evenkeel.services.queries.fleet import read_overview, read_sources
from evenkeel.services.tables import fleet_rows, incident_rows, job_rows, subject_rows
from tests.fakes import InMemoryLedger
from tests.fakes.cluster import CLUSTER, instance_id
from tests.fakes.system import A_MOMENT
from tests.fakes.world import FakeWorld

POOL = "p5-workers"
PLAN_AWAITING_APPROVAL = StoredRecoveryPlan(
    run=1,
    outcome="ASK",
    repairs_node=True,
    evidence_wait_seconds=0,
    max_repairs=3,
    decision_id="dec-0000000001",
    reason="Waits for approval. Plan: Evenkeel moves the jobs, then: replace.",
    answer_by=datetime(2026, 11, 3, 14, 5, tzinfo=UTC),
    fault_key="xid:79",
)
"""A plan that waits for a person's approval."""


def ago(**parts: float) -> datetime:
    """Return a time before `A_MOMENT`, the present of the tests."""
    return A_MOMENT - timedelta(**parts)


def a_life(number: int = 1) -> NodeLife:
    return NodeLife(cluster=CLUSTER, instance_id=instance_id(number), launched_at=ago(days=3))


def a_fleet_node(number: int = 1, **changes: Any) -> FleetNode:
    facts: dict[str, Any] = {
        "life": a_life(number),
        "slot": f"{CLUSTER}/{POOL}-{number}",
        "node_name": f"hyperpod-{instance_id(number)}",
        "pool": POOL,
        "instance_type": "ml.p5.48xlarge",
        "zone": "us-west-2a",
        "provider_status": "Running",
        "is_ready": True,
        "accelerators": 8,
        "changed_at": ago(hours=1),
    }
    return FleetNode.model_validate({**facts, **changes})


def a_job(number: int = 1, **changes: Any) -> Job:
    spec = JobSpec(
        name=f"llama-{number}",
        image="registry/trainer:1",
        command=("python", "-m", "train"),
        nodes=2,
        checkpoint_uri="s3://checkpoints/llama",
    )
    facts: dict[str, Any] = {
        "job_id": f"job-{number:010d}",
        "spec": spec,
        "state": "PENDING",
        "reason": "",
        "submitted_at": ago(minutes=30 - number),
        "submitted_by": "role/Researcher (ana)",
        "cluster": CLUSTER,
        "namespace": "evenkeel-jobs",
    }
    return Job.model_validate({**facts, **changes})


def an_attempt(job: Job, number: int = 1, nodes: tuple[int, ...] = (1, 2), **changes: Any) -> Attempt:
    facts: dict[str, Any] = {
        "job_id": job.job_id,
        "attempt": number,
        "state": "RUNNING",
        "cluster": CLUSTER,
        "namespace": job.namespace,
        "pool": POOL,
        "nodes": tuple(a_life(n) for n in nodes),
        "node_names": tuple(f"hyperpod-{instance_id(n)}" for n in nodes),
        "accelerators": 8 * len(nodes),
        "admitted_at": ago(minutes=20),
        "decision_id": f"dec-{job.job_id}-{number}",
    }
    return Attempt.model_validate({**facts, **changes})


def an_incident(number: int = 1, **changes: Any) -> Incident:
    facts: dict[str, Any] = {
        "incident_id": f"inc-{number:010d}",
        "life": a_life(number),
        "slot": f"{CLUSTER}/{POOL}-{number}",
        "node_name": f"hyperpod-{instance_id(number)}",
        "pool": POOL,
        "instance_type": "ml.p5.48xlarge",
        "state": "RECOVERING",
        "severity": "critical",
        "fault_key": "xid:79",
        "first_signal_at": ago(minutes=12),
        "opened_at": ago(minutes=12),
        "mode": "act",
    }
    return Incident.model_validate({**facts, **changes})


def a_decision(number: int, subject: str, **changes: Any) -> Decision:
    facts: dict[str, Any] = {
        "decision_id": f"dec-{number:010d}",
        "kind": "RECOVERY",
        "subject": subject,
        "action": "ACT",
        "reason": "Xid 79 calls for a replacement.",
        "policy_hash": "0123456789ab",
        "mode": "act",
        "decided_at": ago(minutes=12 - number / 60),
    }
    return Decision.model_validate({**facts, **changes})


def some_evidence(incident: Incident, **changes: Any) -> Evidence:
    fact = NodeFact(
        kind=FactKind.FAULT,
        source="hyperpod.node-health",
        instance_id=incident.life.instance_id,
        fault_key=incident.fault_key,
        code="NvidiaErrorTerminate",
        observed_at=incident.first_signal_at,
        envelope_id="83eaffff-1111-2222-3333-444455556666",
        detail="NVRM: Xid (PCI:0000:b3:00): 79, GPU has fallen off the bus.",
    )
    return Evidence(
        incident_id=incident.incident_id, fact=fact.replace(**changes), joined_at=ago(minutes=12), opened=True
    )


def affected(job: Job, attempt: int = 1) -> tuple[AffectedJob, ...]:
    return (AffectedJob(job_id=job.job_id, attempt=attempt),)


def store_timeline_entries(ledger: InMemoryLedger, subject: str, *entries: tuple[datetime, str, str]) -> None:
    """Store the timeline entries of a subject."""
    for number, (at, kind, text) in enumerate(entries):
        entry = TimelineEntry(at=at, kind=kind, text=text, writer="test")
        ledger.commit(Put(subject_rows.timeline_row(subject, entry, str(number))))


def store(ledger: InMemoryLedger, *values: object) -> None:
    """Store values under their keys in the ledger."""
    for value in values:
        ledger.commit(Put(_row(value)))
        if isinstance(value, Incident) and not value.state.is_settled:
            ledger.commit(Put(incident_rows.open_row(value.life, value.incident_id)))


def make_unreadable(ledger: InMemoryLedger, key: Key, field: str) -> None:
    """Write a value of a newer release into a stored row."""
    row = ledger.get(key)
    assert row is not None
    ledger.commit(Put(replace(row, doc={**row.doc, field: "VALUE_OF_A_NEWER_RELEASE"})))


def store_fleet_counts(fakes: FakeWorld, *, minutes_ago: float = 0) -> dict[str, Any]:
    """Store the counts of the overview, as the sweep does."""
    context = fakes.context(now=ago(minutes=minutes_ago))
    counts = read_overview.counts_document(read_sources.read_source_ages(context), context)
    row = fakes.ledger.get(fleet_rows.overview_key())
    fakes.ledger.commit(Put(Row(fleet_rows.overview_key(), counts, row.version if row else 0)))
    return counts


def store_heartbeats(ledger: InMemoryLedger, at: datetime = A_MOMENT, **errors: str) -> None:
    """Store heartbeats in which every source answered; the kinds in `errors` have failed for ten minutes."""
    expected = expected_sources([CLUSTER], has_hyperpod=True)
    reports = {}
    for source in expected:
        source_report = SourceReport.after(None, "", at)
        error = errors.get(source.kind.replace("-", "_"), "")
        reports[source.name] = SourceReport.after(source_report, error, at) if error else source_report
    for function in ("schedule_jobs", "sweep_fleet", "watch_cluster"):
        doc = {"at": rfc3339(at), "sources": {name: report.to_json() for name, report in reports.items()}}
        ledger.commit(Put(Row(fleet_rows.heartbeat_key(function), doc)))


def list_decision(ledger: InMemoryLedger, decision: Decision) -> None:
    """Add a decision to the list of the fleet, as the table's stream does."""
    ledger.commit(Put(subject_rows.listed_decision_row(decision)))


def _row(value: object) -> Row:
    match value:
        case Job():
            return job_rows.job_row(value, 0)
        case Attempt():
            return job_rows.attempt_row(value, 0)
        case Incident():
            return incident_rows.incident_row(value, 0)
        case Evidence():
            return incident_rows.evidence_row(value)
        case Decision():
            return subject_rows.decision_row(value)
        case FleetNode():
            life = value.life
            return fleet_rows.node_row(life.cluster, life.instance_id, value.to_json(), 0, None)
    raise AssertionError(f"no row for {value!r}")
