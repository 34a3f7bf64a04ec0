"""The largest events that are read, on a ledger that holds rows, keys and commits to DynamoDB's sizes."""

import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from evenkeel.domain.health.incidents import AffectedJob, NodeFact
from evenkeel.domain.health.reports import ReporterRole
from evenkeel.domain.jobs.job import ResumeOption
from evenkeel.events import envelope, reported_faults
from evenkeel.events.outcomes import Ignored, Malformed, ParsedEvent, Unknown
from evenkeel.ports import LARGEST_ROW, row_bytes
from evenkeel.services.incidents import ingest_event
from evenkeel.services.recovery import drain_node
from evenkeel.services.resume import plan_resume
from tests.fakes.cluster import instance_id
from tests.unit.services_recovery.recovery_scenario import RecoveryScenario

EVENTS = sorted((Path(__file__).parents[2] / "fixtures/events").glob("*.json"))
REPORT = {
    "id": "report-1",
    "source": reported_faults.SOURCE,
    "detail-type": reported_faults.DETAIL_TYPE,
    "time": "2026-11-03T10:15:00Z",
    "detail": reported_faults.report_detail(
        "role/Detector",
        ReporterRole.DETECTOR,
        [
            {
                **dict.fromkeys(("gpu", "link", "jobId", "detail"), "x"),
                "instanceId": instance_id(1),
                "faultKey": "xid:79",
                "code": "79",
                "observedAt": "2026-11-03T10:15:00Z",
            }
        ],
    ),
}
SAMPLES = {**{path.stem: json.loads(path.read_text()) for path in EVENTS}, "report": REPORT}
WIDEST, NARROWER = "\U0001f600", ("x", '"', "\n", "\u20ac")
LENGTHS = (40, 64, 80, 128, 500, 512, 2_000, 2_048, 8_192)
MAX_JOBS_OF_A_NODE = 737
"""Pods that EKS runs on one node at most."""


def paths(part: Any, above: tuple[Any, ...] = ()) -> Iterator[tuple[Any, ...]]:
    """Yield where the texts of a document stand."""
    match part:
        case dict():
            for name, item in part.items():
                yield from paths(item, (*above, name))
        case list():
            for index, element in enumerate(part):
                yield from paths(element, (*above, index))
        case str():
            yield above


def with_text(document: Any, path: tuple[Any, ...], text: str) -> Any:
    changed = json.loads(json.dumps(document))
    part = changed
    for step in path[:-1]:
        part = part[step]
    part[path[-1]] = text
    return changed


def parse_document(document: Any) -> ParsedEvent | Ignored | Unknown | Malformed:
    return envelope.parse(json.dumps(document, ensure_ascii=False).encode())


def with_longest_texts(document: Any, character: str) -> Any:
    """Return a document in which every text is as long as its parser takes it, as far as one event goes."""
    for path in sorted(paths(document), key=str):
        if not isinstance(parse_document(with_text(document, path, character * min(LENGTHS))), ParsedEvent):
            continue  # a word of a fixed list, or a number: a longer text is invalid here
        texts = (character * length for length in reversed(LENGTHS))
        longer = (with_text(document, path, text) for text in texts)
        document = next(
            (candidate for candidate in longer if isinstance(parse_document(candidate), ParsedEvent)), document
        )
    return document


@pytest.mark.parametrize(
    "character", [WIDEST, *(pytest.param(character, marks=pytest.mark.exhaustive) for character in NARROWER)]
)
@pytest.mark.parametrize("name", SAMPLES)
def test_largest_event_of_each_kind_is_ingested(name: str, character: str) -> None:
    recovery = RecoveryScenario(with_job=False)
    document = with_longest_texts(SAMPLES[name], character)
    parsed = parse_document(document)
    assert isinstance(parsed, ParsedEvent | Ignored)

    facts = parsed.facts if isinstance(parsed, ParsedEvent) else ()
    about_a_node = [fact.replace(instance_id=instance_id(1)) for fact in facts if isinstance(fact, NodeFact)]
    world = recovery.world
    ingest_event.ingest_facts(
        (*facts, *about_a_node),
        world.context(
            hyperpod_cluster_arn="arn:aws:sagemaker:us-west-2:111122223333:cluster/ours",
            drills_may_act=True,
            policy=recovery.policy,
        ),
    )
    recovery.scenario.sweep()

    assert all(row_bytes(row) < LARGEST_ROW for row in recovery.world.ledger.rows.values())


@pytest.mark.parametrize("field", ["gpu", "link", "code", "jobId"])
def test_text_beyond_its_limit_makes_event_malformed(field: str) -> None:
    document = json.loads(json.dumps(REPORT))
    document["detail"]["faults"][0][field] = "x" * 5_000

    parsed = parse_document(document)

    assert isinstance(parsed, Malformed)
    assert parsed.code == "EVENT_TOO_LARGE"
    assert parsed.reason.startswith(f"detail.faults[0].{field}: ")


def test_node_with_the_most_signals_recovers() -> None:
    recovery = RecoveryScenario(size=4)
    recovery.report_fault()
    for detector in range(12):
        for n in range(40):
            fact = NodeFact(
                kind="FAULT",
                source=f"site:role/{detector:02d}{'d' * 230}",
                instance_id=instance_id(1),
                fault_key="xid:79",
                code="c" * 128,
                gpu=f"{n:04d}{'g' * 124}",
                link="l" * 128,
                observed_at=recovery.now,
                envelope_id="e" * 512,
                detail="\U0001f600" * 500,
            )
            recovery.ingest(fact)

    assert recovery.recover() == "RECOVERED"
    assert all(row_bytes(row) < LARGEST_ROW for row in recovery.world.ledger.rows.values())


def test_answers_about_most_jobs_of_node_fit_workflow() -> None:
    names = [f"job-{n:026d}" for n in range(MAX_JOBS_OF_A_NODE)]
    affected = tuple(
        AffectedJob(job_id=name, attempt=99_999, is_failure_excused=True, distrusted_attempt=99_999) for name in names
    )
    back = tuple(
        plan_resume.PlannedJob(job_id=name, attempt=99_999, option=max(ResumeOption, key=len)) for name in names
    )
    reason = ", ".join(f"{job.job_id} ({job.option})" for job in back)

    stopped = drain_node.DrainNodeResult(outcome="JOBS_AFFECTED", reason=reason, jobs=affected)
    planned = plan_resume.PlanResumeResult(outcome=plan_resume.ResumeOutcome.PLANNED, reason=reason, jobs=back)

    assert len(json.dumps(stopped.to_json())) < 200_000
    assert len(json.dumps(planned.to_json())) < 200_000
