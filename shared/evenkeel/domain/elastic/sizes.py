"""The sizes that an elastic job may have."""

from typing import Self

from pydantic import ConfigDict, Field, model_validator

from evenkeel.domain.values import Instant, Value


class Sizes(Value):
    """The numbers of nodes that a job can run on."""

    least: int = Field(ge=1)
    most: int = Field(ge=1)
    step: int | None = Field(default=None, ge=1)
    """From `least` on; 1 where neither this nor `discrete` is given."""
    discrete: tuple[int, ...] = ()
    """The only sizes, in place of a step."""

    @model_validator(mode="after")
    def _is_one_or_the_other(self) -> Self:
        if self.least > self.most:
            raise ValueError(f"least {self.least} is more than most {self.most}")
        if self.step is not None and self.discrete:
            raise ValueError("give a step or discrete sizes, not both")
        if self.discrete and not self.legal:
            raise ValueError(f"none of the sizes {self.discrete} lies between {self.least} and {self.most}")
        return self

    @property
    def legal(self) -> tuple[int, ...]:
        """All of them, ascending."""
        if self.discrete:
            return tuple(sorted({size for size in self.discrete if self.least <= size <= self.most}))
        return tuple(range(self.least, self.most + 1, self.step or 1))

    def at_most(self, nodes: int) -> int | None:
        """Return the largest size that so many nodes hold; None where none does."""
        return max((size for size in self.legal if size <= nodes), default=None)


class ElasticJob(Value):
    """A running job whose size may change, or that may be ended for another."""

    job_id: str
    team: str = ""
    priority: int = 0
    nodes: int
    accelerators_per_node: int = 8
    sizes: Sizes | None = None
    """None if the job runs at one size only."""
    since_checkpoint_seconds: float | None = None
    """None where nobody knows: it is charged the median of the others, so that who reports never loses by it."""
    can_save: bool = True
    """Whether it saves before a resize: then only the resize itself is lost."""
    is_preemptable: bool = True
    """Whether it may be ended for another where shrinking is not enough."""
    resize_seconds: float = 150
    """For which all its accelerators stand still."""
    resized_at: Instant | None = None
    failed_growths: int = 0
    """In a row."""
    growth_failed_at: Instant | None = None
    is_resizing: bool = False
    started_at: Instant

    def lost_gpu_seconds(self, usual_seconds: float, *, is_killed: bool = False) -> float:
        """Return the accelerator-seconds that a resize, or its end, costs."""
        since = usual_seconds if self.since_checkpoint_seconds is None else self.since_checkpoint_seconds
        lost = self.resize_seconds + (since if is_killed or not self.can_save else 0.0)
        return lost * self.nodes * self.accelerators_per_node


class ElasticTerms(Value):
    """Limits on resizing. A part of the policy: what it does not know it refuses."""

    model_config = ConfigDict(extra="forbid")

    resize_seconds: float = Field(default=150, gt=0)
    """For which all accelerators of a job stand still: the save, the end, the launch and the restore."""
    snooze_seconds: float = Field(default=600, ge=0)
    """After any resize of a job it does not grow for so long."""
    backoff_seconds: float = Field(default=600, ge=0)
    """After a failed growth; doubles with each in a row."""
    most_backoff_seconds: float = Field(default=21_600, ge=0)
    scaling_timeout_seconds: float = Field(default=0, ge=0)
    """Nodes must have been idle at least this long, however cheap the resize."""
    spare_wait_seconds: float = Field(default=120, ge=0)
    """After a fault so long is waited for a spare before the job shrinks."""
