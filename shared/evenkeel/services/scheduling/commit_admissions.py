"""Commit the admissions of a scheduling cycle, and start the workflows of the new attempts.

A crash after the commit of an attempt leaves it without its workflow, which the sweep starts.
"""

from collections import Counter
from collections.abc import Callable, Sequence

from evenkeel.domain.admission.decide_job import AdmissionDecision
from evenkeel.domain.decisions import PACKED_FROM_IF_MANY
from evenkeel.domain.jobs.attempt import Attempt
from evenkeel.domain.jobs.job import JobState
from evenkeel.domain.policy_section import Mode
from evenkeel.domain.scheduling.cycle_plan import AdmissionStep
from evenkeel.ports import Add, Delete, Put, Refused, Write
from evenkeel.services.context import Context
from evenkeel.services.scheduling import pending_job_changes, start_attempt
from evenkeel.services.scheduling.loaded_cycle import LoadedCycle
from evenkeel.services.scheduling.shared_facts import SharedFacts
from evenkeel.services.storage import batches
from evenkeel.services.storage.quota_tree import QuotaTree
from evenkeel.services.tables import job_rows, quota_rows, subject_rows

_MAX_USAGE_ROWS = 10
"""Most usage rows of teams for which each commit reserves space. With more teams, it reserves one row for each job."""


def run(
    admissions: Sequence[AdmissionStep],
    loaded_cycle: LoadedCycle,
    tree: QuotaTree,
    on_admitted: Callable[[str], None],
    context: Context,
) -> frozenset[str]:
    """Create the attempts of a plan and start their workflows. Return the jobs whose admission the ledger refused.

    `on_admitted` receives the name of each workflow, once its attempt is committed.
    """
    attempts = {step.decision.job_id: _new_attempt(step.decision, loaded_cycle, context) for step in admissions}
    facts = SharedFacts(context)
    refused_jobs: set[str] = set()

    def commit(batch: Sequence[batches.WriteGroup]) -> None:
        _commit_attempts(
            [attempts[group.subject] for group in batch], batch, facts.unwritten, loaded_cycle, tree, context
        )
        facts.unwritten = ()
        for attempt in (attempts[group.subject] for group in batch):
            on_admitted(attempt.workload_name)
            context.telemetry.count("JobsAdmitted")
            context.telemetry.info("JobAdmitted", job_id=attempt.job_id, attempt=attempt.attempt, pool=attempt.pool)
            start_attempt.run(attempt, context)

    def on_refused(group: batches.WriteGroup, refusal: Refused) -> None:
        refused_jobs.add(group.subject)
        pending_job_changes.defer_after_refusal(group.subject, refusal, context)

    facts.share({attempts[step.decision.job_id].decision_id: step.decision.facts for step in admissions})
    write_groups = (
        _admission_group(step.decision, attempts[step.decision.job_id], facts, loaded_cycle, context)
        for step in admissions
    )
    usage = [Add(quota_rows.usage_key(team), {}) for team in {attempt.team for attempt in attempts.values()}]
    common_writes: tuple[Write, ...] = (tree.state_put(tree.scheduler_state), *facts.unwritten)
    if len(usage) <= _MAX_USAGE_ROWS:
        admission_batches = batches.cut_into_batches(write_groups, common_writes=(*common_writes, *usage))
    else:
        admission_batches = batches.cut_into_batches(write_groups, common_writes=common_writes, extra_writes=1)
    for batch in admission_batches:
        batches.commit_each(batch, commit, on_refused)
    return frozenset(refused_jobs)


def _new_attempt(decision: AdmissionDecision, loaded_cycle: LoadedCycle, context: Context) -> Attempt:
    """Return the attempt of an admission, with its price if its nodes are not rented."""
    attempt = decision.to_attempt(loaded_cycle.snapshot.pending[decision.job_id], context.ids.new("dec"))
    rental = loaded_cycle.snapshot.rental_book.rental_by_holder.get(decision.job_id)
    is_rented = rental is not None and attempt.rented_part is None and rental.hosts(attempt)
    price = context.policy.economy.price_of(attempt.instance_type, attempt.admitted_at, attempt.pool)
    return attempt.replace(is_rented=is_rented, usd_per_accelerator_hour=price.usd if price and not is_rented else None)


def _admission_group(
    decision: AdmissionDecision, attempt: Attempt, facts: SharedFacts, loaded_cycle: LoadedCycle, context: Context
) -> batches.WriteGroup:
    """Return the writes that admit one job: its attempt with its charge, and the record.

    No timeline entry is written: readers of the timeline derive it from the attempt.
    """
    job, version = loaded_cycle.snapshot.pending[attempt.job_id], loaded_cycle.versions[attempt.job_id]
    number = attempt.attempt
    starting_job = pending_job_changes.with_current_queue(
        job.at_size(attempt.ranks, context.now, attempt.rented_ranks), loaded_cycle.snapshot.setup
    ).replace(
        state=JobState.STARTING,
        reason=decision.reason,
        current_attempt=number,
        local_queue=attempt.local_queue,
        not_before=None,
        queued_at=None,
        # A preempted job counts as started again only after Kueue has admitted it.
        is_preempted=job.is_preempted and bool(attempt.local_queue),
        placement=None,
        is_migrating_back=False,
        displaced_at=None,
        displacing_since=None,
        lost_at=None,
    )
    released_charge = loaded_cycle.charges.released_by(job)
    recorded_facts = facts.of(decision, attempt.decision_id)
    decision_record = pending_job_changes.admission_record(
        decision, attempt.decision_id, decision.reason, Mode.ACT, context, recorded_facts
    )
    return batches.WriteGroup(
        job.job_id,
        (
            Put(quota_rows.charge_row(attempt, job)),
            Put(job_rows.job_row(starting_job, version)),
            Put(job_rows.attempt_row(attempt, 0)),
            Put(subject_rows.decision_row(decision_record, PACKED_FROM_IF_MANY)),
            *((Delete(released_charge.key, released_charge.version),) if released_charge else ()),
        ),
    )


def _commit_attempts(
    attempts: Sequence[Attempt],
    write_groups: Sequence[batches.WriteGroup],
    shared_facts: Sequence[Put],
    loaded_cycle: LoadedCycle,
    tree: QuotaTree,
    context: Context,
) -> None:
    """Create attempts, with the facts that their records share: all of them or none.

    The commit fails if another cycle admitted a job since this cycle read the tree.
    """
    scheduler_state = tree.scheduler_state
    usage: Counter[str] = Counter()
    for attempt in attempts:
        job = loaded_cycle.snapshot.pending[attempt.job_id]
        usage[attempt.team] += attempt.accelerators
        scheduler_state = scheduler_state.after_admission(attempt.team, job.job_id)
        scheduler_state = scheduler_state.replace(
            elastic=scheduler_state.elastic.after_admission(job.job_id, is_elastic=job.spec.elastic is not None)
        )
    usage_sums = (Add(quota_rows.usage_key(team), {"accelerators": count}) for team, count in usage.items())
    # The halves of a refused batch hold different writes, so they need different tokens.
    token = f"{attempts[0].decision_id}/{len(attempts)}"
    writes = (write for group in write_groups for write in group.writes)
    context.ledger.commit(tree.state_put(scheduler_state), *shared_facts, *usage_sums, *writes, client_token=token)
    tree.record_commit(scheduler_state)
