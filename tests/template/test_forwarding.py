"""The templates that forward events from other accounts and regions."""

import json
from typing import Any

import pytest
import yaml
from cfnlint.api import lint
from cfnlint.core import get_rules
from samtranslator.yaml_helper import yaml_parse

from evenkeel.events.envelope import PARSERS
from tests.template.documents import ROOT, resources

FOLDER = ROOT / "forwarding"
NAMES = sorted(path.name for path in FOLDER.glob("*.yaml"))
Json = dict[str, Any]


def document(name: str) -> Json:
    """Return a template."""
    content: Json = json.loads(json.dumps(yaml_parse((FOLDER / name).read_text(encoding="utf-8"))))
    return content


FORWARDS = document("forward-events.yaml")
RULES = {
    name: resource["Properties"]
    for name, resource in FORWARDS["Resources"].items()
    if resource["Type"] == "AWS::Events::Rule"
}
OWN_BUS = {"account": [{"Ref": "AWS::AccountId"}], "region": [{"Ref": "AWS::Region"}]}


@pytest.mark.parametrize("name", NAMES)
def test_template_passes_cfn_lint(name: str) -> None:
    rules = get_rules(append_rules=[], ignore_rules=[], include_rules=["W", "E"])

    assert [str(match) for match in lint(json.dumps(document(name)), rules=rules, regions=["us-west-2"])] == []


@pytest.mark.parametrize("name", NAMES)
def test_template_has_no_alias_which_cloudformation_refuses(name: str) -> None:
    events = yaml.parse((FOLDER / name).read_text(encoding="utf-8"))

    assert [event for event in events if isinstance(event, yaml.AliasEvent)] == []


def test_each_rule_forwards_the_events_that_the_stack_receives() -> None:
    received = {
        name: rule["EventPattern"] for name, rule in resources("AWS::Events::Rule").items() if name != "DrillEvents"
    }

    assert {name: rule["EventPattern"] for name, rule in RULES.items()} == {
        name: OWN_BUS | pattern for name, pattern in received.items()
    }


def test_forwarding_exists_only_outside_the_fleets_account_and_region() -> None:
    assert {resource.get("Condition") for resource in FORWARDS["Resources"].values()} == {"IsElsewhere"}


def test_every_target_has_dead_letter_queue_and_forwarding_role() -> None:
    for rule in RULES.values():
        (target,) = rule["Targets"]
        assert target["RoleArn"] == {"Fn::GetAtt": ["ForwarderRole", "Arn"]}
        assert target["DeadLetterConfig"] == {"Arn": {"Fn::GetAtt": ["UndeliveredEventsQueue", "Arn"]}}


def test_other_accounts_may_send_only_the_sources_of_aws() -> None:
    policy = document("accept-events.yaml")["Resources"]["ForwardedEvents"]["Properties"]
    condition = policy["Statement"]["Condition"]

    assert set(condition["ForAllValues:StringEquals"]["events:source"]) == {
        source for source in PARSERS if source.startswith("aws.")
    }
    assert condition["Null"] == {"events:source": "false"}
    assert policy["Statement"]["Action"] == "events:PutEvents"
