"""A change that would admit a pending job. `why.py` and `domain/admission/admitting_changes.py` find them."""

from evenkeel.domain.queue_simulation.documents import Output


class AdmittingChange(Output):
    """A change that alone would admit the job."""

    kind: str
    """exclusion, limit, nodes, priority, quota, size, spares, time or wait."""
    message: str
    flavor: str = ""
    amounts: dict[str, str] = {}
    """For kind `quota`: how much more nominal quota, by resource."""
    priority: int | None = None
    counts: tuple[int, ...] = ()
    jobs: tuple[str, ...] = ()
    """For kind `wait`: jobs that must end first."""
