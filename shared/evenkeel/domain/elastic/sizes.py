"""Sizes of elastic jobs, and the limits on resizing."""

from typing import Self

from pydantic import Field, model_validator

from evenkeel.domain.elastic.throughput import Throughput
from evenkeel.domain.values import Instant, StrictValue, Value


class Sizes(Value):
    """The numbers of nodes that a job can run on."""

    least: int = Field(ge=1)
    most: int = Field(ge=1)
    step: int | None = Field(default=None, ge=1)
    """Difference between two sizes, counted from `least`; 1 if neither this nor `discrete` is given."""
    discrete: tuple[int, ...] = ()
    """All sizes, if they are listed instead of a step."""

    @model_validator(mode="after")
    def _has_step_or_list(self) -> Self:
        if self.least > self.most:
            raise ValueError(f"the smallest size {self.least} is larger than the largest size {self.most}")
        if self.step is not None and self.discrete:
            raise ValueError("give a step or discrete sizes, not both")
        if self.discrete and not self.legal:
            raise ValueError(f"none of the sizes {self.discrete} lies between {self.least} and {self.most}")
        return self

    @property
    def legal(self) -> tuple[int, ...]:
        """All sizes, ascending."""
        if self.discrete:
            return tuple(sorted({size for size in self.discrete if self.least <= size <= self.most}))
        return tuple(range(self.least, self.most + 1, self.step or 1))

    def largest_up_to(self, nodes: int) -> int | None:
        """Return the largest size of at most this many nodes; None if there is none."""
        return max((size for size in self.legal if size <= nodes), default=None)


class ElasticJob(Value):
    """A running job that may change its size, or be stopped for another job."""

    job_id: str
    team: str = ""
    priority: int = 0
    nodes: int
    accelerators_per_node: int = 8
    sizes: Sizes | None = None
    """None if the job runs at one size only."""
    throughput: Throughput | None = None
    """None if unknown. Then each node counts the same at every size."""
    since_checkpoint_seconds: float | None = None
    """None if unknown. Then the median of the other jobs counts, so that a job has no disadvantage if it reports the
    value."""
    can_save: bool = True
    """Whether it saves a checkpoint before a resize. Then it loses only the time of the resize."""
    is_preemptable: bool = True
    """Whether it may be stopped for another job if shrinking is not enough."""
    resize_seconds: float = 150
    """Duration of a resize: all accelerators of the job are idle."""
    resized_at: Instant | None = None
    failed_growths: int = 0
    """Number of failed growths in a row."""
    growth_failed_at: Instant | None = None
    is_resizing: bool = False
    started_at: Instant

    def effective_nodes(self, nodes: int) -> float:
        """Return the work of the job at a size, as the number of nodes that would do it without scaling loss."""
        return self.throughput.equivalent_nodes(nodes) if self.throughput else float(nodes)

    def lost_gpu_seconds(self, usual_seconds: float, *, is_stopped: bool = False) -> float:
        """Return the accelerator-seconds that the job loses by a resize, or by its stop."""
        since = usual_seconds if self.since_checkpoint_seconds is None else self.since_checkpoint_seconds
        lost_seconds = self.resize_seconds + (since if is_stopped or not self.can_save else 0.0)
        return lost_seconds * self.nodes * self.accelerators_per_node


class ElasticPolicy(StrictValue):
    """Limits on resizing. A part of the policy, so unknown fields are refused."""

    resize_seconds: float = Field(default=150, gt=0)
    """Time during which all accelerators of a job are idle: save, stop, launch and restore."""
    snooze_seconds: float = Field(default=600, ge=0)
    """Time after any resize of a job during which it does not grow."""
    backoff_seconds: float = Field(default=600, ge=0)
    """Time after a failed growth before the next one; doubles with each failure in a row."""
    max_backoff_seconds: float = Field(default=21_600, ge=0)
    """Longest time between two growth attempts, however many failed."""
    scaling_timeout_seconds: float = Field(default=0, ge=0)
    """Minimum time for which nodes must have been idle, even if the resize is cheap."""
    spare_wait_seconds: float = Field(default=120, ge=0)
    """Time after a fault for which a job waits for a spare before it shrinks."""
