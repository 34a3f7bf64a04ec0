"""HyperPod events about repairs, groups and the cluster."""

from typing import Any

import pytest

from evenkeel.domain.health.group_facts import GroupFactKind
from evenkeel.domain.health.incidents import FactKind
from evenkeel.events.outcomes import Ignored
from tests.unit.events.samples import Json, facts_of_event, group_facts, node_facts, parse_event, sample_event

REBOOT = "hyperpod-event-reboot-in-progress"
FAILED = "hyperpod-event-replacement-failed"
STATE = "hyperpod-cluster-state-change"
ONE = "i-0a1c4f7b92d36e581"


def an_event(description: str, *, level: str = "Info", failure: str = "", **changes: Any) -> Json:
    event = sample_event(REBOOT, EventDetails__Description=description, EventDetails__EventLevel=level, **changes)
    event["detail"]["EventDetails"]["EventDetails"]["EventMetadata"]["Instance"]["FailureMessage"] = failure
    return event


@pytest.mark.parametrize(
    ("name", "code", "kind"),
    [
        ("hyperpod-event-instance-provisioned", "provisioned", GroupFactKind.PROVISIONED),
        (REBOOT, "reboot_in_progress", None),
        ("hyperpod-event-replacement-started", "replacement_started", None),
        ("hyperpod-event-replacement-completed", "replacement_completed", None),
        (FAILED, "replacement_failed", GroupFactKind.EFA_BOOT_FAILED),
        ("hyperpod-event-insufficient-capacity", "insufficient_capacity", GroupFactKind.NO_CAPACITY),
        ("hyperpod-event-cordoned-pods-evicted", "patching_started", None),
    ],
)
def test_each_hyperpod_sample_gives_progress_and_its_group_fact(
    name: str, code: str, kind: GroupFactKind | None
) -> None:
    event = sample_event(name)

    [progress_fact] = node_facts(event)

    record = event["detail"]["EventDetails"]
    assert (progress_fact.kind, progress_fact.code, progress_fact.fault_key) == (FactKind.PROGRESS, code, "")
    assert (progress_fact.instance_id, progress_fact.occurrence) == (record["InstanceId"], record["EventId"])
    assert progress_fact.logical_id == record["EventDetails"]["EventMetadata"]["Instance"]["NodeLogicalId"]
    assert [group.kind for group in group_facts(event)] == ([kind] if kind else [])


@pytest.mark.parametrize(
    ("description", "code"),
    [
        (f"EC2 Instance {ONE} successfully provisioned in Cluster c and IG g.", "provisioned"),
        (f"Reboot of EC2InstanceId {ONE} is currently in progress", "reboot_in_progress"),
        (f"Failed to submit reboot request for EC2 Instance {ONE} on Cluster c", "reboot_failed"),
        (f"Instance {ONE} is starting as part of instance replacement in Cluster c", "replacement_started"),
        (f"Instance {ONE} failed to start as part of instance replacement.", "replacement_failed"),
        (f"Instance {ONE} creation completed successfully as part of instance replacement", "replacement_completed"),
        (f"Instance {ONE} deletion failed as part of instance replacement", "replacement_failed"),
        ("Failed to provision EC2 Instance in Cluster c and IG g", "creation_failed"),
        ("Instance creation in Cluster c and InstanceGroup g failed", "creation_failed"),
        (f"Instance lifecycle script execution for EC2 Instance {ONE} has failed.", "lifecycle_script_failed"),
        (f"Instance lifecycle script execution for EC2InstanceId {ONE} has Failed", "lifecycle_script_failed"),
        (f"Instance lifecycle script execution for EC2 Instance {ONE} has started", "lifecycle_script_ran"),
        (f"Termination of EC2 Instance {ONE} is currently in progress", "terminating"),
        ("Found CapacityReservation ID cr-06b1d8f3a7c24e905 for it", "reservation_found"),
        ("No CapacityReservation found for it, using on-demand pool", "reservation_missing"),
        (f"Instance {ONE} in IG g with spaces restored to schedulable state.", "patching_ended"),
        (f"Instance {ONE} in IG g skipped due to PodDisruptionBudget constraint.", "patching_skipped"),
    ],
)
def test_every_event_description_is_recognised(description: str, code: str) -> None:
    [progress_fact] = node_facts(an_event(description))

    assert (progress_fact.kind, progress_fact.code) == (FactKind.PROGRESS, code)


@pytest.mark.parametrize(
    ("description", "kind", "fault_key"),
    [
        ("Failed to provision EC2 Instance in Cluster c", GroupFactKind.CREATION_FAILED, "hp:replacement_failed"),
        (
            f"Instance lifecycle script execution for EC2 Instance {ONE} has failed",
            GroupFactKind.LIFECYCLE_SCRIPT_FAILED,
            "hp:lifecycle_script_failed",
        ),
    ],
)
def test_cause_shared_by_the_group_gives_a_group_fact(description: str, kind: GroupFactKind, fault_key: str) -> None:
    [group] = group_facts(an_event(description, level="Error"))

    assert (group.kind, group.fault_key, group.instance_group) == (kind, fault_key, "p5-workers")


@pytest.mark.parametrize(
    "ending",
    ["to launch new ml.p5.48xlarge instances. Please try again.", "in the requested Availability Zone."],
)
def test_failure_message_of_hyperpod_shows_that_capacity_is_missing(ending: str) -> None:
    failure = f"We currently do not have sufficient capacity {ending}"
    event = an_event("Instance x creation failed as part of instance replacement", level="Error", failure=failure)

    assert [progress_fact.code for progress_fact in node_facts(event)] == ["insufficient_capacity"]
    assert [group.kind for group in group_facts(event)] == [GroupFactKind.NO_CAPACITY]
    assert "sufficient capacity" in node_facts(event)[0].detail


def test_event_about_progress_is_not_read_as_missing_capacity() -> None:
    failure = "We currently do not have sufficient capacity"

    assert group_facts(an_event(f"Reboot of EC2 Instance {ONE} is currently in progress", failure=failure)) == []


def test_event_about_lost_orchestration_readiness_is_ignored() -> None:
    text = "3 node(s) lost orchestration-ready status"

    assert isinstance(parse_event(an_event(text, level="Warn", failure="Request to service failed.")), Ignored)


def test_unrecognised_hyperpod_error_is_an_unknown_fault_of_its_instance() -> None:
    [fact] = node_facts(an_event("Something new went wrong", level="Error"))

    assert (fact.kind, fact.fault_key, fact.code) == (FactKind.FAULT, "hp:unknown_fault_type", "other")


def test_unrecognised_hyperpod_error_without_instance_gives_a_group_fact() -> None:
    event = an_event("Something new went wrong", level="Error", EventDetails__InstanceId="")

    assert [fact.kind for fact in group_facts(event)] == [GroupFactKind.OTHER_ERROR]
    assert node_facts(event) == []


@pytest.mark.parametrize("level", ["Info", "Warn", ""])
def test_unrecognised_hyperpod_event_without_error_is_ignored(level: str) -> None:
    assert isinstance(parse_event(an_event("Something new", level=level)), Ignored)


def test_hyperpod_event_without_level_and_metadata_is_read() -> None:
    event = sample_event(REBOOT)
    del event["detail"]["EventDetails"]["EventLevel"]
    del event["detail"]["EventDetails"]["EventDetails"]

    [progress_fact] = node_facts(event)
    assert (progress_fact.code, progress_fact.logical_id) == ("reboot_in_progress", "")


def test_hyperpod_event_in_another_envelope_is_one_fact() -> None:
    first, copy = sample_event(REBOOT), sample_event(REBOOT) | {"id": "another", "time": "2026-11-03T10:29:40Z"}

    assert [fact.fact_key for fact in facts_of_event(first)] == [fact.fact_key for fact in facts_of_event(copy)]


# ---------------------------------------------------------------- the cluster


def test_cluster_state_change_gives_facts_of_cluster_and_groups() -> None:
    facts_of_event = {(fact.kind, fact.instance_group, fact.code) for fact in group_facts(sample_event(STATE))}

    assert facts_of_event == {
        (GroupFactKind.CLUSTER_STATUS, "", "InService"),
        (GroupFactKind.NODE_RECOVERY, "", "Automatic"),
        (GroupFactKind.GROUP_STATUS, "p5-workers", "Degraded"),
        (GroupFactKind.GROUP_STATUS, "controller", "InService"),
    }


@pytest.mark.parametrize("status", ["Failed", "RollingBack"])
def test_failed_cluster_is_a_fault_of_the_cluster(status: str) -> None:
    event = sample_event(STATE, ClusterStatus=status, FailureMessage="It broke.")

    [failed] = [fact for fact in group_facts(event) if fact.kind is GroupFactKind.CLUSTER_FAILED]
    assert (failed.fault_key, failed.instance_group, failed.detail) == ("hp:cluster_failed", "", "It broke.")


@pytest.mark.parametrize("status", ["InService", "Updating", "SystemUpdating", "Creating"])
def test_cluster_in_service_has_no_fault(status: str) -> None:
    assert {fact.fault_key for fact in group_facts(sample_event(STATE, ClusterStatus=status))} == {""}


@pytest.mark.parametrize(
    ("changes", "code"),
    [
        ({"InstanceGroups": "none"}, "EVENT_BAD_TYPE"),
        ({"InstanceGroups": [7]}, "EVENT_BAD_TYPE"),
        ({"InstanceGroups": [{"Status": "InService"}]}, "EVENT_BAD_TYPE"),
        ({"NodeRecovery": "\u202e"}, "EVENT_BAD_TEXT"),
        ({"ClusterStatus": None}, "EVENT_BAD_TYPE"),
    ],
)
def test_broken_state_change_is_malformed(changes: Json, code: str) -> None:
    assert parse_event(sample_event(STATE, **changes)).code == code
