"""The smallest changes that would each admit a job that has quota, or that no quota keeps waiting."""

from evenkeel.domain.admission.decide_job import AdmissionAction, AdmissionFacts
from evenkeel.domain.admission.pool_fits import PoolFit
from evenkeel.domain.plurals import count_of
from evenkeel.domain.queue_simulation.admitting_change import AdmittingChange
from evenkeel.domain.quotas.spending import UsageLimit

_MAX_POOLS = 3


def admitting_changes(action: AdmissionAction, facts: AdmissionFacts) -> tuple[AdmittingChange, ...]:
    """Return the smallest changes, smallest first; none if the action is not a wait for nodes, a limit or a time."""
    match action:
        case AdmissionAction.WAIT | AdmissionAction.NEVER_FITS:
            return _changes_of_nodes(facts)
        case AdmissionAction.LIMIT_REACHED:
            reached_limits = [limit for limit in facts.limits if limit.is_reached]
            return tuple(AdmittingChange(kind="limit", message=_limit_text(limit)) for limit in reached_limits)
        case AdmissionAction.BACK_OFF if facts.request.not_before:
            text = f"The end of the pause, at {facts.request.not_before:%Y-%m-%dT%H:%M:%SZ}."
            return (AdmittingChange(kind="time", message=text),)
        case AdmissionAction.EXCLUDED if facts.exclusion_reason:
            return (AdmittingChange(kind="exclusion", message=f"The end of this state: {facts.exclusion_reason}"),)
        case AdmissionAction.PREEMPT if facts.preemption_plan:
            jobs = tuple(victim.job_id for victim in facts.preemption_plan.victims)
            return (AdmittingChange(kind="wait", message=f"The end of {', '.join(jobs)}.", jobs=jobs),)
        case _:
            return ()


def _limit_text(limit: UsageLimit) -> str:
    if limit.unpriced_instance_type:
        return f"A price for {limit.unpriced_instance_type} in economy.prices."
    if limit.requested:
        return f"A limit of {limit.used + limit.requested:.10g} {limit.quantity} instead of {limit.limit:.10g}."
    return f"A limit above {limit.used:.10g} {limit.quantity} instead of {limit.limit:.10g}."


def _changes_of_nodes(facts: AdmissionFacts) -> tuple[AdmittingChange, ...]:
    nodes = facts.request.nodes
    by_missing = sorted(facts.fits, key=lambda fit: (nodes - fit.most_nodes, fit.preference_rank, fit.pool))
    changes = [_change_of_pool(fit, nodes) for fit in by_missing[:_MAX_POOLS]]
    most_nodes = max((fit.most_nodes for fit in facts.fits if not fit.uses_reserved_spares), default=0)
    if 0 < most_nodes < nodes:
        text = f"A smaller size: {count_of(most_nodes, 'node')} instead of {nodes}."
        changes.append(AdmittingChange(kind="size", message=text, counts=(most_nodes,)))
    return tuple(changes)


def _change_of_pool(fit: PoolFit, nodes: int) -> AdmittingChange:
    pool = f"{fit.pool} ({fit.instance_type})"
    if fit.best:
        return AdmittingChange(
            kind="spares", message=f"Fewer spares in {pool}: it keeps {count_of(fit.reserved_spares, 'free node')}."
        )
    missing_nodes = nodes - fit.most_nodes
    where = "in one network domain of" if fit.largest_domain is not None else "in"
    return AdmittingChange(kind="nodes", message=f"{count_of(missing_nodes, 'more free node')} {where} {pool}.")
