"""Sections of the policy for serving workloads, and for jobs that Evenkeel did not create."""

from pydantic import Field

from evenkeel.domain.policy_section import LONGEST_SECONDS, Seconds, Section
from evenkeel.domain.values import Word


class ServingWorkload(Section):
    """A serving Deployment whose replicas without a node count as demand, like pending jobs."""

    cluster: Word
    """Kubernetes cluster."""
    namespace: Word
    """Namespace of the Deployment."""
    name: Word
    """Name of the Deployment."""
    priority_class: Word = ""
    """A priority class of the fleet: the priority of the replicas compared with jobs."""
    priority: int = Field(default=1_000_000, ge=-2_147_483_648, le=2_000_001_000)
    """The priority if the fleet has no such class."""
    max_replicas: int = Field(default=100, ge=1, le=100_000)
    """Maximum number of replicas for which Evenkeel frees or rents capacity."""
    rents_from: tuple[Word, ...] = ()
    """Names of `burst.pools` that only this Deployment uses; empty rents nothing for it."""
    team: Word = "default"
    """The team that pays for rented nodes, and whose budget limits them."""
    spike_seconds: int = Field(default=3600, ge=60, le=LONGEST_SECONDS)
    """Expected time for which a rented node is needed. The cost of renting depends on it."""
    patience_seconds: Seconds = 30
    """Evenkeel rents nodes for a replica only after it had no node for this long."""
    rented_seconds: int | None = Field(default=None, ge=60, le=LONGEST_SECONDS)
    """Longest rental of a node even if replicas run on it; None keeps it as long as they run."""

    @property
    def label(self) -> str:
        """`namespace/name`."""
        return f"{self.namespace}/{self.name}"


class AdoptionPolicy(Section):
    """The recovery of jobs that users submitted without Evenkeel."""

    namespaces: tuple[Word, ...] = ()
    """Namespaces whose jobs Evenkeel recovers without a label, except jobs with `evenkeel.io/resume: forbidden`."""
    max_restarts: int = Field(default=3, ge=0, le=100)
    """How often Evenkeel restarts a job within 24 hours. Restarts by its operator do not count."""
