"""The preview of a fault follows from the rules that decide."""

from typing import Any

import pytest
from pydantic.alias_generators import to_camel

from evenkeel.domain.fault_preview import preview
from evenkeel.domain.health.faults import NODE_RUNGS, Fault, RecurKey, Rung, Severity, default_catalogue
from evenkeel.domain.health.incidents import PlanOutcome
from evenkeel.domain.policy import Policy, PolicyError, changed
from evenkeel.domain.values import Value

POLICY = Policy()


@pytest.mark.parametrize("fault", default_catalogue().values(), ids=lambda fault: fault.key)
def test_preview_of_each_fault_follows_its_catalogue_row(fault: Fault) -> None:
    previewed = preview(fault, POLICY)

    assert previewed.opens_incident == (fault.ladder[0] not in (Rung.IGNORE, Rung.FOLLOW_PRIMARY))
    expected_plan = previewed.with_second_source or previewed.plan
    repair_rungs = [step.rung for step in previewed.steps if step.rung != "ask_person"]
    if expected_plan and expected_plan.repairs_node and fault.ladder[0] in (Rung.DIAGNOSE, Rung.REBOOT, Rung.REPLACE):
        assert repair_rungs == [rung for rung in fault.ladder if rung in NODE_RUNGS]
    if not fault.acts_alone and previewed.plan:
        assert previewed.plan.outcome is not PlanOutcome.ACT
    is_mild = fault.severity is Severity.INFO and len(fault.ladder) == 1
    is_counted = fault.recur_key is not RecurKey.NONE and previewed.opens_incident and not is_mild
    assert (previewed.repeated is not None) == is_counted


def test_fault_override_changes_its_preview_and_the_hashes() -> None:
    site = changed(POLICY, {"faults": {"xid:43": {"ladder": ["reboot"], "validateWith": "basic"}}})

    before, after = preview(default_catalogue()["xid:43"], POLICY), preview(site.catalogue["xid:43"], site)

    assert ([step.rung for step in before.steps], [step.rung for step in after.steps]) == ([], ["reboot", "ask_person"])
    assert (before.is_changed, after.is_changed) == (False, True)
    assert before.catalogue_hash != after.catalogue_hash
    assert before.policy_hash != after.policy_hash


def test_policy_preview_keeps_defaults_of_omitted_settings() -> None:
    site = changed(POLICY, {"repair": {"maxAttempts": 2}})

    assert site == POLICY.replace(repair=POLICY.repair.replace(max_attempts=2))
    assert changed(POLICY, {}) == POLICY


def test_every_policy_section_refuses_unknown_fields() -> None:
    sections = [name for name, value in POLICY if isinstance(value, Value)]

    assert "repair" in sections
    for path in ([], *([to_camel(name)] for name in sections), ["repair", "guardrails"]):
        changes: dict[str, Any] = {"noSuchField": 1}
        for name in reversed(path):
            changes = {name: changes}
        with pytest.raises(PolicyError, match=r"noSuchField: is not a known field"):
            changed(POLICY, changes)
