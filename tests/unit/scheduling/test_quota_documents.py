"""The facts of quota decisions share documents, and equal facts that are made for each decision alone."""

import dataclasses
import random
from collections.abc import Iterable
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from evenkeel.domain.admission import queue_with_teams
from evenkeel.domain.admission.admission_input import AdmissionInput
from evenkeel.domain.admission.queue_with_teams import decide_with_teams
from evenkeel.domain.admission.scheduling_policy import SchedulingPolicy
from evenkeel.domain.decisions import packed_size
from evenkeel.domain.economics.economy_policy import EconomyPolicy
from evenkeel.domain.kueue.cycle_decisions import CycleDecision
from evenkeel.domain.kueue.objects import PODS, Admitted, PreemptionPolicy, Queue, Workload
from evenkeel.domain.kueue.preemption import outranks
from evenkeel.domain.kueue.scheduler import Scheduler
from evenkeel.domain.queue_simulation.short_form import ShortJob
from evenkeel.domain.quotas import quota_facts
from evenkeel.domain.quotas.quota_documents import DocumentCache, serialize
from evenkeel.domain.quotas.quota_facts import KueueCycleState, QuotaFacts
from evenkeel.domain.quotas.quota_holders import (
    QuotaHolder,
    admitted_document,
    admitted_holder,
    sum_by_queue,
    sum_document,
)
from tests.examples import examples
from tests.unit.scheduling.builders import a_request, at
from tests.unit.scheduling.test_sharing import GPU, P5, a_charge, a_setup, a_team, capacities
from tests.unit.scheduling.test_sharing_properties import TEAMS, random_admission_input

Json = dict[str, Any]
_PLAIN_BYTES = 3_000_000


def uncached_quota_jobs(
    decision: CycleDecision, state: KueueCycleState, scheduler: Scheduler, quotas: Json, most: int
) -> tuple[list[Json], int, bool]:
    """Return the documents of the holders, how many are in sums, and whether they were cut: holder by holder."""
    workload = decision.workload
    root = scheduler.snapshot.queues[workload.queue].quota_node.root
    single: list[tuple[Admitted, bool]] = []
    summed: list[Admitted] = []
    for admitted, was_evicted in state.holders:
        if scheduler.snapshot.queues[admitted.workload.queue].quota_node.root is not root:
            continue
        if _could_stop(workload, admitted, state.queues[workload.queue], decision.earlier.victims):
            single.append((admitted, was_evicted))
        else:
            summed.append(admitted)
    documents = [admitted_document(admitted, was_evicted=was) for admitted, was in single]
    keep = _most_that_fit(quotas, documents, most)
    cut = summed + [admitted for admitted, _ in single[keep:]]
    uses = sum_by_queue((admitted.workload.queue, admitted.use) for admitted in cut)
    sums = [sum_document(queue, amounts) for queue, amounts in uses]
    return [*documents[:keep], *sums], len(cut), keep < len(documents)


def _could_stop(workload: Workload, admitted: Admitted, queue: Queue, victims: Iterable[str]) -> bool:
    keys = {
        (flavor.flavor, resource)
        for group in queue.groups
        for flavor in group.flavors
        for resource in group.resources
        if resource == PODS or any(resource in pods.requests for pods in workload.pod_sets)
    }
    is_own = admitted.workload.queue == workload.queue
    policy = queue.preemption.within if is_own else queue.preemption.reclaim
    may_stop = policy is not PreemptionPolicy.NEVER and outranks(workload, admitted.workload, policy)
    return admitted.workload.workload_id in victims or (may_stop and not keys.isdisjoint(admitted.use))


def _most_that_fit(quotas: Json, documents: list[Json], most: int) -> int:
    size = len(serialize(quotas)) + sum(len(serialize(document)) for document in documents)
    assert size <= _PLAIN_BYTES
    if size <= most:
        return len(documents)
    keep = len(documents)
    while keep:
        size = packed_size([quotas, *documents[:keep]])
        if size <= most:
            break
        keep = min(keep - 1, keep * most * 19 // (size * 20))
    return keep


def _compare_facts(admission_input: AdmissionInput, most: int) -> list[QuotaFacts]:
    """Run a cycle, compare the facts of each decision with the plain facts, and return them."""
    facts_list: list[QuotaFacts] = []
    fast = quota_facts.quota_facts_of

    def compare_and_return_facts(
        document: Json, decision: CycleDecision, state: KueueCycleState, scheduler: Scheduler, cache: DocumentCache
    ) -> QuotaFacts:
        facts = fast(document, decision, state, scheduler, cache)
        jobs, summed, is_cut = uncached_quota_jobs(decision, state, scheduler, facts.quotas, most)
        assert ([*facts.jobs], facts.summed_holders, facts.is_cut) == (jobs, summed, is_cut)
        assert facts.to_json()["jobs"] == serialize(jobs)
        assert QuotaFacts.model_validate(facts.to_json()) == facts.replace(jobs=tuple(jobs))
        facts_list.append(facts)
        return facts

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(queue_with_teams, "quota_facts_of", compare_and_return_facts)
        patch.setattr(quota_facts, "MAX_BYTES", most)
        decide_with_teams(admission_input, SchedulingPolicy(), EconomyPolicy(), at(1000))
    return facts_list


@settings(max_examples=examples(300), deadline=None)
@given(st.integers(0, 2**32), st.sampled_from((180_000, 1_500, 800, 300)))
def test_cached_documents_give_same_facts_as_uncached_ones(seed: int, most: int) -> None:
    _compare_facts(_random_admission_input(random.Random(seed)), most)


def test_victim_of_an_earlier_head_has_its_own_entry() -> None:
    never = {"preemption": {"within": "Never", "reclaim": "Never"}}
    setup = a_setup(a_team("blue", gpus=0), a_team("red", gpus=16), a_team("violet", gpus=16, queue=never))
    charges = tuple(a_charge(number, "blue", number) for number in range(1, 5))
    pending = (a_request(8, team="red", priority=5), a_request(9, team="violet", nodes=2))

    facts_found = _compare_facts(AdmissionInput(capacities(4, 1, 2, 3, 4), pending, setup, charges), 180_000)

    (facts,) = (facts_of_job for facts_of_job in facts_found if facts_of_job.job["name"] == "job-9")
    assert facts.earlier_victims == ("job-4",)
    assert [job["name"] for job in facts.jobs] == ["job-4", "others-of-blue"]


@settings(max_examples=examples(100), deadline=None)
@given(
    st.builds(
        QuotaHolder,
        name=st.just("job-1"),
        queue=st.just("blue"),
        use=st.dictionaries(
            st.sampled_from(("p5", "p4d")),
            st.dictionaries(st.sampled_from((GPU, "cpu", PODS)), st.integers(1, 9), min_size=1),
            min_size=1,
        ),
        pods=st.integers(1, 3),
        priority=st.integers(-1, 1),
        reserved_at=st.sampled_from((None, 0.0, 60.0)),
        queued_at=st.sampled_from((0.0, 30.0)),
        work_at_risk=st.sampled_from((None, 0.0, 90.0)),
        sub_queue=st.just(""),
        is_pinned=st.booleans(),
    ),
    st.booleans(),
    st.sampled_from((None, 0.0, 45.0)),
)
def test_document_of_holder_is_short_form_without_defaults(
    holder: QuotaHolder, was_evicted: bool, requeued_at: float | None
) -> None:
    admitted = admitted_holder(holder)
    admitted.workload = dataclasses.replace(admitted.workload, requeued_at=requeued_at)
    admitted.is_evicted = was_evicted

    document = admitted_document(admitted, was_evicted=was_evicted)

    job = ShortJob.model_validate(document)
    assert job.model_dump(mode="json", by_alias=True, exclude_defaults=True) == document
    assert job.to_admitted(job.to_workload(holder.priority)) == admitted


def _random_admission_input(dice: random.Random) -> AdmissionInput:
    """Return a random fleet with up to 30 more quota holders, submitted in another order than admitted."""
    admission_input = random_admission_input(dice)
    charges = [
        a_charge(
            number,
            dice.choice(TEAMS),
            number,
            priority=dice.choice((0, 1)),
            queued_at=at(dice.randint(0, 60)),
            use={P5: {dice.choice((GPU, GPU, "cpu")): 8}},
        )
        for number in range(100, 100 + dice.randint(0, 30))
    ]
    return admission_input._replace(charges=(*admission_input.charges, *charges))
