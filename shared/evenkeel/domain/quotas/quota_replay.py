"""Run the scheduler again on the facts of a decision about quota.

The facts are documents that `evenkeel plan` reads. Their reader loads a hundred models, so only a replay and a question
for the smallest changes import this module.
"""

from evenkeel.domain.kueue.assignment import FlavorCursor
from evenkeel.domain.kueue.cycle_decisions import CycleDecision, EarlierHeads, NodeFit
from evenkeel.domain.kueue.objects import Workload
from evenkeel.domain.kueue.pending_queue import PendingWorkload
from evenkeel.domain.kueue.scheduler import Scheduler
from evenkeel.domain.kueue.snapshot import SchedulerRules
from evenkeel.domain.queue_simulation.admitting_change import AdmittingChange
from evenkeel.domain.queue_simulation.profiles import Profile
from evenkeel.domain.queue_simulation.setup import QuotaDocuments
from evenkeel.domain.queue_simulation.why import why
from evenkeel.domain.quotas.quota_facts import QuotaFacts
from evenkeel.domain.quotas.quota_holders import by_key, is_sum


def replay_quota(facts: QuotaFacts, now: float, node_fit: NodeFit) -> CycleDecision:
    """Run a Kueue cycle again for the job alone, and return its decision."""
    scheduler, _ = _rebuild_scheduler(facts)
    usage = tuple((quota.queue, by_key(quota.amounts), quota.fits) for quota in facts.earlier_use)
    return scheduler.cycle(now, EarlierHeads(usage, facts.earlier_victims), node_fit=node_fit)[0]


def smallest_changes(facts: QuotaFacts, now: float) -> tuple[AdmittingChange, ...]:
    """Return the smallest changes that would each give the job its quota. Evenkeel tried each change on these facts."""
    scheduler, workload = _rebuild_scheduler(facts)
    scheduler.snapshot.now = now
    changes = why(scheduler, workload).changes
    # A person cannot wait for a sum of jobs to end, and a higher priority would preempt jobs that are only in a sum.
    return tuple(
        change for change in changes if change.kind != "priority" and not any(is_sum(name) for name in change.jobs)
    )


def _rebuild_scheduler(facts: QuotaFacts) -> tuple[Scheduler, Workload]:
    declarations = QuotaDocuments(
        Profile.EVENKEEL, SchedulerRules(**{**facts.rules, "fair_strategies": tuple(facts.rules["fair_strategies"])})
    )
    declarations.add(facts.quotas, "quotas")
    queues, cohorts, flavors = declarations.everything()
    scheduler = Scheduler(queues, cohorts, flavors, declarations.rules)
    for document in facts.jobs:
        holder = declarations.job(document, "jobs").admitted
        assert holder is not None
        scheduler.restore(holder)
    for quota in facts.reserved:
        scheduler.snapshot.queues[quota.queue].quota_node.add_all(by_key(quota.amounts))
    workload = declarations.job(facts.job, "job").workload
    for other_id, at in facts.evicted_at.items():
        scheduler.snapshot.evicted_at[frozenset((workload.workload_id, other_id))] = at
    scan_start = FlavorCursor(facts.scan_start, 0, 0, workload.shape) if facts.scan_start else None
    scheduler.pending[workload.queue].push(PendingWorkload(workload, scan_start))
    return scheduler, workload
