import gc
import json
from collections.abc import Iterable
from typing import Any

import pytest

from evenkeel.domain.admission.admission_input import AdmissionInput
from evenkeel.domain.admission.admission_request import AdmissionRequest
from evenkeel.domain.admission.decide_job import AdmissionAction, AdmissionDecision, AdmissionFacts, decide
from evenkeel.domain.admission.queue_with_teams import decide_with_teams
from evenkeel.domain.admission.scheduler_state import SchedulerState
from evenkeel.domain.admission.scheduling_policy import SchedulingPolicy
from evenkeel.domain.capacity.node_capacity import NodeCapacity
from evenkeel.domain.decisions import Decision, packed
from evenkeel.domain.economics.economy_policy import EconomyPolicy
from evenkeel.domain.jobs.charge import Charge
from evenkeel.domain.kueue.cycle_decisions import Result
from evenkeel.domain.kueue.scheduler import Scheduler
from evenkeel.domain.policy import Policy
from evenkeel.domain.policy_section import Mode
from evenkeel.domain.queue_simulation.plan_events import Events
from evenkeel.domain.queue_simulation.profiles import RULES, Profile
from evenkeel.domain.queue_simulation.replay import Replay
from evenkeel.domain.queue_simulation.setup import QuotaDocuments
from evenkeel.domain.quotas import quota_facts
from evenkeel.domain.quotas.spending import Spending
from evenkeel.domain.quotas.teams import FleetQuotas, Team, TeamSetup
from evenkeel.domain.replay import replay
from evenkeel.domain.scheduling.cycle_facts import CycleFacts, cycle_facts
from evenkeel.services.tables import subject_rows
from tests.unit.scheduling.builders import CLUSTER, a_node_capacity, a_request, at

P5, GPU = "ml.p5.48xlarge", "nvidia.com/gpu"


def a_team(name: str, gpus: int = 16, cohort: str = "fleet", **changes: Any) -> Team:
    queue = {
        "cohort": cohort,
        "groups": [{P5: {GPU: gpus}}],
        "preemption": {"within": "LowerPriority", "reclaim": "Any"},
        **changes.pop("queue", {}),
    }
    return Team.model_validate({"name": name, "queue": queue, "namespace": name, **changes})


def a_setup(*teams: Team, **fleet: Any) -> TeamSetup:
    return TeamSetup(fleet=FleetQuotas.model_validate(fleet), teams=tuple(sorted(teams, key=lambda team: team.name)))


def a_charge(number: int, team: str, *nodes: int, **changes: Any) -> Charge:
    count = 8 * len(nodes)
    facts = {
        "job_id": f"job-{number}",
        "attempt": 1,
        "team": team,
        "queue": team,
        "cluster": CLUSTER,
        "node_names": tuple(f"node-{node}" for node in nodes),
        "accelerators": count,
        "instance_type": P5,
        "admitted_at": at(number),
        "queued_at": at(number),
        "use": {P5: {GPU: count}},
    }
    return Charge.model_validate(facts | changes)


def capacities(count: int, *used: int) -> tuple[NodeCapacity, ...]:
    return tuple(a_node_capacity(number, free=0 if number in used else 8) for number in range(1, count + 1))


def decide_pending(
    setup: TeamSetup,
    capacities: tuple[NodeCapacity, ...],
    *pending: AdmissionRequest,
    policy: SchedulingPolicy | None = None,
    **more: Any,
) -> dict[str, AdmissionDecision]:
    charges = tuple(more.pop("charges", ()))
    admission_input = AdmissionInput(setup=setup, capacities=capacities, pending=pending, charges=charges, **more)
    answers = decide_with_teams(admission_input, policy or SchedulingPolicy(), EconomyPolicy(), at(1000))
    for answer in answers:
        replayed = decide(AdmissionFacts.model_validate(answer.facts.to_json()))
        assert replayed == answer
    check_facts_of_a_cycle(answers)
    return {answer.job_id: answer for answer in answers}


def check_facts_of_a_cycle(answers: Iterable[AdmissionDecision]) -> None:
    """Check that decisions with shared facts read back the same facts as from separate records."""
    facts = {answer.job_id: answer.facts for answer in answers}
    stored = json.loads(json.dumps(packed(cycle_facts(facts).to_json(), 0)))
    cycle = CycleFacts.model_validate(stored)
    assert {name: cycle.facts_of(name) for name in facts} == {
        name: cycle_record.to_json() for name, cycle_record in facts.items()
    }


def actions_by_job(answers: dict[str, AdmissionDecision]) -> dict[str, AdmissionAction]:
    return {job: answer.action for job, answer in answers.items()}


def test_job_within_team_quota_gets_quota_and_nodes() -> None:
    answers = decide_pending(a_setup(a_team("red"), a_team("blue")), capacities(4), a_request(1, nodes=2, team="red"))

    answer = answers["job-1"]
    assert (answer.action, answer.node_names) == (AdmissionAction.ADMIT, ("node-1", "node-2"))
    assert answer.use == {P5: {GPU: 16}}
    assert answer.reason == (
        "Admitted on ml.p5.48xlarge within its own quota. workers has 2 nodes with 8 free accelerators each."
    )


@pytest.mark.parametrize("by_use", [False, True])
def test_decided_cycle_is_freed_without_garbage_collection(*, by_use: bool) -> None:
    setup = a_setup(a_team("red", queue={"byUse": by_use}), a_team("blue"))
    charges = [a_charge(1, "red", 1), a_charge(2, "blue", 2)]
    gc.collect()
    gc.disable()
    try:
        decide_pending(setup, capacities(4, 1, 2), a_request(3, nodes=2, team="red"), charges=charges)
        schedulers = [value for value in gc.get_objects() if isinstance(value, Scheduler)]
    finally:
        gc.enable()

    assert not schedulers


def test_job_over_team_quota_waits_and_states_the_shortage() -> None:
    alone = a_setup(a_team("red", cohort=""))
    answers = decide_pending(
        alone, capacities(4, 1), a_request(2, nodes=2, team="red"), charges=[a_charge(1, "red", 1)]
    )

    answer = answers["job-2"]
    assert answer.action is AdmissionAction.NO_QUOTA
    assert answer.reason.endswith("The job asks for 16 nvidia.com/gpu of ml.p5.48xlarge: 8 free, 16 at most.")


def test_lender_reclaims_quota_from_the_borrower() -> None:
    setup = a_setup(a_team("red"), a_team("blue"))
    charges = [a_charge(1, "blue", 1, 2), a_charge(2, "blue", 3, 4)]

    answers = decide_pending(setup, capacities(4, 1, 2, 3, 4), a_request(3, nodes=2, team="red"), charges=charges)

    answer = answers["job-3"]
    assert answer.action is AdmissionAction.PREEMPT
    assert [(victim.job_id, victim.reason) for victim in answer.victims] == [("job-2", "InCohortReclamation")]
    assert answer.reason == "Waits until job-2 has stopped."


def test_preemption_records_its_facts_even_if_its_reason_is_unchanged() -> None:
    setup = a_setup(a_team("red"), a_team("blue"))
    charges = [a_charge(1, "blue", 1, 2), a_charge(2, "blue", 3, 4)]
    last_reasons = {"job-3": "Waits until job-2 has stopped."}

    answers = decide_pending(
        setup, capacities(4, 1, 2, 3, 4), a_request(3, nodes=2, team="red"), charges=charges, last_reasons=last_reasons
    )

    assert answers["job-3"].action is AdmissionAction.PREEMPT
    assert answers["job-3"].facts.quota is not None


def test_no_job_is_preempted_if_nodes_still_do_not_fit() -> None:
    setup = a_setup(a_team("red"), a_team("blue"))
    charges = [a_charge(1, "blue", 1, 2), a_charge(2, "blue", 3, 4)]
    broken = tuple(
        capacity.replace(unschedulable_reason="not ready") if capacity.node_name == "node-4" else capacity
        for capacity in capacities(4, 1, 2, 3, 4)
    )

    answers = decide_pending(setup, broken, a_request(3, nodes=2, team="red"), charges=charges)

    assert actions_by_job(answers) == {"job-3": AdmissionAction.WAIT}
    assert answers["job-3"].reason.startswith("The job's quota is available. The job waits for 2 nodes")
    assert answers["job-3"].victims == ()


def test_job_waits_until_its_victims_have_stopped() -> None:
    setup = a_setup(a_team("red"), a_team("blue"))
    charges = [a_charge(1, "blue", 1, 2), a_charge(2, "blue", 3, 4)]
    scheduler_state = SchedulerState().after_preemption("red", "job-3", ["job-2"], at(900))

    answers = decide_pending(
        setup,
        capacities(4, 1, 2, 3, 4),
        a_request(3, nodes=2, team="red"),
        a_request(4, team="red", priority=9),
        charges=charges,
        scheduler_state=scheduler_state,
        stopping=frozenset(scheduler_state.stopping),
    )

    assert answers["job-3"].reason == "Waits until job-2 has stopped."
    assert answers["job-4"].reason == "The job waits behind job-3, which waits for preempted jobs to stop."


def test_best_effort_queue_parks_job_with_quota_but_no_nodes() -> None:
    setup = a_setup(a_team("red", gpus=64))

    answers = decide_pending(setup, capacities(2, 1), a_request(1, nodes=2, team="red"), a_request(2, team="red"))

    assert actions_by_job(answers) == {"job-1": AdmissionAction.WAIT, "job-2": AdmissionAction.ADMIT}


def test_strict_job_with_quota_but_no_nodes_blocks_competing_jobs() -> None:
    strict = a_team(
        "red", gpus=64, queue={"strategy": "StrictFIFO", "groups": [{P5: {GPU: 64}, "ml.g5.12xlarge": {GPU: 8}}]}
    )
    machines = (
        *capacities(2, 1),
        a_node_capacity(9, instance_type="ml.g5.12xlarge", pool="small", accelerators=4, free=4),
    )
    large = a_request(1, nodes=2, team="red", instance_types=(P5,))
    same = a_request(2, team="red", instance_types=(P5,))
    other = a_request(3, team="red", instance_types=("ml.g5.12xlarge",), accelerators_per_node=4)

    answers = decide_pending(a_setup(strict), machines, large, same, other)

    assert actions_by_job(answers) == {
        "job-2": AdmissionAction.BLOCKED,
        "job-3": AdmissionAction.ADMIT,
        "job-1": AdmissionAction.WAIT,
    }


def test_free_nodes_are_reserved_for_a_strict_head() -> None:
    red = a_team("red", gpus=16, queue={"strategy": "StrictFIFO"})

    answers = decide_pending(
        a_setup(red, a_team("blue")), capacities(2, 1), a_request(1, nodes=2, team="red"), a_request(2, team="blue")
    )

    assert answers["job-1"].action is AdmissionAction.WAIT
    assert answers["job-2"].action is AdmissionAction.WAIT


def test_flavor_without_nodes_leads_to_the_next_flavor() -> None:
    team = a_team("red", queue={"groups": [{"ml.p4d.24xlarge": {GPU: 8}, P5: {GPU: 8}}]})
    old = a_node_capacity(7, instance_type="ml.p4d.24xlarge", pool="old", free=0)

    answers = decide_pending(a_setup(team), (old, *capacities(1)), a_request(1, team="red"))

    assert (answers["job-1"].action, answers["job-1"].use) == (AdmissionAction.ADMIT, {P5: {GPU: 8}})


def test_recovery_precedes_higher_priority_and_uses_the_spare() -> None:
    spares = SchedulingPolicy(spare_nodes={"workers": 1})
    back = a_request(1, team="red", is_recovery=True, attempts=1)
    urgent = a_request(2, team="red", priority=100)

    answers = decide_pending(a_setup(a_team("red", gpus=8)), capacities(1), back, urgent, policy=spares)

    assert answers["job-1"].action is AdmissionAction.ADMIT
    assert answers["job-2"].action is not AdmissionAction.ADMIT


def test_quota_of_a_resuming_job_is_not_lent() -> None:
    setup = a_setup(a_team("red", gpus=8), a_team("blue", gpus=8))
    back = a_request(
        1, team="red", is_recovery=True, attempts=1, avoid=tuple(capacity.life.key for capacity in capacities(2))
    )

    answers = decide_pending(setup, capacities(2), back, a_request(2, nodes=2, team="blue"), a_request(3, team="blue"))

    assert answers["job-1"].action is AdmissionAction.WAIT
    assert answers["job-2"].action is AdmissionAction.NO_QUOTA
    assert answers["job-3"].action is AdmissionAction.ADMIT


def test_job_without_nodes_of_its_type_blocks_no_other_job() -> None:
    strict = a_team("red", queue={"strategy": "StrictFIFO", "groups": [{"ml.p4d.24xlarge": {GPU: 8}, P5: {GPU: 8}}]})
    lost = a_request(1, team="red", attempts=1, instance_types=("ml.p4d.24xlarge",))

    answers = decide_pending(a_setup(strict), capacities(1), lost, a_request(2, team="red"))

    assert actions_by_job(answers) == {"job-1": AdmissionAction.WAIT, "job-2": AdmissionAction.ADMIT}


def test_user_limit_counts_admissions_of_this_cycle() -> None:
    setup = a_setup(a_team("red", maxAcceleratorsPerUser=16))
    of_ana = [a_request(number, team="red", submitter="role/ana") for number in (1, 2)]

    answers = decide_pending(
        setup,
        capacities(4, 4),
        *of_ana,
        a_request(3, team="red", submitter="role/bo"),
        charges=[a_charge(9, "red", 4, submitter="role/ana", use={})],
    )

    assert (answers["job-1"].action, answers["job-2"].action) == (AdmissionAction.ADMIT, AdmissionAction.LIMIT_REACHED)
    assert answers["job-2"].reason == (
        "The job waits because a limit is reached: 16 of 16 accelerators that role/ana may hold in team red are used, "
        "and the job asks for 8."
    )


def test_user_limit_counts_recoveries_of_this_cycle() -> None:
    setup = a_setup(a_team("red", maxAcceleratorsPerUser=8))
    back = a_request(1, team="red", submitter="role/ana", is_recovery=True, attempts=1)

    answers = decide_pending(setup, capacities(4), back, a_request(2, team="red", submitter="role/ana"))

    assert actions_by_job(answers) == {"job-1": AdmissionAction.ADMIT, "job-2": AdmissionAction.LIMIT_REACHED}


def test_spent_budget_blocks_the_next_job() -> None:
    setup = a_setup(a_team("red", budgets=[{"period": "month", "gpuHours": 10}]), a_team("blue"))
    spent = {("red", "2026-11"): Spending(accelerator_seconds=36_000)}

    answers = decide_pending(setup, capacities(2), a_request(1, team="red"), a_request(2, team="blue"), spent=spent)

    assert actions_by_job(answers) == {"job-1": AdmissionAction.LIMIT_REACHED, "job-2": AdmissionAction.ADMIT}
    assert (
        answers["job-1"].reason
        == "The job waits because a limit is reached: 10 of 10 accelerator-hours of team red in 2026-11 are used."
    )


def test_jobs_of_the_same_shape_share_a_reason() -> None:
    answers = decide_pending(
        a_setup(a_team("red", gpus=8, cohort="")), capacities(4), *[a_request(n, team="red", nodes=2) for n in (1, 2)]
    )

    assert actions_by_job(answers) == {"job-1": AdmissionAction.NO_QUOTA, "job-2": AdmissionAction.SAME_SHAPE}
    assert answers["job-2"].reason == f"A job with the same request waits in its queue: {answers['job-1'].reason}"
    assert answers["job-2"].facts.blocked_by == "job-1"


def test_removed_team_and_stopped_queue_block_jobs() -> None:
    setup = a_setup(a_team("red", queue={"stop": "Hold"}))

    answers = decide_pending(setup, capacities(2), a_request(1, team="red"), a_request(2, team="gone"))

    assert answers["job-1"].reason == "The job's queue admits no jobs: an administrator set its stop policy to Hold."
    assert answers["job-2"].reason == "Team gone no longer exists."


def test_quota_facts_replay_in_evenkeel_plan() -> None:
    setup = a_setup(a_team("red"), a_team("blue"), a_team("green", cohort="other"))
    charges = [a_charge(1, "blue", 1, 2), a_charge(2, "blue", 3, 4), a_charge(9, "green", 5)]
    quota = decide_pending(setup, capacities(5, 1, 2, 3, 4, 5), a_request(3, nodes=2, team="red"), charges=charges)[
        "job-3"
    ].facts.quota
    assert quota
    written = quota.to_json()

    plan = Replay(QuotaDocuments(Profile.EVENKEEL, RULES[Profile.EVENKEEL]))
    plan.declared.add(json.loads(written["quotas"]), "quota.json")
    plan = Replay(plan.declared)
    for document in (*json.loads(written["jobs"]), json.loads(written["job"])):
        plan.submit(document, "jobs.json")
    plan.run(Events())

    first = plan.decisions[0]
    assert (first.result, [victim.workload_id for victim in first.victims]) == (Result.PREEMPTING, ["job-2"])
    assert "green" not in written["quotas"]


def test_record_includes_stopped_queues() -> None:
    setup = a_setup(a_team("red"), a_team("blue", queue={"stop": "HoldAndDrain"}))
    charges = [a_charge(1, "blue", 1)]

    answers = decide_pending(setup, capacities(8, 1), a_request(2, nodes=5, team="red"), charges=charges)

    assert answers["job-2"].reason.endswith(
        "The job asks for 40 nvidia.com/gpu of ml.p5.48xlarge: 24 free, 32 at most."
    )


def test_record_sums_quota_holders_that_cannot_be_preempted() -> None:
    setup = a_setup(a_team("red", gpus=800), a_team("blue", gpus=800))
    charges = [
        *(a_charge(number, "blue", number, priority=number % 3) for number in range(1, 60)),
        *(a_charge(number, "red", number, priority=number % 3) for number in range(60, 99)),
    ]
    request = a_request(100, nodes=90, team="red", priority=1, attempts=1)
    quota = decide_pending(setup, capacities(99, *range(1, 99)), request, charges=charges)["job-100"].facts.quota
    assert quota

    names = [job["name"] for job in quota.jobs]
    assert "others-of-red" in names
    assert {f"job-{number}" for number in range(60, 99) if number % 3 == 0} <= set(names)
    assert quota.summed_holders == len(charges) - len(names) + 1


def test_oversized_record_sums_quota_holders_and_says_so(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(quota_facts, "MAX_BYTES", 500)
    setup = a_setup(a_team("red", gpus=160), a_team("blue", gpus=0))
    charges = [a_charge(number, "blue", number) for number in range(1, 20)]
    admission_input = AdmissionInput(
        capacities(20, *range(1, 20)), (a_request(99, nodes=12, team="red"),), setup, tuple(charges)
    )

    (answer,) = decide_with_teams(admission_input, SchedulingPolicy(), EconomyPolicy(), at(1000))

    quota = answer.facts.quota
    assert quota
    assert quota.is_cut
    assert len(json.dumps(quota.to_json())) < 6_000
    assert sum(job["podSets"][0].get("count", 1) * 8 for job in quota.jobs if job["name"].startswith("job-")) < 19 * 8


def test_record_of_a_thousand_nodes_is_complete_and_replays() -> None:
    setup = a_setup(a_team("red", gpus=8000), a_team("blue", gpus=0))
    charges = [a_charge(number, "blue", number) for number in range(1, 1001)]
    admission_input = AdmissionInput(
        capacities(1000, *range(1, 1001)), (a_request(5000, nodes=900, team="red"),), setup, tuple(charges)
    )

    (answer,) = decide_with_teams(admission_input, SchedulingPolicy(), EconomyPolicy(), at(2000))

    quota = answer.facts.quota
    assert quota
    assert (answer.action, len(answer.victims), quota.is_cut, quota.summed_holders) == (
        AdmissionAction.PREEMPT,
        900,
        False,
        0,
    )
    facts = answer.facts.to_json()
    record = Decision(
        decision_id="dec-1",
        kind="ADMISSION",
        subject=answer.job_id,
        action=answer.action,
        reason=answer.reason,
        facts=facts,
        policy_hash=Policy().hash,
        mode=Mode.ACT,
        decided_at=at(2000),
    )
    stored = subject_rows.decision_row(record).doc
    assert len(json.dumps(stored)) < quota_facts.MAX_BYTES < len(json.dumps(facts))
    read = Decision.model_validate(json.loads(json.dumps(stored)))
    assert read.facts == facts
    assert replay(read, Policy()).differs_from(record) == ""


def test_strict_queue_waits_for_a_flavor_without_nodes() -> None:
    strict = a_team("red", queue={"strategy": "StrictFIFO", "groups": [{"ml.p4d.24xlarge": {GPU: 8}}]})

    answers = decide_pending(a_setup(strict), capacities(1), a_request(1, team="red"))

    assert answers["job-1"].action is AdmissionAction.WAIT
    assert answers["job-1"].reason.endswith("no node in the fleet matches.")
