"""Checks of the figures that a formula gets. A wrong figure is an error that names its field, never a zero."""

import math
from typing import Annotated, Any, Self

from pydantic import ConfigDict, StringConstraints, ValidationError

from evenkeel.domain.values import NOT_A_NUMBER, Value, booleans_for_numbers
from evenkeel.domain.wrong_fields import field_path, wrong_fields

Name = Annotated[str, StringConstraints(max_length=253, pattern=r"^[ -~]*$")]
"""A name in a document with figures: printable ASCII."""


class WrongFigure(ValueError):
    """A figure that a formula cannot use."""

    def __init__(self, field: str, problem: str) -> None:
        super().__init__(f"{field} {problem}")
        self.field = field
        """Name of the argument, such as `node_hours`."""
        self.problem = problem
        """The rest of a sentence that begins with the field."""


class FigureDocument(Value):
    """A document with figures. It refuses unknown fields, because a misspelled figure would be missing."""

    model_config = ConfigDict(extra="forbid", allow_inf_nan=False)

    @classmethod
    def read(cls, document: Any) -> Self:
        """Read a document.

        Raises:
            WrongFigure: a field is missing, unknown or wrong; names its path.
        """
        try:
            for path in booleans_for_numbers(cls, document):
                raise WrongFigure(field_path(path, document), NOT_A_NUMBER)
            return cls.model_validate(document)
        except ValidationError as error:
            first_fault = wrong_fields(error, document)[0]
            raise WrongFigure(first_fault.field or "the document", first_fault.message) from error


_LARGEST = 1e18
"""No plausible figure is larger, and no plausible divisor is smaller than its inverse. So results stay finite."""


def at_least(field: str, value: float, lowest: float = 0.0) -> float:
    """Return a plausible figure that is not below a limit.

    Raises:
        WrongFigure: the figure is not finite, is below the limit, or is too large to be meant.
    """
    if not math.isfinite(value) or value < lowest:
        raise WrongFigure(field, f"must be at least {lowest:g}, not {value:g}")
    if value > _LARGEST:
        raise WrongFigure(field, f"must be at most {_LARGEST:g}, not {value:g}")
    return value


def more_than_0(field: str, value: float) -> float:
    """Return a plausible figure above 0, which may be a divisor.

    Raises:
        WrongFigure: the figure is not finite, is not above 0, or is too large or too small to be meant.
    """
    if not math.isfinite(value) or value <= 0:
        raise WrongFigure(field, f"must be more than 0, not {value:g}")
    return at_least(field, value, 1 / _LARGEST)


def whole_number(field: str, value: int, lowest: int = 0, highest: int = 10_000_000) -> int:
    """Return a whole number within limits.

    Raises:
        WrongFigure: the number is outside the limits.
    """
    if not math.isfinite(value) or value != int(value) or not lowest <= value <= highest:
        raise WrongFigure(field, f"must be a whole number from {lowest} to {highest}, not {value:.15g}")
    return int(value)


def share_between_0_and_1(field: str, value: float) -> float:
    """Return a share above 0 and below 1.

    Raises:
        WrongFigure: the figure is not such a share.
    """
    if not 0 < value < 1:
        raise WrongFigure(field, f"must be above 0 and below 1, not {value:g}")
    return value
