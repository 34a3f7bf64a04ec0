"""The next step of the repair of a faulty node in an Auto Scaling group."""

from datetime import UTC, datetime, timedelta
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from evenkeel.domain.recovery.node_groups import (
    IN_SERVICE,
    GroupAction,
    GroupMember,
    GroupRepairFacts,
    NodeGroup,
    choose_group_repair,
)
from evenkeel.domain.recovery.repair_policy import RepairPolicy

NOW = datetime(2026, 3, 1, 12, tzinfo=UTC)
NODE = "i-0123456789abcdef0"
POLICY = RepairPolicy()
OWN_GROUP = NodeGroup(name="gpu-asg", cluster="train", desired=4, in_service=4)
REPAIRING_GROUP = OWN_GROUP.replace(nodegroup="gpu", has_auto_repair=True)
SHORT_GROUP = OWN_GROUP.replace(in_service=3)


def a_member(group: NodeGroup = OWN_GROUP, **changes: Any) -> GroupMember:
    return GroupMember(instance_id=NODE, group=group, lifecycle=IN_SERVICE).replace(**changes)


def group_repair_facts(**changes: Any) -> GroupRepairFacts:
    return GroupRepairFacts(instance_id=NODE, cluster="train", member=a_member(), now=NOW).replace(**changes)


def before_deadline(seconds: int) -> datetime:
    return NOW - timedelta(seconds=seconds)


def test_faulty_instance_of_a_healthy_group_is_terminated() -> None:
    decision = choose_group_repair(group_repair_facts(), POLICY)

    assert decision.action is GroupAction.TERMINATE


@pytest.mark.parametrize(
    ("facts", "words"),
    [
        (group_repair_facts(member=None), "in no Auto Scaling group"),
        (group_repair_facts(member=a_member(instance_id="i-0aaaaaaaaaaaaaaaa")), "not i-0123456789abcdef0"),
        (group_repair_facts(member=a_member(OWN_GROUP.replace(cluster="other"))), "belongs to cluster other"),
        (group_repair_facts(member=a_member(OWN_GROUP.replace(cluster=""))), "has no tag of a cluster"),
        (group_repair_facts(member=a_member(lifecycle="Standby")), "is Standby"),
        (group_repair_facts(member=a_member(lifecycle="Terminating:Retained")), "is Terminating:Retained"),
        (group_repair_facts(member=a_member(lifecycle="a state of tomorrow")), "a person must act"),
        (group_repair_facts(member=a_member(is_protected=True)), "protected from scale-in"),
        (group_repair_facts(member=a_member(OWN_GROUP.replace(suspended=("Launch",)))), "has suspended Launch"),
        (
            group_repair_facts(member=a_member(OWN_GROUP.replace(suspended=("Launch", "Terminate")))),
            "Launch and Terminate",
        ),
        (group_repair_facts(member=None, group=SHORT_GROUP), "without a request from Evenkeel"),
    ],
)
def test_termination_of_an_instance_is_refused_in_an_unsafe_group(facts: GroupRepairFacts, words: str) -> None:
    decision = choose_group_repair(facts, POLICY)

    assert decision.action is GroupAction.REFUSE
    assert words in decision.reason


@pytest.mark.parametrize(
    ("facts", "expected"),
    [
        (group_repair_facts(member=a_member(lifecycle="Terminating:Wait")), GroupAction.AWAIT),
        (group_repair_facts(member=a_member(lifecycle="Pending")), GroupAction.LATER),
        (group_repair_facts(member=a_member(OWN_GROUP.replace(in_service=5))), GroupAction.LATER),
        (
            group_repair_facts(member=a_member(OWN_GROUP.replace(suspended=("AlarmNotification",)))),
            GroupAction.TERMINATE,
        ),
        (group_repair_facts(requested_at=before_deadline(60)), GroupAction.AWAIT),
        (group_repair_facts(member=None, group=SHORT_GROUP, requested_at=before_deadline(60)), GroupAction.AWAIT),
        (group_repair_facts(member=None, group=OWN_GROUP, requested_at=before_deadline(60)), GroupAction.REPLACED),
    ],
)
def test_recovery_waits_while_the_group_moves_its_instance(facts: GroupRepairFacts, expected: GroupAction) -> None:
    assert choose_group_repair(facts, POLICY).action is expected


@pytest.mark.parametrize(
    ("facts", "words"),
    [
        (group_repair_facts(member=None, group=SHORT_GROUP), "has 3 of 4 instances"),
        (group_repair_facts(), "still InService"),
    ],
)
def test_person_is_asked_if_the_group_misses_its_replacement_deadline(facts: GroupRepairFacts, words: str) -> None:
    past_deadline = facts.replace(requested_at=before_deadline(POLICY.replace_deadline_seconds))

    decision = choose_group_repair(past_deadline, POLICY)

    assert decision.action is GroupAction.ASK_PERSON
    assert words in decision.reason


def test_recovery_waits_for_auto_repair_until_a_deadline() -> None:
    watched = group_repair_facts(member=a_member(REPAIRING_GROUP))
    deadline = POLICY.owner_deadline_seconds

    actions = [
        choose_group_repair(facts, POLICY).action
        for facts in (
            watched,
            watched.replace(watched_at=before_deadline(deadline - 1)),
            watched.replace(watched_at=before_deadline(deadline)),
            watched.replace(member=None, group=REPAIRING_GROUP, watched_at=before_deadline(60)),
        )
    ]

    assert actions == [GroupAction.WATCH, GroupAction.WATCH, GroupAction.ASK_PERSON, GroupAction.REPLACED]


def test_instance_is_not_terminated_after_auto_repair_is_switched_off() -> None:
    facts = group_repair_facts(watched_at=before_deadline(60))

    assert choose_group_repair(facts, POLICY).action is GroupAction.WATCH


_GROUPS = st.builds(
    NodeGroup,
    name=st.just("gpu-asg"),
    cluster=st.sampled_from(["train", "other", ""]),
    desired=st.integers(0, 4),
    in_service=st.integers(0, 4),
    suspended=st.sampled_from([(), ("Launch",), ("Terminate",), ("AZRebalance",)]),
    has_auto_repair=st.booleans(),
)
_MEMBERS = st.builds(
    GroupMember,
    instance_id=st.sampled_from([NODE, "i-0aaaaaaaaaaaaaaaa"]),
    group=_GROUPS,
    lifecycle=st.sampled_from([IN_SERVICE, "Standby", "Pending", "Terminating", "Detached"]),
    is_protected=st.booleans(),
)
_TIMES = st.none() | st.integers(0, 10_000).map(before_deadline)


@given(member=st.none() | _MEMBERS, group=st.none() | _GROUPS, requested_at=_TIMES, watched_at=_TIMES)
def test_instance_is_terminated_once_and_only_in_a_safe_group(
    member: GroupMember | None, group: NodeGroup | None, requested_at: datetime | None, watched_at: datetime | None
) -> None:
    facts = group_repair_facts(member=member, group=group, requested_at=requested_at, watched_at=watched_at)

    if choose_group_repair(facts, POLICY).action is GroupAction.TERMINATE:
        assert member is not None
        assert (member.instance_id, member.lifecycle, member.is_protected) == (NODE, IN_SERVICE, False)
        assert (member.group.cluster, member.group.has_auto_repair) == ("train", False)
        assert not {"Launch", "Terminate"} & set(member.group.suspended)
        assert (requested_at, watched_at) == (None, None)
