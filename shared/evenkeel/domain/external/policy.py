"""Section of the policy for serving workloads."""

from pydantic import Field

from evenkeel.domain.policy_base import LONGEST_SECONDS, Seconds, Section
from evenkeel.domain.values import Word


class ServingWorkload(Section):
    """A Deployment that serves: its replicas without a node are demand like a waiting job."""

    cluster: Word
    """Kubernetes cluster."""
    namespace: Word
    name: Word
    priority_class: Word = ""
    """Of the fleet's; what it is worth beside jobs."""
    priority: int = Field(default=1_000_000, ge=-2_147_483_648, le=2_000_001_000)
    """Where there is no such class."""
    most_replicas: int = Field(default=100, ge=1, le=100_000)
    """More than so many get no room made, and nothing rented."""
    rents_from: tuple[Word, ...] = ()
    """Names of `burst.pools` that are this Deployment's alone; empty = nothing is rented for the job."""
    team: Word = "default"
    """Whose cap holds for what is rented, and whose bill it is on."""
    spike_seconds: int = Field(default=3600, ge=60, le=LONGEST_SECONDS)
    """How long a rented node is expected to be wanted: what its rent is weighed with."""
    patience_seconds: Seconds = 30
    """A replica that has found no node for less than this is not rented for: it may be about to."""
    rented_seconds: int | None = Field(default=None, ge=60, le=LONGEST_SECONDS)
    """How long a rented node may be kept though replicas stand on it; None = as long as they do."""

    @property
    def label(self) -> str:
        """`namespace/name`."""
        return f"{self.namespace}/{self.name}"
