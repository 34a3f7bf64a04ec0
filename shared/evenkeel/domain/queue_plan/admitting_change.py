"""A change that would admit a pending job. `why.py` finds them."""

from pydantic import Field

from evenkeel.domain.queue_plan.documents import Output


class AdmittingChange(Output):
    """A change that alone would admit the job."""

    kind: str
    """quota, priority, size or wait."""
    message: str = Field(alias="said")
    flavor: str = ""
    amounts: dict[str, str] = {}
    """For kind `quota`: how much more nominal quota, by resource."""
    priority: int | None = None
    counts: tuple[int, ...] = ()
    jobs: tuple[str, ...] = ()
    """For kind `wait`: jobs that must end first."""
