"""Pods of a cluster that are not Evenkeel's. Labels prove nothing; the ledger decides.

Any user who may create a pod can give it Evenkeel's labels. A pod is Evenkeel's only if the ledger has the attempt,
rental or node test that its labels name. The record must have the pod's namespace, and the Job that controls the pod.
All other pods are unmanaged: they are listed, counted and evicted like any other team's.
"""

import re
from collections.abc import Iterable

from evenkeel.domain.external.unmanaged_workloads import LabelledOwner, ManagedKind, UnmanagedPod
from evenkeel.domain.health.incidents import Incident
from evenkeel.domain.jobs.attempt import Attempt, ObservedWorkload
from evenkeel.domain.renting.rental import Rental
from evenkeel.ports import Key, Row, Table, Unreadable, get_all
from evenkeel.services.context import Context
from evenkeel.services.tables import incident_rows, job_rows, rows

_RENTAL_PODS = re.compile(r"(?P<job>.+)-r(?P<number>[0-9]{1,6})(-[0-9]{1,3})?")
_CHECK = re.compile(r"(?P<incident>inc-[a-z0-9]+)-check-[0-9]+")


def list_unmanaged_pods(name: str, context: Context, on: str | None = None) -> tuple[UnmanagedPod, ...]:
    """List the live unmanaged pods of all namespaces, without static pods and pods of a DaemonSet.

    Args:
        name: The cluster.
        on: Only pods on this node; empty: only pods without a node; None: all.
    """
    return filter_unmanaged(name, context.cluster.pods(name, on), context)


def filter_unmanaged(name: str, pods: Iterable[UnmanagedPod], context: Context) -> tuple[UnmanagedPod, ...]:
    """Return the unmanaged pods among the listed pods of a cluster."""
    unmanaged_pods = tuple(pods)
    keys = {pod.uid: key for pod in unmanaged_pods if pod.claim and (key := _attempt_key(pod.claim))}
    # Some callers may not read many incidents at once. There are few node tests.
    stored_rows = get_all(context.ledger, (key for key in keys.values() if key.table is Table.JOBS))
    tests = {key: context.ledger.get(key) for key in keys.values() if key.table is not Table.JOBS}

    def is_managed(pod: UnmanagedPod) -> bool:
        key = keys.get(pod.uid)
        row = (stored_rows.get(key) or tests.get(key)) if key else None
        try:
            return row is not None and _is_proven(name, pod, row)
        except Unreadable:
            return True  # a newer release wrote the row, so nothing happens to its pods; the sweep reports the row

    return tuple(pod for pod in unmanaged_pods if not is_managed(pod))


def _attempt_key(claim: LabelledOwner) -> Key | None:
    if claim.kind is ManagedKind.ATTEMPT:
        return job_rows.attempt_key(claim.job_id, claim.attempt)
    if claim.kind is ManagedKind.RENTAL:
        rental = _RENTAL_PODS.fullmatch(claim.name)
        return job_rows.rental_key(rental["job"], int(rental["number"])) if rental else None
    check = _CHECK.fullmatch(claim.name)
    return incident_rows.incident_key(check["incident"]) if check else None


def _is_proven(cluster: str, pod: UnmanagedPod, row: Row) -> bool:
    claim = pod.claim
    if claim is None or claim.controller != claim.name:
        return False
    if claim.kind is ManagedKind.ATTEMPT:
        attempt = rows.decode(row, Attempt)
        workload = ObservedWorkload(
            job_id=claim.job_id,
            attempt=claim.attempt,
            namespace=pod.namespace,
            job_uid=claim.controller_uid,
            decision_id=claim.decision_id,
        )
        return attempt.cluster == cluster and attempt.owns(workload)
    if claim.kind is ManagedKind.RENTAL:
        rental = rows.decode(row, Rental)
        return (cluster, pod.namespace) == (rental.offer.cluster, rental.namespace)
    incident = rows.decode(row, Incident)
    check = incident.check
    claimed_by = (incident.life.cluster, check.namespace, check.name) if check else None
    return claimed_by == (cluster, pod.namespace, claim.name)
