"""Section of the policy for reserved pools."""

from pydantic import ConfigDict

from evenkeel.domain.capacity.pools import Reservation
from evenkeel.domain.values import Word


class ReservedPool(Reservation):
    """A pool whose capacity is reserved until a fixed time: by a training plan or a capacity block."""

    model_config = ConfigDict(extra="forbid")

    cluster: Word
    """Kubernetes cluster."""
    pool: Word
    """Name of the instance group or NodePool."""

    @property
    def stretch(self) -> Reservation:
        """The times of the reservation, without the pool."""
        return Reservation(starts_at=self.starts_at, ends_at=self.ends_at, closing_seconds=self.closing_seconds)
