from typing import Any

import pytest

from evenkeel.domain.jobs.job import Job
from evenkeel.domain.quotas.permissions import check_permitted, may_change, may_submit, team_of
from evenkeel.domain.quotas.teams import FleetQuotas, TeamSetup
from tests.unit.scheduling.builders import a_job, a_spec
from tests.unit.scheduling.test_teams import a_team

ANA, LEAD, LOOKER, OTHER, PLATFORM = (f"111122223333:role/{name}" for name in ("Ana", "Lead", "Look", "Other", "Ops"))


def member(identity: str, role: str) -> dict[str, str]:
    account, _, name = identity.partition(":")
    return {"principal": f"arn:aws:iam::{account}:{name}", "role": role}


SETUP = TeamSetup(
    fleet=FleetQuotas.model_validate(
        {"priorityClasses": {"high": 100, "top": 200}, "members": [member(PLATFORM, "lead")]}
    ),
    teams=(
        a_team(
            "nlp",
            images=["registry/nlp/*"],
            checkpoints=["s3://bucket/nlp", "file:///fsx/nlp"],
            priorityClasses=["high"],
            members=[member(ANA, "submitter"), member(LEAD, "lead"), member(LOOKER, "viewer")],
        ),
        a_team("vision", members=[member(LEAD, "submitter")]),
    ),
)
NOTHING = TeamSetup()


def submitted_job(**changes: Any) -> Job:
    return a_job(spec=a_spec(team="nlp"), submitter="role/Ana").replace(**changes)


NLP: dict[str, Any] = {"team": "nlp", "image": "registry/nlp/train:1", "checkpoint_uri": "s3://bucket/nlp/llama"}
VISION: dict[str, Any] = {"team": "vision", "checkpoint_uri": "s3://bucket/vision"}


@pytest.mark.parametrize(
    ("changes", "fields"),
    [
        (NLP, []),
        ({**NLP, "priority_class": "high"}, []),
        ({**NLP, "image": "elsewhere/train:1"}, ["image"]),
        ({**VISION, "image": "elsewhere/train:1"}, []),
        ({"team": "speech"}, ["team"]),
        ({"team": ""}, ["team"]),
        ({**VISION, "priority_class": "hihg"}, ["priorityClass"]),
        ({**VISION, "priority_class": "top"}, []),
        ({**NLP, "priority_class": "top"}, ["priorityClass"]),
        ({**NLP, "priority_class": "system-node-critical"}, ["priorityClass", "priorityClass"]),
        ({**NLP, "checkpoint_uri": ""}, []),
        ({**NLP, "checkpoint_uri": "s3://bucket/nlp-2/x"}, ["checkpoint.uri"]),
        ({**NLP, "checkpoint_uri": "s3://bucket/NLP/x"}, ["checkpoint.uri"]),
        ({**NLP, "checkpoint_uri": "s3://bucket"}, ["checkpoint.uri"]),
        ({**NLP, "checkpoint_uri": "file:///fsx/nlp/x", "checkpoint_claim": "fsx"}, []),
        ({**NLP, "checkpoint_uri": "file:///fsx/vision/x", "checkpoint_claim": "fsx"}, ["checkpoint.uri"]),
        ({**VISION, "checkpoint_uri": "s3://bucket/nlp/mine"}, ["checkpoint.uri"]),
        ({**VISION, "checkpoint_uri": "s3://bucket/nlp"}, ["checkpoint.uri"]),
        ({**VISION, "checkpoint_uri": "s3://bucket/nlp-vision"}, []),
    ],
)
def test_forbidden_field_of_a_job_is_reported(changes: dict[str, Any], fields: list[str]) -> None:
    assert [fault.field for fault in check_permitted(a_spec(**changes), SETUP)] == fields


def test_team_without_namespace_cannot_submit_beside_other_teams() -> None:
    old = TeamSetup(teams=(a_team("nlp", namespace=""), a_team("vision")))

    assert [fault.field for fault in check_permitted(a_spec(team="nlp"), old)] == ["team"]
    assert check_permitted(a_spec(team="vision"), old) == ()


def test_without_teams_the_policy_lists_priority_classes() -> None:
    spec = a_spec(team="whatever", priority_class="system-node-critical")

    assert [fault.field for fault in check_permitted(spec, NOTHING, {"high"})] == ["priorityClass"]
    assert check_permitted(spec.replace(priority_class="high"), NOTHING, {"high"}) == ()


def test_without_teams_any_team_and_image_is_allowed() -> None:
    assert check_permitted(a_spec(team="whatever"), NOTHING) == ()
    assert may_submit(NOTHING, "whatever", "")
    assert may_change(NOTHING, submitted_job(), OTHER, "role/Other")


@pytest.mark.parametrize(
    ("team", "identity", "expected"),
    [("", ANA, "nlp"), ("vision", ANA, "vision"), ("", LEAD, ""), ("", OTHER, ""), ("", PLATFORM, "")],
)
def test_team_defaults_to_the_only_team_of_the_caller(team: str, identity: str, expected: str) -> None:
    assert team_of(a_spec(team=team), SETUP, identity) == expected
    assert team_of(a_spec(team=""), NOTHING, identity) == "default"


@pytest.mark.parametrize(
    ("identity", "may"), [(ANA, True), (LEAD, True), (PLATFORM, True), (LOOKER, False), (OTHER, False), ("", False)]
)
def test_submission_needs_the_submitter_role(identity: str, may: bool) -> None:
    assert may_submit(SETUP, "nlp", identity) is may


@pytest.mark.parametrize(
    ("job", "identity", "principal", "may"),
    [
        (submitted_job(), ANA, "role/Ana", True),
        (submitted_job(submitter="role/Bo"), ANA, "role/Ana", False),
        (submitted_job(submitter=""), ANA, "", False),
        (submitted_job(), LEAD, "role/Lead", True),
        (submitted_job(), PLATFORM, "role/Ops", True),
        # A submitter who became a viewer, or left the team, may not change their jobs any more.
        (submitted_job(submitter="role/Look"), LOOKER, "role/Look", False),
        (submitted_job(submitter="role/Other"), OTHER, "role/Other", False),
        # The submitter of a job that is older than the teams may still change it.
        (submitted_job(spec=a_spec(team="default"), submitter="role/Other"), OTHER, "role/Other", True),
        (submitted_job(spec=a_spec(team="default"), submitter="role/Other"), LEAD, "role/Lead", False),
    ],
)
def test_only_submitter_or_lead_may_change_a_job(job: Job, identity: str, principal: str, may: bool) -> None:
    assert may_change(SETUP, job, identity, principal) is may
