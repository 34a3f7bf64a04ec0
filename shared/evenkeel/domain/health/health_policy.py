"""Policy sections for watching the clusters, and for the maximum age of each source."""

from pydantic import Field

from evenkeel.domain.policy_section import Seconds, Section


class WatchPolicy(Section):
    """How Evenkeel watches the clusters and restarts its own workflows."""

    not_ready_seconds: Seconds = 300
    """A node that is NotReady for this long has the fault `node:not_ready`."""
    watch_seconds: int = Field(default=50, ge=1, le=75)
    """How long one invocation of `watch_cluster` keeps its watch open."""
    tick_seconds: int = Field(default=5, ge=1, le=300)
    """How often `watch_cluster` checks the nodes when nothing changes: some conditions become true by time alone."""
    sweep_page_budget: int = Field(default=50, ge=1, le=10_000)
    """Pages of lists that one sweep may read."""
    first_boot_grace_seconds: Seconds = 1800
    """A node younger than this that is not Ready yet is still booting, not faulty."""
    stale_condition_seconds: Seconds = 172_800
    """A fault condition that has not changed for this long is ignored: its agent may be stuck."""
    recovery_signal_max_age_seconds: Seconds = 600
    """An agent's report that a node is healthy again counts for this long."""
    execution_grace_seconds: Seconds = 30
    """The sweep treats an incident or attempt older than this without a running execution as interrupted."""
    max_runs: int = Field(default=5, ge=1, le=20)
    """Maximum workflow runs of one incident. After that, Evenkeel itself is at fault and a person must act."""
    failed_run_backoff_seconds: int = Field(default=60, ge=0, le=86_400)
    """Pause before the next run after Evenkeel itself failed; doubles with each run."""


class SourcePolicy(Section):
    """How old the last answer of each source may be before its facts are shown as stale. A sweep runs each minute."""

    kubernetes_list_seconds: Seconds = 180
    """A complete list of the nodes, pods and Jobs of one cluster."""
    kubernetes_watch_seconds: Seconds = 180
    """A tick of the watch over one cluster."""
    kueue_seconds: Seconds = 600
    """The Kueue objects of one cluster."""
    hyperpod_seconds: Seconds = 300
    """A list of the nodes of one HyperPod cluster."""
    event_queue_seconds: Seconds = 600
    """Events in the queue wait longer than this and none is handled."""
    scheduling_cycle_seconds: Seconds = 300
    """A scheduling cycle that ended."""
    waits_seconds: Seconds = 300
    """A check of everything that workflows wait for."""
    sweep_seconds: Seconds = 600
    """A step of the sweep."""

    def threshold_seconds(self, kind: str) -> int:
        """Return the threshold of a kind of source, such as `kubernetes-list`."""
        return int(getattr(self, f"{kind.replace('-', '_')}_seconds"))
