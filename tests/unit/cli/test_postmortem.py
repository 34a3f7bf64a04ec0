"""A postmortem contains recorded facts, names no person, and is Markdown that external text cannot break."""

import re
from typing import Any

import pytest

from evenkeel_cli.postmortem_page import IncidentRecords, postmortem
from tests.unit.api.gateway import ApiResponse
from tests.unit.api.seeds import a_job, affected, ago, an_incident, some_evidence, store, store_timeline_entries
from tests.unit.cli.conftest import CliFixture
from tests.unit.cli.recovery_fixture import store_running_recovery

OPERATOR = "role/Operator (ana)"


def lines_of_section(page: str, title: str) -> list[str]:
    """Return the lines of a section of a postmortem."""
    match = re.search(rf"^## {title}\n\n(.*?)(?=\n## |\Z)", page, re.MULTILINE | re.DOTALL)
    assert match, page
    return match[1].strip().splitlines()


def run_postmortem(cli: CliFixture, *options: str) -> str:
    result = cli.run("postmortem", "@latest", *options)
    assert (result.exit_code, result.err) == (0, "")
    return result.out


def test_postmortem_contains_recorded_timeline_evidence_and_decisions(cli: CliFixture) -> None:
    store_running_recovery(cli.gateway)

    page = run_postmortem(cli)

    assert page.startswith("# Postmortem: GPU has fallen off the bus on i-00000000000000001\n\n**A drill.**")
    assert lines_of_section(page, "Timeline")[2] == (
        "| 2026-11-03T10:03:02Z | fault | hyperpod-i-00000000000000001: Xid 79, GPU has fallen off the bus. |"
    )
    assert len(lines_of_section(page, "Timeline")) == 2 + 5
    assert lines_of_section(page, "Evidence")[2].startswith("| 2026-11-03T10:03:02Z | hyperpod.node-health | xid:79 |")
    decisions = lines_of_section(page, "Decisions")
    assert "| wait for repair | ~16m00s | 4.27 | The replacement takes about" in "".join(decisions)
    assert [line.split("`")[1] for line in decisions if line.startswith("###")] == ["dec-0000000001", "dec-0000000003"]


def test_postmortem_names_the_longest_step_and_its_remedy(cli: CliFixture) -> None:
    store_running_recovery(cli.gateway)

    remedies = lines_of_section(run_postmortem(cli), "What would have helped")

    assert remedies[0].startswith("- The longest step led to *jobs stopped*: 7.9s of 12s.")


def test_postmortem_names_a_faster_resume_option_and_its_obstacle() -> None:
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

    page = postmortem(IncidentRecords(EMPTY, [], [decision], [], None))

    assert lines_of_section(page, "What would have helped") == [
        "- *spare* would have taken ~1m00s instead of ~16m00s, but: No spare is configured. (`dec-1`)"
    ]


def test_postmortem_names_people_only_on_request(cli: CliFixture) -> None:
    ledger = cli.gateway.fakes.ledger
    store(ledger, an_incident(1))
    store_timeline_entries(ledger, "inc-0000000001", (ago(minutes=5), "approved", f"{OPERATOR} approved it."))

    assert "(ana)" not in run_postmortem(cli)
    assert "| a person approved it. |" in run_postmortem(cli)
    assert f"| {OPERATOR} approved it. |" in run_postmortem(cli, "--names")


def test_postmortem_names_a_job_without_a_checkpoint(cli: CliFixture) -> None:
    job = a_job(1, state="RUNNING")
    job = job.replace(spec=job.spec.replace(checkpoint_uri=""))
    store(cli.gateway.fakes.ledger, job, an_incident(1, affected_jobs=affected(job)))

    text = "- `job-0000000001` has no checkpoint, so it started again from step 0. Set `checkpoint.uri`."
    assert text in lines_of_section(run_postmortem(cli), "What would have helped")


def test_text_of_a_detector_cannot_break_the_markdown(cli: CliFixture) -> None:
    incident = an_incident(1)
    evidence = some_evidence(incident)
    hostile_text = "a | b\n# Owned <script> *x* [y](z) \x1b[2J"
    store(cli.gateway.fakes.ledger, incident, evidence.replace(fact=evidence.fact.replace(detail=hostile_text)))

    page = run_postmortem(cli)

    assert not re.search(r"^# Owned|<script>|\x1b|(?<!\\\\)\[y\]", page, re.MULTILINE)
    assert "a \\| b # Owned \\<script\\>" in lines_of_section(page, "Evidence")[2]


def test_postmortem_without_a_receipt_has_unknown_cost() -> None:
    page = postmortem(IncidentRecords(EMPTY, [], [], [], None))

    unknown = "No receipt is available: the cost is unknown."
    assert lines_of_section(page, "Impact") == ["No job of Evenkeel ran on the node.", "", unknown]


def test_postmortem_shows_known_and_unknown_cost_by_stage() -> None:
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

    page = postmortem(IncidentRecords(EMPTY, [], [], [], receipt))

    assert lines_of_section(page, "Impact")[2:] == [
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


def test_unknown_incident_exits_4(cli: CliFixture) -> None:
    assert cli.run("postmortem", "inc-0000000009").exit_code == 4


@pytest.mark.parametrize("failing", [403, 503])
def test_postmortem_fails_if_a_record_cannot_be_read(cli: CliFixture, failing: int) -> None:
    store_running_recovery(cli.gateway)
    response = cli.gateway.get("/v1/incidents/inc-0000000001")
    cli.next_answers = [ApiResponse(200, {}, response.text), *[ApiResponse(failing, {}, "{}")] * 3]

    result = cli.run("postmortem", "inc-0000000001")

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
