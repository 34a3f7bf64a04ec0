"""The events that the rules match: each sample matches exactly one rule, and unrelated events match none."""

import json
from pathlib import Path
from typing import Any

import pytest

from evenkeel.events import envelope, fields, reported_faults
from tests.template.documents import ROOT, Json, resources, template

RULES = resources("AWS::Events::Rule")
EVENTS = ROOT / "tests" / "fixtures" / "events"
SAMPLES = sorted(EVENTS.glob("*.json"))


def matches_pattern(pattern: Any, value: Any) -> bool:
    """Return whether a pattern matches.

    Supports the patterns in the template: objects with lists of values and prefixes.
    """
    if isinstance(pattern, dict):
        return isinstance(value, dict) and all(
            name in value and matches_pattern(part, value[name]) for name, part in pattern.items()
        )
    return any(
        isinstance(value, str) and value.startswith(pattern_value["prefix"])
        if isinstance(pattern_value, dict)
        else value == pattern_value
        for pattern_value in pattern
    )


REFERENCES: list[Json] = json.loads((ROOT / "tests" / "fixtures" / "event_references.json").read_text(encoding="utf-8"))
"""Each detail type of AWS: its documentation, a sample that its rule matches, and changes that no rule matches."""


def rules_for(event: Json) -> list[str]:
    return [name for name, rule in RULES.items() if matches_pattern(rule["EventPattern"], event)]


@pytest.mark.parametrize("path", SAMPLES, ids=lambda path: path.stem)
def test_each_sample_event_matches_exactly_one_rule(path: Path) -> None:
    event = json.loads(path.read_text(encoding="utf-8"))

    assert len(rules_for(event)) == 1
    assert rules_for(event | {"source": fields.DRILL_SOURCE}) == ["DrillEvents"]


@pytest.mark.parametrize("reference", REFERENCES, ids=lambda reference: reference["detailType"])
def test_rule_matches_the_documented_event_and_no_near_miss(reference: Json) -> None:
    sample = json.loads((EVENTS / reference["sample"]).read_text(encoding="utf-8"))
    event = sample | {"detail-type": reference["detailType"]}

    assert reference["reference"].startswith("https://docs.aws.amazon.com/")
    assert rules_for(event) == [reference["rule"]]
    assert {str(miss): rules_for(event | miss) for miss in reference["nearMisses"]} == {
        str(miss): [] for miss in reference["nearMisses"]
    }


def test_every_parsed_detail_type_of_aws_has_a_reference() -> None:
    parsed = {kind for source, kinds in envelope.PARSERS.items() if source.startswith("aws.") for kind in kinds}

    assert {document["detailType"] for document in REFERENCES} == parsed


def test_every_parsed_event_kind_except_reports_has_a_rule() -> None:
    detail = {"service": "EC2", "eventTypeCategory": "issue", "state": "stopping"}
    without = {
        (source, kind)
        for source, kinds in envelope.PARSERS.items()
        for kind in kinds
        if not rules_for({"source": source, "detail-type": kind, "detail": detail})
    }

    assert without == {(reported_faults.SOURCE, reported_faults.DETAIL_TYPE)}


@pytest.mark.parametrize(
    ("source", "kind", "detail"),
    [
        ("aws.ec2", "EC2 Instance State-change Notification", {"state": "running"}),
        ("aws.ec2", "EC2 Instance State-change Notification", {"state": ""}),
        ("aws.ec2", "AWS API Call via CloudTrail", {}),
        ("aws.health", "AWS Health Event", {"service": "RDS", "eventTypeCategory": "issue"}),
        ("aws.health", "AWS Health Event", {"service": "EC2", "eventTypeCategory": "accountNotification"}),
        ("aws.sagemaker", "SageMaker Training Job State Change", {}),
        ("evenkeel.api", "Evenkeel Reported Faults", {}),
    ],
)
def test_events_about_other_subjects_match_no_rule(source: str, kind: str, detail: Json) -> None:
    assert rules_for({"source": source, "detail-type": kind, "detail": detail}) == []


def test_rule_for_drills_is_enabled_only_where_drills_may_act() -> None:
    assert RULES["DrillEvents"]["State"] == {"Fn::If": ["LetsDrillsAct", "ENABLED", "DISABLED"]}
    assert template()["Conditions"]["LetsDrillsAct"] == {"Fn::Equals": [{"Ref": "DrillsMayAct"}, "true"]}
    assert [name for name, rule in RULES.items() if "State" in rule] == ["DrillEvents"]


def test_unknown_hyperpod_event_matches_the_hyperpod_rule() -> None:
    event = json.loads((EVENTS / "bad" / "unknown-detail-type.json").read_text(encoding="utf-8"))

    assert rules_for(event) == ["HyperPodEvents"]
