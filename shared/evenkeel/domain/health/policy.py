"""Sections of the policy for the watch and for the sources of facts."""

from pydantic import Field

from evenkeel.domain.policy_base import Seconds, Section


class WatchPolicy(Section):
    """How the world is heard."""

    not_ready_seconds: Seconds = 300
    """A node NotReady this long sickens: `node:not_ready`."""
    watch_seconds: int = Field(default=50, ge=1, le=75)
    """How long one `watch_cluster` invocation holds its watch."""
    tick_seconds: int = Field(default=5, ge=1, le=300)
    """Without any change, how often `watch_cluster` looks again: some conditions come true by time alone."""
    sweep_page_budget: int = Field(default=50, ge=1, le=10_000)
    """List pages one sweep may read."""
    first_boot_grace_seconds: Seconds = 1800
    """A node younger than this that is not Ready yet is booting, not sick."""
    stale_condition_seconds: Seconds = 172_800
    """A sick condition that has not changed for this long is no news: its agent may be stuck."""
    recovery_signal_max_age_seconds: Seconds = 600
    """How long it is news that an agent takes a node for well again."""
    execution_grace_seconds: Seconds = 30
    """An incident or attempt older than this without a running execution was left half done."""
    max_runs: int = Field(default=5, ge=1, le=20)
    """Workflow runs of one incident; past it something is wrong with Evenkeel itself, and a person must look."""
    failed_run_backoff_seconds: int = Field(default=60, ge=0, le=86_400)
    """Pause before a run that failed through a fault of our own is followed by another; doubles each time."""


class SourcePolicy(Section):
    """How long each kind of source may stay silent before its facts are shown as stale. A sweep runs each minute."""

    kubernetes_list_seconds: Seconds = 180
    """The nodes, pods and Jobs of one cluster, listed completely."""
    kubernetes_watch_seconds: Seconds = 180
    kueue_seconds: Seconds = 600
    hyperpod_seconds: Seconds = 300
    event_queue_seconds: Seconds = 600
    """Events that wait longer than this without any being handled."""
    scheduling_cycle_seconds: Seconds = 300
    waits_seconds: Seconds = 300
    sweep_seconds: Seconds = 600
    """One step of the sweeper."""

    def threshold_seconds(self, kind: str) -> int:
        """Return the threshold of a kind of source, such as `kubernetes-list`."""
        return int(getattr(self, f"{kind.replace('-', '_')}_seconds"))
