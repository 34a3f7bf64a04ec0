"""Invariants of jobs that Kueue admits, maybe with fewer pods than requested: more rows of the same table.

The numbers of pods come from the scenario's own record of Kueue's admissions, not from the code under test.
"""

from collections import Counter
from collections.abc import Iterator
from typing import TYPE_CHECKING

from evenkeel.domain.jobs.attempt import Attempt
from evenkeel.domain.jobs.job import Job
from evenkeel.ports import LaunchSpec
from evenkeel.services.tables import job_rows, rows
from tests.simulator.elastic_invariants import newest_saved_step, sizes_of
from tests.simulator.invariants import Changes, CheckTrigger, invariant_check

if TYPE_CHECKING:
    from tests.simulator.simulation import Simulation


def _stored(world: "Simulation", attempt: Attempt) -> Attempt:
    stored: Attempt = rows.decode(world.ledger.rows[job_rows.attempt_key(attempt.job_id, attempt.attempt)], Attempt)
    return stored


@invariant_check(
    "pods-know-admitted-number",
    "The pods of an attempt learn the number with which Kueue admitted it, if it is recorded and a size of the job.",
    CheckTrigger.SIZE,
)
def pods_know_the_admitted_number(world: "Simulation", attempt: Attempt) -> Iterator[str]:
    if world.kueue is None:
        return
    number, stored = attempt.ranks, _stored(world, attempt)
    admitted = world.kueue.records[attempt.workload_name].admitted
    if number not in admitted:
        yield f"the pods of {attempt.workload_name} read the number {number}, but Kueue admitted {admitted}"
    if stored.size != number:
        yield f"the pods of {attempt.workload_name} read the number {number}, but the recorded size is {stored.size}"
    legal = sizes_of(world.cluster.launched(attempt.job_id, attempt.attempt).spec.job_spec)
    if number not in legal:
        yield f"the pods of {attempt.workload_name} read the number {number}; the job allows {sorted(legal)}"


@invariant_check(
    "one-size-per-attempt",
    "An attempt trains with one number of pods. Once Kueue has evicted it, it gets no other number.",
    CheckTrigger.SIZE,
)
def evicted_pods_learn_nothing(world: "Simulation", attempt: Attempt) -> Iterator[str]:
    evicted_at = world.kueue.records[attempt.workload_name].evicted_at if world.kueue else None
    if evicted_at is not None and evicted_at < world.calls[-1].began:
        yield f"the pods of {attempt.workload_name} got the number {attempt.ranks} after Kueue had evicted them"


@invariant_check("one-size-per-attempt", "", CheckTrigger.SAVE)
def attempt_trains_on_one_size(world: "Simulation", spec: LaunchSpec) -> Iterator[str]:
    assert world.kueue
    attempt, record = spec.attempt, world.kueue.records[spec.attempt.workload_name]
    record.trained.add(attempt.ranks)
    stored = _stored(world, attempt)
    if len(record.trained) > 1 or stored.size != attempt.ranks:
        numbers = ", ".join(map(str, sorted(record.trained)))
        yield f"{attempt.workload_name} trains with {numbers} pods, and its recorded size is {stored.size}"


@invariant_check(
    "usage-matches-admitted-size",
    "A team's usage is the sum of its live attempts, each with the number of pods that is recorded for it.",
    CheckTrigger.COMMIT,
)
def usage_matches_attempts(world: "Simulation", changes: Changes) -> Iterator[str]:
    if world.kueue is None or not any(key.sk.startswith("ATTEMPT#") or key.sk == "USAGE" for key, _, _ in changes):
        return
    held: Counter[str] = Counter()
    for row in world.ledger.of("ATTEMPT", "JOB#"):
        attempt = rows.decode(row, Attempt)
        if attempt.state.has_ended:
            continue
        held[attempt.team] += attempt.accelerators
        spec = rows.decode(world.ledger.rows[job_rows.job_key(attempt.job_id)], Job).spec
        if attempt.accelerators != attempt.size * spec.accelerators_per_node:
            yield f"{attempt.workload_name} has {attempt.size} pods, but {attempt.accelerators} accelerators"
    for row in world.ledger.of("USAGE", "TEAM#"):
        team = row.key.pk.removeprefix("TEAM#")
        if row.doc["accelerators"] != held[team]:
            yield f"{team} is charged with {row.doc['accelerators']} accelerators, but its attempts have {held[team]}"


@invariant_check(
    "eviction-keeps-progress",
    "A job that Kueue evicted resumes from its newest valid checkpoint, at any size.",
    CheckTrigger.LAUNCH,
)
def eviction_keeps_work(world: "Simulation", spec: LaunchSpec) -> Iterator[str]:
    attempt = spec.attempt
    if world.kueue is None or attempt.attempt < 2:
        return
    if world.kueue.records[f"{attempt.job_id}-a{attempt.attempt - 1}"].evicted_at is None:
        return
    newest = newest_saved_step(world, attempt)
    step = attempt.resume_from.step if attempt.resume_from else 0
    if newest is not None and step < newest:
        yield f"{attempt.workload_name} resumes from step {step}, but step {newest} was saved before the eviction"
