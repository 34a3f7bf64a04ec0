"""Every metric that Evenkeel emits: its unit and its dimensions. A metric that is not declared here is a bug.

CloudWatch knows a metric by its name and its exact set of dimensions. An alarm that names another set watches nothing,
and says nothing about it. So the set is declared once, here, and alarms and documents are held against it.
"""

from collections.abc import Collection
from enum import StrEnum
from typing import NamedTuple

NAMESPACE = "Evenkeel"
FLEET_DIMENSION = "Cluster"
"""On every metric: the name of the fleet."""
MOST_DIMENSIONS = 3


class Unit(StrEnum):
    """The units in use, spelled as CloudWatch spells them."""

    COUNT = "Count"
    SECONDS = "Seconds"


class Metric(NamedTuple):
    """One metric."""

    name: str
    unit: Unit
    dimensions: tuple[str, ...]
    """Besides the fleet, as the code passes them: `function`. Each has few values."""
    meaning: str


class UndeclaredMetric(ValueError):
    """The code emits what is not declared."""


_COUNT, _SECONDS = Unit.COUNT, Unit.SECONDS

METRICS = {
    metric.name: metric
    for metric in (
        # Evenkeel itself
        Metric("Heartbeat", _COUNT, ("function",), "A run of a scheduled function ended."),
        Metric("SourcesStale", _COUNT, ("source",), "Sources of one kind that have been silent past their threshold."),
        Metric("SourceAgeSeconds", _SECONDS, ("source", "target"), "Time since one source last answered."),
        Metric("ScheduledRunsDeferred", _COUNT, (), "A scheduled run failed and was left to the next one."),
        Metric("WatchesLost", _COUNT, (), "The watch on the cluster broke and was opened again."),
        Metric("WatchSnapshotsFailed", _COUNT, (), "A snapshot during the watch failed in part."),
        Metric("SweepStepsFailed", _COUNT, ("step",), "A step of the sweep failed."),
        Metric("SweepCorrections", _COUNT, ("step",), "What a crash left half done and a sweep step finished."),
        Metric("UnmanagedWorkloads", _COUNT, (), "Kubernetes Jobs with labels of attempts that do not own them."),
        Metric("PolicyInvalid", _COUNT, (), "The site's policy cannot be used by this release."),
        # Events and facts
        Metric("EventsReceived", _COUNT, (), "An event was parsed."),
        Metric("EventsFailed", _COUNT, ("code",), "An event of a known kind was malformed."),
        Metric("EventsIgnored", _COUNT, (), "An event that calls for nothing."),
        Metric("EventsUnknown", _COUNT, (), "An event of an unknown kind."),
        Metric("FactsOpen", _COUNT, ("source",), "A fact opened an incident."),
        Metric("FactsJoin", _COUNT, ("source",), "A fact joined an open incident."),
        Metric("FactsDuplicate", _COUNT, ("source",), "A copy of a known fact."),
        Metric("FactsStale", _COUNT, ("source",), "A fact about something that is over."),
        Metric("FactsExpected", _COUNT, ("source",), "A fact caused by a repair of ours."),
        Metric("FactsIgnored", _COUNT, ("source",), "A fact that calls for nothing."),
        Metric("FactsOtherFleet", _COUNT, ("source",), "A fact about another fleet's machine."),
        Metric("FactsUnresolved", _COUNT, (), "A fact whose machine is not known yet."),
        Metric("FactsDropped", _COUNT, (), "A fact whose machine never became known."),
        Metric("GroupFactsNoted", _COUNT, ("kind",), "A fact about an instance group or the cluster."),
        Metric("XidsUnparsed", _COUNT, ("source",), "A driver line that names an XID in an unknown form."),
        Metric("ConditionsStale", _COUNT, (), "Node conditions that no agent has refreshed for long."),
        # Incidents and recoveries
        Metric("IncidentsOpened", _COUNT, ("severity", "drill"), "An incident opened."),
        Metric("IncidentsOpen", _COUNT, (), "Open incidents now."),
        Metric("IncidentsBlocked", _COUNT, (), "Open incidents that a guardrail or a hold blocks now."),
        Metric("IncidentsStuck", _COUNT, (), "An incident whose workflow ended again and again without settling it."),
        Metric("IncidentsSettled", _COUNT, ("outcome",), "An incident ended."),
        Metric("RecoveriesPlanned", _COUNT, ("outcome",), "A recovery was planned."),
        Metric("RecoveriesResumed", _COUNT, (), "Work on an unhealthy node was resumed."),
        Metric("RecoveriesReplanned", _COUNT, (), "A worse fault made a recovery begin anew."),
        Metric("RecoveryRunsFailed", _COUNT, (), "A run of a recovery failed through a fault of Evenkeel."),
        Metric("PlansAnswered", _COUNT, ("answer",), "A person approved or declined a plan."),
        Metric("ActionsBlocked", _COUNT, ("rule",), "A guardrail blocked an act."),
        Metric("RepairsRequested", _COUNT, ("rung", "answer"), "A reboot or replacement was requested."),
        Metric("ChecksStarted", _COUNT, ("kind", "answer"), "A health check of a repaired node began."),
        Metric("DetectedToCordoned", _SECONDS, (), "From the incident's opening to the cordon."),
        Metric("DetectedToReturned", _SECONDS, (), "From the incident's opening to the node's return."),
        Metric("DetectedToSettled", _SECONDS, ("outcome",), "From the incident's opening to its end."),
        Metric("WaitSeconds", _SECONDS, ("kind",), "How long a workflow waited."),
        # Nodes
        Metric("NodesReady", _COUNT, (), "Ready nodes now; missing while a cluster does not answer."),
        Metric("NodesNotReady", _COUNT, (), "Nodes that are not Ready now; missing while a cluster does not answer."),
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
        Metric("JobsProtected", _COUNT, (), "Jobs that were stopped before a repair of their node."),
        Metric("JobsRolledBack", _COUNT, (), "A job was stopped to resume from an older checkpoint."),
        Metric("JobsOnSuspectCheckpoints", _COUNT, (), "A job runs on from a checkpoint in doubt."),
        Metric("WritesRejected", _COUNT, (), "A write that the ledger refused."),
        Metric("JobsMigratedBack", _COUNT, (), "A job was asked to migrate back to committed capacity."),
        Metric("JobsDrainedFromReservations", _COUNT, (), "Jobs asked to leave a pool whose reservation ends."),
        Metric("ResumesPlanned", _COUNT, ("option",), "How an interrupted job will resume."),
        Metric("AttemptsLaunched", _COUNT, (), "A Kubernetes Job was created."),
        Metric("AttemptsRunning", _COUNT, (), "Every pod of an attempt runs."),
        Metric("AttemptsSettled", _COUNT, ("state",), "An attempt ended."),
        Metric("LaunchesWithoutCheckpoint", _COUNT, (), "A job without a provable checkpoint was not launched."),
        Metric("LaunchesForbidden", _COUNT, (), "The cluster refused a launch."),
        Metric("AdmittedToRunning", _SECONDS, (), "From admission until every pod runs."),
        Metric("UnmanagedPodsMoved", _COUNT, (), "Pods of other owners that were evicted before a repair."),
        # Rented capacity
        Metric("RentalsStarted", _COUNT, (), "A rental began."),
        Metric("RentalsReady", _COUNT, (), "All nodes of a rental are ready."),
        Metric("RentalsEnded", _COUNT, (), "A rental ended."),
        Metric("RentalCostUsd", _COUNT, (), "What an ended rental cost, in US dollars."),
        Metric("RentalReadySeconds", _SECONDS, (), "From a rental's beginning until its nodes are ready."),
        Metric("CapacityUnavailable", _COUNT, ("market",), "A market had no capacity."),
    )
}
"""By name."""


def check_declared(name: str, unit: str, dimensions: Collection[str]) -> None:
    """Check a data point against the declarations.

    Raises:
        UndeclaredMetric: there is no such metric, or it has another unit or other dimensions.
    """
    metric = METRICS.get(name)
    if metric is None:
        raise UndeclaredMetric(f"metric {name} is not declared")
    if unit != metric.unit:
        raise UndeclaredMetric(f"metric {name} is declared in {metric.unit}, not in {unit}")
    if set(dimensions) != set(metric.dimensions):
        given, declared = ", ".join(sorted(dimensions)), ", ".join(metric.dimensions)
        raise UndeclaredMetric(f"metric {name} has the dimensions ({declared}), not ({given})")
