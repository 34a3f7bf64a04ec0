"""Waits: opened, answered once, ended by their deadline, and never by an answer that was meant for another."""

from collections.abc import Callable
from typing import Any

import pytest

from evenkeel.domain.jobs.attempt import AttemptState, PodPhase
from evenkeel.domain.jobs.job import StopRequest
from evenkeel.domain.jobs.job_policy import JobPolicy
from evenkeel.domain.waiting import ConditionKind, Wait, WaitAnswer
from evenkeel.ports import Key, Ledger, Put, Refused, Row, Unreachable
from evenkeel.services.context import Context
from evenkeel.services.recovery import hold_automation
from evenkeel.services.tables import rows, subject_rows
from evenkeel.services.waits import evaluate_waits, open_wait, resolve_wait
from tests.fakes.cluster import CLUSTER, instance_id
from tests.unit.services_jobs.job_scenario import JobScenario
from tests.unit.services_recovery.recovery_scenario import QUICK, RecoveryScenario

K = ConditionKind


class Waits:
    """A running job on two of three nodes, and its waits."""

    def __init__(self, **jobs: Any) -> None:
        self.policy = QUICK.replace(jobs=JobPolicy.model_validate({**QUICK.jobs.model_dump(), **jobs}))
        self.scenario = JobScenario(size=3, policy=self.policy)
        self.world = self.scenario.world
        self.job_id = self.scenario.running(nodes=2, checkpoint_uri="").job_id

    def context(self, **given: Any) -> Context:
        return self.world.context(**{"policy": self.policy, **given})

    def open_wait(self, kind: ConditionKind = K.ATTEMPT_ENDED, token: str = "token-1") -> open_wait.OpenWaitResult:
        request = open_wait.OpenWaitRequest(kind=kind, token=token, job_id=self.job_id, attempt=1)
        return open_wait.run(request, self.context())

    def evaluate_waits(self, **more: Any) -> list[str]:
        result = evaluate_waits.run(self.context(), **more)
        return [line.rpartition(": ")[2] for line in result.answered]

    def resolve_wait(self, index: int = -1, ledger: Ledger | None = None, **changes: Any) -> str:
        request = self.world.wait_answers.requests[index]
        document = {
            "subject": request.subject,
            "name": request.name,
            "generation": request.generation,
            "answer": request.answer,
            **changes,
        }
        return resolve_wait.run(
            resolve_wait.ResolveWaitRequest.model_validate(document),
            self.context(ledger=ledger or self.world.ledger),
        ).outcome

    def stored_waits(self) -> list[Wait]:
        return [rows.decode(row, Wait) for key, row in self.world.ledger.rows.items() if key.sk.startswith("WAIT#")]

    def request_stop(self) -> None:
        job = self.scenario.job(self.job_id)
        request = StopRequest(
            attempt=1, reason="Cancelled.", by="ana", grace_seconds=5, requested_at=self.world.clock.now()
        )
        self.scenario.set_job(job.replace(stop_request=request))

    @property
    def answers(self) -> dict[str, str]:
        return {token: answer["outcome"] for token, answer in self.world.task_tokens.answers.items()}


class SlowLedger:
    """Runs other callers after the first read of a wait, before its reader continues."""

    def __init__(self, ledger: Ledger, meanwhile: Callable[[], Any]) -> None:
        self._ledger = ledger
        self._meanwhile: list[Callable[[], Any]] = [meanwhile]

    def __getattr__(self, name: str) -> Any:
        return getattr(self._ledger, name)

    def get(self, key: Key) -> Row | None:
        row = self._ledger.get(key)
        while key.sk.startswith("WAIT#") and self._meanwhile:
            self._meanwhile.pop()()
        return row


@pytest.fixture
def waits() -> Waits:
    return Waits()


# ---------------------------------------------------------------- open


def test_wait_is_answered_at_once_if_its_condition_already_holds(waits: Waits) -> None:
    outcome = waits.open_wait(K.ATTEMPT_RUNNING)

    assert "RUNNING" in outcome.reason
    assert waits.resolve_wait() == "ANSWERED"
    assert waits.answers == {"token-1": "RUNNING"}
    assert waits.stored_waits() == []


def test_wait_stays_open_until_its_condition_is_met(waits: Waits) -> None:
    waits.open_wait()

    assert waits.evaluate_waits() == []
    waits.world.cluster.finish_pods(waits.job_id, 1)
    assert waits.evaluate_waits() == ["ENDED"]
    assert waits.resolve_wait() == "ANSWERED"
    assert waits.world.task_tokens.answers["token-1"]["facts"]["state"] == "SUCCEEDED"


def test_answer_goes_only_to_the_newest_token_after_retry(waits: Waits) -> None:
    waits.open_wait(token="token-1")
    waits.world.cluster.finish_pods(waits.job_id, 1)
    waits.evaluate_waits()
    waits.open_wait(token="token-2")

    assert waits.resolve_wait(index=0) == "STALE"
    assert waits.resolve_wait(index=1) == "ANSWERED"
    assert waits.answers == {"token-2": "ENDED"}


def test_answer_to_an_ended_wait_never_ends_the_next(waits: Waits) -> None:
    waits.open_wait(K.ATTEMPT_RUNNING, token="token-1")
    waits.resolve_wait()
    waits.world.clock.advance(1)
    waits.open_wait(K.ATTEMPT_RUNNING, token="token-2")

    assert waits.resolve_wait(index=0) == "STALE"
    assert waits.resolve_wait(index=1) == "ANSWERED"


def test_delayed_answer_keeps_a_newer_wait_open(waits: Waits) -> None:
    waits.open_wait(K.ATTEMPT_RUNNING, token="token-1")

    def meanwhile() -> None:
        waits.resolve_wait(index=0)
        waits.world.clock.advance(1)
        waits.open_wait(K.ATTEMPT_RUNNING, token="token-2")

    slow: Any = SlowLedger(waits.world.ledger, meanwhile)

    assert waits.resolve_wait(index=0, ledger=slow) == "STALE"
    assert waits.resolve_wait(index=1) == "ANSWERED"
    assert waits.answers == {"token-1": "RUNNING", "token-2": "RUNNING"}


def test_wait_without_a_subject_is_refused(waits: Waits) -> None:
    with pytest.raises(Refused):
        open_wait.run(open_wait.OpenWaitRequest(kind=K.RELEASED, token="t"), waits.context())


# ---------------------------------------------------------------- resolve


def test_second_answer_of_a_wait_is_not_sent(waits: Waits) -> None:
    waits.open_wait(K.ATTEMPT_RUNNING)

    assert [waits.resolve_wait(), waits.resolve_wait()] == ["ANSWERED", "STALE"]


def test_only_the_first_recorded_answer_of_a_wait_is_sent(waits: Waits) -> None:
    waits.open_wait(K.ATTEMPT_RUNNING)
    [wait] = waits.stored_waits()
    recorded = wait.replace(state="ANSWERED", answer=WaitAnswer(outcome="DEADLINE_PASSED", reason="Late."))
    row = waits.world.ledger.get(subject_rows.wait_key(wait.subject, wait.name))
    assert row
    waits.world.ledger.commit(Put(subject_rows.wait_row(recorded, row.version)))

    assert waits.resolve_wait() == "ANSWERED"
    assert waits.answers == {"token-1": "DEADLINE_PASSED"}


def test_answer_to_an_ended_task_counts_as_sent(waits: Waits) -> None:
    waits.open_wait(K.ATTEMPT_RUNNING)
    waits.world.task_tokens.over.add("token-1")

    assert waits.resolve_wait() == "OVER"
    assert waits.stored_waits() == []


def test_sweep_requests_an_unsent_answer_again(waits: Waits) -> None:
    waits.open_wait(K.ATTEMPT_RUNNING)
    [wait] = waits.stored_waits()
    row = waits.world.ledger.get(subject_rows.wait_key(wait.subject, wait.name))
    assert row
    recorded = wait.replace(state="ANSWERED", answer=WaitAnswer(outcome="RUNNING", reason="All run."))
    waits.world.ledger.commit(Put(subject_rows.wait_row(recorded, row.version)))

    assert waits.evaluate_waits() == []
    assert waits.evaluate_waits(repeat_answered=True) == ["RUNNING"]
    assert waits.resolve_wait() == "ANSWERED"


# ---------------------------------------------------------------- attempts


def test_wait_ends_at_its_deadline(waits: Waits) -> None:
    waits.world.cluster.set_pods(waits.job_id, 1, PodPhase.PENDING)
    waits.open_wait(K.ATTEMPT_RUNNING)

    waits.world.clock.advance(waits.policy.jobs.running_deadline_seconds - 1)
    assert waits.evaluate_waits() == []
    waits.world.clock.advance(1)
    assert waits.evaluate_waits() == ["DEADLINE_PASSED"]


@pytest.mark.parametrize("kind", [K.ATTEMPT_RUNNING, K.ATTEMPT_ENDED])
def test_stop_request_ends_wait_for_the_attempt(waits: Waits, kind: ConditionKind) -> None:
    waits.request_stop()
    waits.open_wait(kind)

    waits.resolve_wait()

    assert waits.answers == {"token-1": "STOP_REQUESTED"}


def test_success_counts_before_a_stop_request(waits: Waits) -> None:
    waits.world.cluster.finish_pods(waits.job_id, 1)
    waits.request_stop()
    waits.open_wait()

    waits.resolve_wait()

    assert waits.answers == {"token-1": "ENDED"}


def test_attempt_is_stopped_once_no_pod_is_left(waits: Waits) -> None:
    waits.request_stop()
    waits.open_wait(K.ATTEMPT_STOPPED)
    assert waits.evaluate_waits() == []

    waits.scenario.stop(waits.job_id)

    assert waits.evaluate_waits() == ["STOPPED"]


def test_pods_on_a_lost_node_are_not_awaited(waits: Waits) -> None:
    node = f"hyperpod-{instance_id(1)}"
    waits.request_stop()
    waits.open_wait(K.ATTEMPT_STOPPED)
    waits.world.cluster.lose_node(node)
    waits.scenario.stop(waits.job_id)

    assert waits.evaluate_waits() == []
    waits.world.clock.advance(waits.policy.jobs.lost_node_seconds)
    assert waits.evaluate_waits() == ["STOPPED"]


def test_settled_attempt_ends_its_waits(waits: Waits) -> None:
    waits.open_wait()
    waits.world.cluster.finish_pods(waits.job_id, 1)
    waits.scenario.settle(waits.job_id)

    assert waits.evaluate_waits() == ["ENDED"]


# ---------------------------------------------------------------- who is to blame


def test_failure_is_attributed_to_the_application_after_a_delay(waits: Waits) -> None:
    waits.world.cluster.fail_pods(waits.job_id, 1)
    waits.open_wait()

    assert waits.world.wait_answers.requests == []
    waits.world.clock.advance(waits.policy.jobs.attribution_delay_seconds - 1)
    assert waits.evaluate_waits() == []
    waits.world.clock.advance(1)
    assert waits.evaluate_waits() == ["ENDED"]
    assert waits.world.wait_answers.requests[-1].answer["facts"]["state"] == "FAILED"


def test_delay_begins_again_after_pods_ran_again(waits: Waits) -> None:
    waits.world.cluster.fail_pods(waits.job_id, 1)
    waits.open_wait()
    waits.world.cluster.run_pods(waits.job_id, 1)
    assert waits.evaluate_waits() == []
    waits.world.clock.advance(waits.policy.jobs.attribution_delay_seconds)

    waits.world.cluster.fail_pods(waits.job_id, 1)

    assert waits.evaluate_waits() == []
    waits.world.clock.advance(waits.policy.jobs.attribution_delay_seconds)
    assert waits.evaluate_waits() == ["ENDED"]


def test_node_fault_during_the_delay_takes_the_blame(waits: Waits) -> None:
    waits.world.cluster.fail_pods(waits.job_id, 1)
    waits.open_wait()
    waits.world.clock.advance(1)
    labels = {"sagemaker.amazonaws.com/fault-types": "NvidiaErrorTerminate"}
    waits.world.cluster.set_node(f"hyperpod-{instance_id(2)}", labels=labels)

    assert waits.evaluate_waits() == ["ENDED"]
    assert waits.world.wait_answers.requests[-1].answer["facts"]["state"] == AttemptState.LOST


def test_attempt_ends_at_once_if_attribution_has_no_delay() -> None:
    waits = Waits(attribution_delay_seconds=0)
    waits.world.cluster.fail_pods(waits.job_id, 1)

    assert "ENDED" in waits.open_wait().reason


# ---------------------------------------------------------------- many at once


def test_failed_wait_does_not_delay_the_others() -> None:
    recovery = RecoveryScenario()
    recovery.report_fault()
    for kind in (K.NODE_BACK, K.RELEASED):
        request = open_wait.OpenWaitRequest(kind=kind, token=kind, incident_id=recovery.incident_id, run=1)
        recovery.world.clock.advance(1)
        open_wait.run(request, recovery.context())

    def raise_unreachable() -> Any:
        raise Unreachable("no provider")

    recovery.world.provider.nodes = raise_unreachable  # type: ignore[method-assign]  # the provider does not answer
    recovery.world.wait_answers.requests.clear()
    result = evaluate_waits.run(recovery.context())

    assert [line.rpartition("/")[2] for line in result.answered] == ["released: RELEASED"]
    assert [line.split("/")[1].split(":")[:2] for line in result.failed] == [["node-back", " Unreachable"]]


def test_waits_of_one_subject_can_be_evaluated_separately(waits: Waits) -> None:
    waits.open_wait()
    waits.world.cluster.finish_pods(waits.job_id, 1)

    assert waits.evaluate_waits(subject="job-other") == []
    assert waits.evaluate_waits(subject=waits.job_id) == ["ENDED"]


def test_held_recovery_waits_longer_than_the_longest_hold() -> None:
    recovery = RecoveryScenario()
    recovery.report_fault()
    recovery.hold_automation(seconds=120)
    request = open_wait.OpenWaitRequest(kind=K.RELEASED, token="t", incident_id=recovery.incident_id, run=1)
    open_wait.run(request, recovery.context())

    row = recovery.world.ledger.get(subject_rows.wait_key(recovery.incident_id, "released"))
    assert row
    assert rows.decode(row, Wait).deadline_at > recovery.now + hold_automation.LONGEST_HOLD
    assert recovery.world.wait_answers.requests == []
    assert recovery.world.cluster.nodes(CLUSTER)


def test_every_kind_of_wait_has_a_message() -> None:
    assert set(evaluate_waits.UNMET_TEXT) == set(ConditionKind)
