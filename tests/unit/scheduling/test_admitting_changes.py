"""The smallest change that starts a job: for each result of an admission that keeps a job waiting."""

from typing import Any

import pytest

from evenkeel.domain.admission.admission_request import AdmissionRequest
from evenkeel.domain.admission.admitting_changes import admitting_changes
from evenkeel.domain.admission.decide_job import AdmissionAction, AdmissionFacts, decide
from evenkeel.domain.admission.pool_fits import JobToPreempt, PoolFit, PreemptionPlan
from evenkeel.domain.quotas.spending import UsageLimit
from tests.fakes.system import A_MOMENT


def facts_of(*fits: PoolFit, nodes: int = 4, request: dict[str, Any] | None = None, **more: Any) -> AdmissionFacts:
    request_fields = {
        "job_id": "job-1",
        "submitted_at": A_MOMENT,
        "cluster": "a",
        "nodes": nodes,
        "accelerators_per_node": 8,
    }
    return AdmissionFacts(
        request=AdmissionRequest.model_validate(request_fields | (request or {})), fits=fits, now=A_MOMENT, **more
    )


def a_fit(pool: str, fitting: int, **more: Any) -> PoolFit:
    return PoolFit(pool=pool, instance_type="p5", total_nodes=8, fitting=fitting, **more)


def texts(action: AdmissionAction, facts: AdmissionFacts) -> list[str]:
    return [change.message for change in admitting_changes(action, facts)]


def test_waiting_job_needs_missing_nodes_or_smaller_size() -> None:
    facts = facts_of(a_fit("far", 1), a_fit("near", 3))

    assert decide(facts).action is AdmissionAction.WAIT
    assert texts(AdmissionAction.WAIT, facts) == [
        "1 more free node in near (p5).",
        "3 more free nodes in far (p5).",
        "A smaller size: 3 nodes instead of 4.",
    ]


def test_required_domain_names_the_nodes_missing_in_one_domain() -> None:
    facts = facts_of(a_fit("near", 6, largest_domain=2))

    assert texts(AdmissionAction.WAIT, facts)[0] == "2 more free nodes in one network domain of near (p5)."


@pytest.mark.parametrize(
    ("limit", "text"),
    [
        (UsageLimit(quantity="GPUs", used=16, limit=16, requested=8), "A limit of 24 GPUs instead of 16."),
        (UsageLimit(quantity="dollars", used=90, limit=80), "A limit above 90 dollars instead of 80."),
        (
            UsageLimit(quantity="dollars", used=2_000_000.5, limit=1_000_000),
            "A limit above 2000000.5 dollars instead of 1000000.",
        ),
        (
            UsageLimit(quantity="accelerators", used=8, limit=0, unpriced_instance_type="p5e.48xlarge"),
            "A price for p5e.48xlarge in economy.prices.",
        ),
    ],
)
def test_reached_limit_names_the_change_that_suffices(limit: UsageLimit, text: str) -> None:
    other = UsageLimit(quantity="jobs", used=1, limit=9, requested=1)

    assert texts(AdmissionAction.LIMIT_REACHED, facts_of(limits=(limit, other))) == [text]


def test_other_waits_name_their_end() -> None:
    plan = PreemptionPlan(victims=(JobToPreempt(job_id="job-2", reason="InClusterQueue"),), fits=())

    pause = facts_of(request={"not_before": A_MOMENT})
    assert texts(AdmissionAction.BACK_OFF, pause) == ["The end of the pause, at 2026-11-03T10:15:02Z."]
    assert texts(AdmissionAction.EXCLUDED, facts_of(exclusion_reason="Ana holds automation.")) == [
        "The end of this state: Ana holds automation."
    ]
    assert texts(AdmissionAction.PREEMPT, facts_of(preemption_plan=plan)) == ["The end of job-2."]
    assert texts(AdmissionAction.ADMIT, facts_of()) == []
