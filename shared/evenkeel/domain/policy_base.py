"""What the sections of the policy are made of: number types, the base class and modes."""

from enum import StrEnum
from typing import Annotated

from pydantic import AfterValidator, ConfigDict, Field

from evenkeel.domain.values import Value, Word

LONGEST_SECONDS = 31_536_000
"""A year: what waits longer is no deadline, and no workflow lives to see it."""


LARGEST = 10**12
"""Of all other numbers that have no bound of their own. Sums and products of such are still counted exactly."""


def _no_system_class(name: str) -> str:
    if name.startswith("system-"):
        raise ValueError("classes that begin with system- are Kubernetes' own")
    return name


Seconds = Annotated[int, Field(ge=0, le=LONGEST_SECONDS)]
"""A pause or a margin, which may be none."""


Deadline = Annotated[int, Field(ge=1, le=LONGEST_SECONDS)]
"""What is due at once would be overdue before it began."""


Count = Annotated[int, Field(ge=0, le=1_000_000)]


Tries = Annotated[int, Field(ge=0, le=1000)]


Usd = Annotated[float, Field(ge=0, le=10_000)]


Micros = Annotated[int, Field(ge=0, le=10**15)]


Scale = Annotated[float, Field(ge=0, le=100)]


PriorityClass = Annotated[
    str, Field(max_length=63, pattern=r"^[a-z0-9]([a-z0-9-]{0,61}[a-z0-9])?$"), AfterValidator(_no_system_class)
]


class Section(Value):
    """A part of the policy. What it does not know it refuses: a misspelt limit would be no limit.

    Every number has a lower and an upper bound: what lies beyond is a slip, and would stop passes or outlast the
    calendar.
    """

    model_config = ConfigDict(extra="forbid", allow_inf_nan=False)


class Mode(StrEnum):
    """How far automation may go."""

    OBSERVE = "observe"
    """Decide and record; touch nothing."""
    RECOMMEND = "recommend"
    """Decide, record and wait for approval."""
    ACT = "act"
    """Decide, record and do."""


class ModeRule(Section):
    """How far automation may go about some faults in some pools; the stack's own mode is the ceiling."""

    fault_class: Word = ""
    """As in the catalogue; empty for all."""
    pool: Word = ""
    """Empty for all."""
    mode: Mode
