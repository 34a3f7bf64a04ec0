"""Every metric that Evenkeel emits, with its unit and dimensions. Emitting any other metric is a bug.

CloudWatch identifies a metric by its name and its exact set of dimensions. An alarm with another set watches nothing,
without an error. So each set is declared once, here, and tests compare the alarms and the documents with it.
"""

from collections.abc import Collection
from enum import StrEnum
from typing import NamedTuple

NAMESPACE = "Evenkeel"
FLEET_DIMENSION = "Fleet"
"""Dimension of every metric: the name of the fleet."""


class Unit(StrEnum):
    """Units of the metrics, in CloudWatch's spelling."""

    COUNT = "Count"
    SECONDS = "Seconds"
    NONE = "None"
    """For amounts without a unit of CloudWatch, such as money."""


class Metric(NamedTuple):
    """A metric."""

    name: str
    unit: Unit
    dimensions: tuple[str, ...]
    """Dimensions in addition to the fleet, in the code's spelling: `function`. Each has few values."""
    meaning: str


class UndeclaredMetric(ValueError):
    """The code emits a metric that is not declared."""


_COUNT, _SECONDS, _NONE = Unit.COUNT, Unit.SECONDS, Unit.NONE

METRICS = {
    metric.name: metric
    for metric in (
        # Evenkeel itself
        Metric("Heartbeat", _COUNT, ("function",), "A run of a scheduled function ended."),
        Metric(
            "SourcesStale", _COUNT, ("source",), "Sources of one kind whose last answer is older than their threshold."
        ),
        Metric("SourceAgeSeconds", _SECONDS, ("source", "target"), "Time since one source last answered."),
        Metric("ScheduledRunsDeferred", _COUNT, (), "A scheduled run failed; the next run does the same work."),
        Metric("WatchesLost", _COUNT, (), "The watch on the cluster broke and was opened again."),
        Metric("WatchSnapshotsFailed", _COUNT, (), "A snapshot of the clusters during the watch was incomplete."),
        Metric("SweepStepsFailed", _COUNT, ("step",), "A step of the sweep failed."),
        Metric("SweepCorrections", _COUNT, ("step",), "Work that a crash interrupted and a sweep step finished."),
        Metric("RowsUnreadable", _COUNT, (), "A row has a value of a newer release."),
        Metric(
            "UnmanagedWorkloads", _COUNT, (), "Kubernetes Jobs that carry an attempt's labels but do not belong to it."
        ),
        Metric("PolicyInvalid", _COUNT, (), "The site's policy is not valid for this release."),
        # Events and facts
        Metric("EventsReceived", _COUNT, (), "An event was parsed."),
        Metric("EventsFailed", _COUNT, ("code",), "An event of a known kind was malformed."),
        Metric("EventsIgnored", _COUNT, (), "An event that needs no action."),
        Metric("EventsUnknown", _COUNT, (), "An event of an unknown kind."),
        Metric("EventsPublished", _COUNT, (), "An event of Evenkeel was published."),
        Metric("ChangesNotPublished", _COUNT, (), "A stored change that could not be published, and was skipped."),
        Metric("FactsOpened", _COUNT, ("source",), "A fact opened an incident."),
        Metric("FactsJoined", _COUNT, ("source",), "A fact joined an open incident."),
        Metric("FactsDuplicate", _COUNT, ("source",), "A fact that is already recorded."),
        Metric("FactsStale", _COUNT, ("source",), "A fact from before the node was replaced or returned to service."),
        Metric("FactsExpected", _COUNT, ("source",), "A fact caused by Evenkeel's own repair."),
        Metric("FactsIgnored", _COUNT, ("source",), "A fact that needs no action."),
        Metric("FactsOtherFleet", _COUNT, ("source",), "A fact about a node of another fleet."),
        Metric("FactsUnresolved", _COUNT, (), "A fact whose node is not known yet."),
        Metric("FactsDropped", _COUNT, (), "A fact about a node that never became known."),
        Metric("GroupFactsNoted", _COUNT, ("kind",), "A fact about an instance group or the cluster."),
        Metric("XidsUnparsed", _COUNT, ("source",), "A driver line that names an Xid in an unknown form."),
        Metric("ConditionsStale", _COUNT, (), "Node conditions that no agent has updated for long."),
        # Incidents and recoveries
        Metric("IncidentsOpened", _COUNT, ("severity", "drill"), "An incident opened."),
        Metric("IncidentsOpen", _COUNT, (), "Open incidents now."),
        Metric("RepairsInFlight", _COUNT, (), "Open incidents with a requested repair whose node is not back."),
        Metric("IncidentsBlocked", _COUNT, (), "Open incidents that a guardrail or a hold blocks now."),
        Metric("IncidentsStuck", _COUNT, (), "An incident whose workflow ended repeatedly without settling it."),
        Metric("IncidentsSettled", _COUNT, ("outcome",), "An incident ended."),
        Metric("RecoveriesPlanned", _COUNT, ("outcome",), "A recovery was planned."),
        Metric("RecoveriesResumed", _COUNT, (), "The recovery of an unhealthy node was resumed."),
        Metric("RecoveriesReplanned", _COUNT, (), "A worse fault restarted a recovery."),
        Metric("RecoveryRunsFailed", _COUNT, (), "A run of a recovery failed because of Evenkeel itself."),
        Metric("PlansAnswered", _COUNT, ("answer",), "A person approved or declined a plan."),
        Metric("ActionsBlocked", _COUNT, ("guardrail",), "A guardrail blocked an action."),
        Metric("RepairsRequested", _COUNT, ("rung", "answer"), "A reboot or replacement was requested."),
        Metric("ChecksStarted", _COUNT, ("kind", "answer"), "A health check of a repaired node began."),
        Metric("DetectedToCordoned", _SECONDS, (), "From the incident's opening to the cordon."),
        Metric("DetectedToReturned", _SECONDS, (), "From the incident's opening to the node's return."),
        Metric("DetectedToSettled", _SECONDS, ("outcome",), "From the incident's opening to its end."),
        Metric("WaitSeconds", _SECONDS, ("kind",), "How long a workflow waited."),
        # Nodes
        Metric(
            "AcceleratorsInDemand",
            _COUNT,
            (),
            "Accelerators that pods request now or pending jobs ask for; missing while a cluster does not answer.",
        ),
        Metric("NodesReady", _COUNT, (), "Ready nodes now; missing while a cluster does not answer."),
        Metric("NodesNotReady", _COUNT, (), "Nodes that are not Ready now; missing while a cluster does not answer."),
        Metric("NodesCordoned", _COUNT, (), "Cordoned nodes now; missing while a cluster does not answer."),
        Metric("LemonNodes", _COUNT, (), "Nodes that were returned to service too often lately."),
        Metric("NodesValidated", _COUNT, (), "Nodes that passed their first validation."),
        # Jobs
        Metric("JobsPending", _COUNT, (), "Pending jobs now."),
        Metric("JobsStarting", _COUNT, (), "Starting jobs now."),
        Metric("JobsRunning", _COUNT, (), "Running jobs now."),
        Metric("JobsStopping", _COUNT, (), "Stopping jobs now."),
        Metric("JobsSuspended", _COUNT, (), "Suspended jobs now."),
        Metric("JobsAdmitted", _COUNT, (), "A job was admitted."),
        Metric("JobsPreempted", _COUNT, (), "Jobs that were preempted."),
        Metric("JobsResized", _COUNT, ("action",), "A job was asked to change its size."),
        Metric("JobsStopped", _COUNT, (), "Jobs that were stopped before a repair of their node."),
        Metric("JobsRolledBack", _COUNT, (), "A job was stopped to resume from an older checkpoint."),
        Metric("JobsOnDistrustedCheckpoints", _COUNT, (), "A job keeps running from a distrusted checkpoint."),
        Metric("WritesRejected", _COUNT, (), "The ledger refused a write."),
        Metric("BudgetsRunningOut", _COUNT, (), "Budgets that are newly expected to end before their period."),
        Metric("JobsMigratedBack", _COUNT, (), "A job was asked to migrate back to committed capacity."),
        Metric("JobsDisplaced", _COUNT, (), "Jobs asked to move to rented nodes to free nodes for another job."),
        Metric("JobsDrainedFromReservations", _COUNT, (), "Jobs asked to leave a pool whose reservation ends."),
        Metric("ResumesPlanned", _COUNT, ("option",), "How an interrupted job will resume."),
        Metric("AttemptsLaunched", _COUNT, (), "A Kubernetes Job was created."),
        Metric("AttemptsRunning", _COUNT, (), "Every pod of an attempt runs."),
        Metric("AttemptsSettled", _COUNT, ("state",), "An attempt ended."),
        Metric("LaunchesWithoutCheckpoint", _COUNT, (), "A job whose checkpoints are all invalid was not launched."),
        Metric("LaunchesForbidden", _COUNT, (), "The cluster refused a launch."),
        Metric("AdmittedToRunning", _SECONDS, (), "From admission until every pod runs."),
        Metric("UnmanagedPodsMoved", _COUNT, (), "Pods of other owners that were evicted before a repair."),
        Metric("UnmanagedJobsDecided", _COUNT, ("action",), "A user's job on a faulty node: restarted, moved or left."),
        Metric("UnmanagedJobRestarts", _COUNT, ("outcome",), "The restart of a user's job has ended."),
        Metric("UnmanagedJobsNotCreated", _COUNT, (), "A user's job that Evenkeel deleted could not be created again."),
        # The last whole UTC day, once a day. An unknown figure has no data point.
        Metric("DayTrainingTimeRatio", _NONE, (), "Effective training time ratio (ETTR) of the last whole day."),
        Metric(
            "DayRecoverySeconds", _SECONDS, (), "Mean standstill of jobs by incidents of the last whole day (MTTR)."
        ),
        Metric(
            "DaySecondsBetweenFailures",
            _SECONDS,
            (),
            "Node time per failure in the last whole day (MTBF of a node); missing without a failure.",
        ),
        Metric("DayNodeSeconds", _SECONDS, ("use",), "Node time of the last whole day, by use."),
        Metric("DayLostUsd", _NONE, (), "Cost of the failures of the last whole day; missing without a price."),
        Metric("DayPoolTrainingTimeRatio", _NONE, ("pool",), "ETTR of the last whole day, for the 20 largest pools."),
        Metric("DayPoolRecoverySeconds", _SECONDS, ("pool",), "MTTR of the last whole day, for the same pools."),
        Metric(
            "DayPoolSecondsBetweenFailures",
            _SECONDS,
            ("pool",),
            "MTBF of a node in the last whole day, by pool.",
        ),
        # Rented capacity
        Metric("RentalsStarted", _COUNT, (), "A rental began."),
        Metric("RentalsReady", _COUNT, (), "All nodes of a rental are ready."),
        Metric("RentalsEnded", _COUNT, (), "A rental ended."),
        Metric("RentalUsdPerHour", _NONE, (), "Cost of all open rentals now, in US dollars an hour."),
        Metric("RentalCapUsdPerHour", _NONE, (), "The policy's cap on that cost, in US dollars an hour."),
        Metric("RentalCostUsd", _COUNT, (), "Cost of an ended rental in US dollars."),
        Metric("RentalReadySeconds", _SECONDS, (), "From a rental's beginning until its nodes are ready."),
        Metric("CapacityUnavailable", _COUNT, ("market",), "A market had no capacity."),
    )
}
"""All metrics, by name."""


def check_declared(name: str, unit: str, dimensions: Collection[str]) -> None:
    """Check a data point against the declarations.

    Raises:
        UndeclaredMetric: The metric is not declared, or has another unit or other dimensions.
    """
    metric = METRICS.get(name)
    if metric is None:
        raise UndeclaredMetric(f"metric {name} is not declared")
    if unit != metric.unit:
        raise UndeclaredMetric(f"metric {name} is declared in {metric.unit}, not in {unit}")
    if set(dimensions) != set(metric.dimensions):
        given_names, declared_names = ", ".join(sorted(dimensions)), ", ".join(metric.dimensions)
        raise UndeclaredMetric(f"metric {name} has the dimensions ({declared_names}), not ({given_names})")
