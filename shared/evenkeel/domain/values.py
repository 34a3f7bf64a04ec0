"""The one base of every value: frozen, camelCase outside, snake_case inside."""

import functools
from datetime import UTC, datetime
from typing import Annotated, Any, Self

from pydantic import AfterValidator, BaseModel, ConfigDict, PlainSerializer
from pydantic.alias_generators import to_camel


def _utc(instant: datetime) -> datetime:
    if instant.tzinfo is None:
        raise ValueError("an instant needs a time zone")
    return instant if instant.tzinfo is UTC else instant.astimezone(UTC)


@functools.lru_cache(maxsize=4096)  # the same few instants are written again and again, with every row they are in
def rfc3339(instant: datetime) -> str:
    """Write an instant as RFC 3339 UTC with microseconds, so that text order is time order."""
    return _utc(instant).isoformat(timespec="microseconds").removesuffix("+00:00") + "Z"


def milliseconds(instant: datetime) -> int:
    """Return how many milliseconds after 1970 an instant is."""
    return int(instant.timestamp() * 1000)


Instant = Annotated[datetime, AfterValidator(_utc), PlainSerializer(rfc3339, return_type=str, when_used="json")]
"""An aware instant in UTC. In JSON: `2026-11-03T10:15:02.000000Z`."""


LONGEST_SENTENCE = 2_000
"""Characters of one thing that is told to people: a reason, a line of a timeline."""


def _cut(text: str, most: int = LONGEST_SENTENCE) -> str:
    return text if len(text) <= most else f"{text[: most - 1]}…"


Sentence = Annotated[str, AfterValidator(_cut)]
"""Text for people. What names many things is cut, so that no row grows with them."""
Sentences = Annotated[str, AfterValidator(functools.partial(_cut, most=3 * LONGEST_SENTENCE))]
"""Up to three of them."""


class Value(BaseModel):
    """A frozen value. JSON that leaves the process is camelCase; unknown keys are ignored when read back."""

    model_config = ConfigDict(
        frozen=True,
        alias_generator=to_camel,
        populate_by_name=True,
        extra="ignore",
        ser_json_inf_nan="null",
    )

    def to_json(self) -> dict[str, Any]:
        """Return the camelCase JSON form of this value."""
        return self.model_dump(mode="json", by_alias=True)

    def but(self, **changes: Any) -> Self:
        """Return a copy with some fields changed, validated again."""
        fields = {name: getattr(self, name) for name in type(self).model_fields}
        return type(self).model_validate({**fields, **changes})
