"""A postmortem contains recorded facts, names no person, and is Markdown that external text cannot break."""

import re
from typing import Any

import pytest

from evenkeel_cli.postmortem_page import Records, postmortem
from tests.unit.api.gateway import ApiResponse
from tests.unit.api.seeds import a_job, affected, ago, an_incident, some_evidence, store_timeline_entries, stored
from tests.unit.cli.conftest import CliFixture
from tests.unit.cli.recovery_fixture import recovery_at_work

OPERATOR = "role/Operator (ana)"


def section(page: str, title: str) -> list[str]:
    """Return the lines of a section."""
    match = re.search(rf"^## {title}\n\n(.*?)(?=\n## |\Z)", page, re.MULTILINE | re.DOTALL)
    assert match, page
    return match[1].strip().splitlines()


def run_postmortem(served: CliFixture, *options: str) -> str:
    result = served.run("postmortem", "@latest", *options)
    assert (result.exit_code, result.err) == (0, "")
    return result.out


def test_postmortem_contains_recorded_timeline_evidence_and_decisions(served: CliFixture) -> None:
    recovery_at_work(served.gateway)

    page = run_postmortem(served)

    assert page.startswith("# Postmortem: GPU has fallen off the bus on i-00000000000000001\n\n**A drill.**")
    assert section(page, "Timeline")[2] == (
        "| 2026-11-03T10:03:02Z | fault | hyperpod-i-00000000000000001: Xid 79, GPU has fallen off the bus. |"
    )
    assert len(section(page, "Timeline")) == 2 + 5
    assert section(page, "Evidence")[2].startswith("| 2026-11-03T10:03:02Z | hyperpod.node-health | xid:79 |")
    decisions = section(page, "Decisions")
    assert "| wait for repair | ~16m00s | 4.27 | The replacement takes about" in "".join(decisions)
    assert [line.split("`")[1] for line in decisions if line.startswith("###")] == ["dec-0000000001", "dec-0000000003"]


def test_longest_step_is_named_with_its_remedy(served: CliFixture) -> None:
    recovery_at_work(served.gateway)

    helpful = section(run_postmortem(served), "What would have helped")

    assert helpful[0].startswith("- The longest step led to *jobs stopped*: 7.9s of 12s.")


def test_faster_resume_option_is_named_with_its_obstacle() -> None:
    decision = {
        "decisionId": "dec-1",
        "decidedAt": "2026-11-03T10:00:00Z",
        "kind": "RESUME",
        "action": "WAIT_FOR_REPAIR",
        "reason": "No node is free.",
        "chosen": {"option": "WAIT_FOR_REPAIR", "expectedSeconds": 960},
        "alternatives": [
            {"option": "SPARE", "whyNot": "No spare is configured.", "expectedSeconds": 60},
            {"option": "RENT", "whyNot": "It takes longer.", "expectedSeconds": 2000},
            {"option": "PREEMPT", "whyNot": "Unknown.", "expectedSeconds": None},
        ],
    }

    page = postmortem(Records(EMPTY, [], [decision], [], None))

    assert section(page, "What would have helped") == [
        "- *spare* would have taken ~1m00s instead of ~16m00s, but: No spare is configured. (`dec-1`)"
    ]


def test_postmortem_names_people_only_on_request(served: CliFixture) -> None:
    ledger = served.gateway.fakes.ledger
    stored(ledger, an_incident(1))
    store_timeline_entries(ledger, "inc-0000000001", (ago(minutes=5), "approved", f"{OPERATOR} approved it."))

    assert "(ana)" not in run_postmortem(served)
    assert "| a person approved it. |" in run_postmortem(served)
    assert f"| {OPERATOR} approved it. |" in run_postmortem(served, "--names")


def test_job_without_a_checkpoint_is_named(served: CliFixture) -> None:
    job = a_job(1, state="RUNNING")
    job = job.replace(spec=job.spec.replace(checkpoint_uri=""))
    stored(served.gateway.fakes.ledger, job, an_incident(1, affected_jobs=affected(job)))

    text = "- `job-0000000001` has no checkpoint, so it started again from step 0. Set `checkpoint.uri`."
    assert text in section(run_postmortem(served), "What would have helped")


def test_text_of_a_detector_cannot_break_the_markdown(served: CliFixture) -> None:
    incident = an_incident(1)
    evidence = some_evidence(incident)
    hostile = "a | b\n# Owned <script> *x* [y](z) \x1b[2J"
    stored(served.gateway.fakes.ledger, incident, evidence.replace(fact=evidence.fact.replace(detail=hostile)))

    page = run_postmortem(served)

    assert not re.search(r"^# Owned|<script>|\x1b|(?<!\\\\)\[y\]", page, re.MULTILINE)
    assert "a \\| b # Owned \\<script\\>" in section(page, "Evidence")[2]


def test_stack_without_receipts_leaves_the_cost_unknown() -> None:
    page = postmortem(Records(EMPTY, [], [], [], None))

    unknown = "No receipt is available: the cost is unknown."
    assert section(page, "Impact") == ["No job of Evenkeel ran on the node.", "", unknown]


def test_receipt_gives_the_cost_by_stage_and_leaves_unknown_unknown() -> None:
    parts = [
        {"stage": "DRAIN", "seconds": 80, "gpuHours": 0.36, "usdMicros": 2_450_000},
        {"stage": "LAUNCH", "seconds": 0, "gpuHours": 0, "usdMicros": 0},
        {"stage": "RESTORE", "seconds": None, "gpuHours": None, "usdMicros": None},
    ]
    total = {"seconds": 80, "gpuHours": 0.36, "usdMicros": 2_450_000}
    receipt = {
        "isLowerBound": True,
        "isOver": True,
        "totalGpuHours": 0.36,
        "totalUsdMicros": 2_450_000,
        "jobs": [{"jobId": "job-1", "attempt": 1, "parts": parts, "total": total}],
        "notes": [],
    }

    page = postmortem(Records(EMPTY, [], [], [], receipt))

    assert section(page, "Impact")[2:] == [
        "Cost: at least 0.36 GPU-hours, $2.45.",
        "",
        "`job-1`, attempt 1:",
        "",
        "| Stage | Lost | GPU-hours | Cost |",
        "|---|---|---|---|",
        "| drain | 1m20s | 0.36 | $2.45 |",
        "| restore | unknown | unknown | unknown |",
        "| sum | 1m20s | 0.36 | $2.45 |",
    ]


def test_unknown_incident_exits_4(served: CliFixture) -> None:
    assert served.run("postmortem", "inc-0000000009").exit_code == 4


@pytest.mark.parametrize("failing", [403, 503])
def test_postmortem_fails_if_a_record_cannot_be_read(served: CliFixture, failing: int) -> None:
    recovery_at_work(served.gateway)
    response = served.gateway.get("/v1/incidents/inc-0000000001")
    served.next_answers = [ApiResponse(200, {}, response.text), *[ApiResponse(failing, {}, "{}")] * 3]

    result = served.run("postmortem", "inc-0000000001")

    assert (result.exit_code, result.out) == ({403: 6, 503: 8}[failing], "")


EMPTY: dict[str, Any] = {
    "incidentId": "inc-1",
    "state": "RECOVERED",
    "outcome": "Recovered.",
    "severity": "critical",
    "fault": {"key": "xid:79", "name": "GPU has fallen off the bus"},
    "node": {"instanceId": "i-1", "instanceType": "ml.p5.48xlarge", "pool": "p5", "cluster": "a"},
    "replacementInstanceId": None,
    "repairs": [],
    "resumes": None,
    "mode": "act",
    "isDrill": False,
    "firstSignalAt": "2026-11-03T10:00:00.000000Z",
    "openedAt": "2026-11-03T10:00:00.000000Z",
    "settledAt": "2026-11-03T10:20:00.000000Z",
    "approval": None,
    "jobLanes": [],
    "unmanagedWorkloads": [],
    "took": [],
    "evidence": [],
    "execution": "inc-1-r1",
}
