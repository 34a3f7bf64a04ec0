"""The grace of pods before their node is removed, and the unmanaged workloads that are evicted."""

from datetime import datetime
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from evenkeel.domain.external.unmanaged_workloads import PodRecreation, UnmanagedPod
from evenkeel.domain.health.faults import CanSave, CheckpointTrust, Fault, default_catalogue
from evenkeel.domain.health.incidents import JobAction
from evenkeel.domain.jobs.job_policy import JobPolicy
from evenkeel.domain.jobs.spec import OnNodeFault
from evenkeel.domain.policy import Policy
from evenkeel.domain.recovery.draining import (
    Drain,
    DrainFacts,
    UnmanagedPodAction,
    decide_unmanaged_pod,
    drain_deadline,
    finish_deadline,
    plan_drain,
)
from evenkeel.domain.recovery.repair_policy import RepairPolicy
from tests.unit.recovery.facts import at

POLICY = Policy()
SPOT = default_catalogue().look_up("ec2:spot_interruption")


def a_fault(drain_seconds: int = 300, can_save: CanSave = CanSave.TRY, **changes: Any) -> Fault:
    return default_catalogue().look_up("xid:79").replace(drain_seconds=drain_seconds, can_save=can_save, **changes)


def grace_of(
    fault: Fault, requested_seconds: int, act: JobAction = JobAction.MOVE, deadline_at: datetime | None = None
) -> Drain:
    facts = DrainFacts(
        can_save=fault.can_save,
        drain_seconds=fault.drain_seconds,
        action=act,
        wanted_seconds=requested_seconds,
        deadline_at=deadline_at,
        now=at(0),
    )
    return plan_drain(facts, POLICY)


@pytest.mark.parametrize(
    ("fault", "wanted", "seconds"),
    [
        (a_fault(-1), 600, 600),
        (a_fault(300), 600, 300),
        (a_fault(300), 30, 30),
        (a_fault(0, CanSave.TRY), 600, 0),
        (a_fault(0, CanSave.NO), 600, 30),
        (a_fault(900, CanSave.NO), 600, 600),
    ],
)
def test_job_gets_its_grace_within_the_limit_of_the_fault(fault: Fault, wanted: int, seconds: int) -> None:
    assert grace_of(fault, wanted).grace_seconds == seconds


@pytest.mark.parametrize(("can_save", "is_spared"), [(CanSave.NO, False), (CanSave.TRY, True), (CanSave.YES, True)])
def test_drain_does_not_wait_for_pods_that_cannot_save(can_save: CanSave, is_spared: bool) -> None:
    assert grace_of(a_fault(can_save=can_save), 60).grants_grace_on_faulty_node is is_spared


def test_spot_notice_leaves_ninety_seconds_to_save() -> None:
    drain = grace_of(SPOT, 3600, deadline_at=at(120))

    assert drain.grace_seconds == 90
    assert "before the node terminates" in drain.reason


def test_node_past_its_deadline_gives_jobs_no_grace() -> None:
    assert grace_of(SPOT, 3600, deadline_at=at(10)).grace_seconds == 0


@pytest.mark.parametrize("act", [JobAction.ROLLBACK, JobAction.STOP])
def test_drain_does_not_wait_for_an_unusable_checkpoint(act: JobAction) -> None:
    assert grace_of(a_fault(-1), 600, act).grace_seconds == 0


@given(
    wanted=st.integers(0, 3600),
    drain_seconds=st.sampled_from([-1, 0, 120, 300, 900]),
    can_save=st.sampled_from(list(CanSave)),
    deadline=st.none() | st.integers(0, 600),
)
def test_grace_never_exceeds_the_jobs_request_or_the_deadline(
    wanted: int, drain_seconds: int, can_save: CanSave, deadline: int | None
) -> None:
    deadline_at = None if deadline is None else at(deadline)

    grace = grace_of(a_fault(drain_seconds, can_save), wanted, deadline_at=deadline_at).grace_seconds

    assert 0 <= grace <= wanted
    assert deadline is None or grace <= max(0, deadline - POLICY.jobs.rest_before_deadline_seconds)


# ---------------------------------------------------------------- jobs that may finish on a cordoned node


def finishing_deadline(fault: Fault, wish: OnNodeFault = OnNodeFault.FINISH, **changes: Any) -> datetime | None:
    policy = Policy(jobs=JobPolicy(finish_seconds=1000), repair=RepairPolicy(leave_seconds=100))
    return finish_deadline(wish, fault, opened_at=at(0), deadline_at=changes.get("deadline_at"), policy=policy)


def test_job_may_finish_on_a_cordoned_node_on_request() -> None:
    assert finishing_deadline(a_fault(300)) == at(1000)
    assert finishing_deadline(a_fault(300), OnNodeFault.MOVE) is None
    assert finishing_deadline(a_fault(300), deadline_at=at(400)) == at(300)
    assert finishing_deadline(a_fault(300), deadline_at=at(90)) is None


@pytest.mark.parametrize(
    "fault", [a_fault(0), a_fault(300, checkpoint_trust=CheckpointTrust.SUSPECT_SINCE_FIRST_SIGNAL)]
)
def test_no_job_finishes_on_an_untrusted_node(fault: Fault) -> None:
    assert finishing_deadline(fault) is None


# ---------------------------------------------------------------- unmanaged pods


def a_pod(recreation: PodRecreation) -> UnmanagedPod:
    return UnmanagedPod(
        namespace="research",
        name="llama-0",
        uid="u",
        node_name="n",
        accelerators=8,
        kind="PyTorchJob",
        workload="llama",
        recreation=recreation,
    )


@pytest.mark.parametrize(
    ("recreation", "now", "changes", "act"),
    [
        (PodRecreation.BY_OWNER, 299, {}, UnmanagedPodAction.EVICT),
        (PodRecreation.BY_HYPERPOD, 299, {}, UnmanagedPodAction.LEAVE),
        (PodRecreation.NEVER, 299, {}, UnmanagedPodAction.LEAVE),
        (PodRecreation.BY_OWNER, 300, {}, UnmanagedPodAction.ASK),
        (PodRecreation.NEVER, 300, {}, UnmanagedPodAction.ASK),
        (PodRecreation.BY_HYPERPOD, 300, {}, UnmanagedPodAction.LEAVE),
        (PodRecreation.NEVER, 300, {"has_deadline": True}, UnmanagedPodAction.LEAVE),
        (PodRecreation.NEVER, 300, {"fault": a_fault(0)}, UnmanagedPodAction.LEAVE),
        (
            PodRecreation.NEVER,
            300,
            {"policy": Policy(repair=RepairPolicy(ends_unmanaged_pods=True))},
            UnmanagedPodAction.LEAVE,
        ),
    ],
)
def test_unmanaged_pod_is_awaited_evicted_or_left_to_a_person(
    recreation: PodRecreation, now: int, changes: dict[str, Any], act: UnmanagedPodAction
) -> None:
    facts: dict[str, Any] = {"until": at(300), "has_deadline": False, "policy": POLICY, "now": at(now)}
    arguments = {"fault": a_fault(300), **facts, **changes}

    assert decide_unmanaged_pod(a_pod(recreation), arguments.pop("fault"), **arguments).action is act


def test_drain_ends_at_its_class_limit_or_node_deadline() -> None:
    assert drain_deadline(a_fault(300), opened_at=at(0), deadline_at=None, policy=POLICY) == at(300)
    assert drain_deadline(a_fault(300), opened_at=at(0), deadline_at=at(120), policy=POLICY) == at(120)
    assert drain_deadline(a_fault(-1), opened_at=at(0), deadline_at=None, policy=POLICY) == at(300)
