"""`Value`, the base class of all values, and the text and time types that they share."""

import functools
from collections.abc import Iterator, Mapping, Sequence
from datetime import UTC, datetime
from types import UnionType
from typing import Annotated, Any, Self, Union, get_args, get_origin

from pydantic import (
    AfterValidator,
    BaseModel,
    ConfigDict,
    PlainSerializer,
    SerializerFunctionWrapHandler,
    StringConstraints,
    model_serializer,
)
from pydantic.alias_generators import to_camel


def _utc(instant: datetime) -> datetime:
    if instant.tzinfo is None:
        raise ValueError("must have a time zone")
    return instant if instant.tzinfo is UTC else instant.astimezone(UTC)


@functools.lru_cache(maxsize=4096)  # each row repeats the same few times
def rfc3339(instant: datetime) -> str:
    """Format a time as RFC 3339 in UTC with microseconds. The order of such texts is the order of the times."""
    return _utc(instant).isoformat(timespec="microseconds").removesuffix("+00:00") + "Z"


def milliseconds(instant: datetime) -> int:
    """Convert a time to milliseconds since 1970 (Unix time)."""
    return int(instant.timestamp() * 1000)


Instant = Annotated[datetime, AfterValidator(_utc), PlainSerializer(rfc3339, return_type=str, when_used="json")]
"""A time with a time zone, converted to UTC. In JSON: `2026-11-03T10:15:02.000000Z`."""


LONGEST_SENTENCE = 2_000
"""Maximum characters of one sentence for people, such as a reason or a line of a timeline."""


def _cut(text: str, most: int = LONGEST_SENTENCE) -> str:
    return text if len(text) <= most else f"{text[: most - 1]}…"


Sentence = Annotated[str, AfterValidator(_cut)]
"""A sentence for people. A longer text is cut, so that a list of many names cannot overflow a row."""
Sentences = Annotated[str, AfterValidator(functools.partial(_cut, most=3 * LONGEST_SENTENCE))]
"""A text for people, as long as three sentences at most."""


LONGEST_TEXT = 32_768
"""Maximum characters of the longest text in a request: an argument or a variable of a program."""
Word = Annotated[str, StringConstraints(max_length=253, pattern=r"^[!-~]*$")]
"""A name in Kubernetes, AWS or the site: printable ASCII without spaces. Kubernetes allows 253 characters."""
Image = Annotated[str, StringConstraints(max_length=512, pattern=r"^[!-~]*$")]
"""A container image."""
Line = Annotated[str, StringConstraints(max_length=300, pattern=r"^[^\p{C}]*$")]
"""A line of text in any language, without control characters."""
ProgramText = Annotated[
    str, StringConstraints(max_length=LONGEST_TEXT, pattern=r"^[^\x00-\x08\x0b\x0c\x0e-\x1f\x7f-\x{9f}]*$")
]
"""An argument or a variable of a program. Tab and line ends are its only control characters."""


class Value(BaseModel):
    """A frozen value. Its JSON form has camelCase keys.

    It keeps unknown keys and writes them again. So a row that a newer release wrote loses nothing if this release
    changes it (docs/release.md).
    """

    model_config = ConfigDict(
        frozen=True,
        defer_build=True,  # a function builds the models that it uses, and not the hundreds that it imports
        alias_generator=to_camel,
        populate_by_name=True,
        extra="allow",
        ser_json_inf_nan="null",
    )

    def to_json(self) -> dict[str, Any]:
        """Return the camelCase JSON form of this value."""
        return self.model_dump(mode="json", by_alias=True)

    def to_compact_json(self) -> dict[str, Any]:
        """Return the JSON form for a row that is written often: without fields that are None.

        Reading such a row gives an equal value, because the default of a field that may be None is None.
        """
        return self.model_dump(mode="json", by_alias=True, exclude_none=True)

    def __deepcopy__(self, memo: dict[int, Any] | None = None) -> Self:
        """Return this value: it is frozen. Pydantic copies a default for each new object."""
        return self

    def replace(self, **changes: Any) -> Self:
        """Return a copy with some fields changed, validated again. It keeps the unknown keys of this value.

        Raises:
            TypeError: A name is not a field. Reading keeps unknown names, but code must not pass one.
        """
        self._check_names(changes)
        fields = {name: getattr(self, name) for name in type(self).model_fields}
        return type(self).model_validate({**(self.__pydantic_extra__ or {}), **fields, **changes}, extra="allow")

    def replace_unchecked(self, **changes: Any) -> Self:
        """Return a copy with some fields changed, as `replace` does, without validation of their values.

        For values that a scheduling cycle makes by the thousand.

        Raises:
            TypeError: A name is not a field.
        """
        self._check_names(changes)
        if self.__pydantic_private__ is not None:
            return self.model_copy(update=changes)
        # `model_copy` makes the same copy in three times the time.
        copied = object.__new__(type(self))
        extra = self.__pydantic_extra__
        object.__setattr__(copied, "__dict__", {**self.__dict__, **changes})
        object.__setattr__(copied, "__pydantic_fields_set__", self.__pydantic_fields_set__ | changes.keys())
        object.__setattr__(copied, "__pydantic_extra__", dict(extra) if extra else extra)
        object.__setattr__(copied, "__pydantic_private__", None)
        return copied

    def _check_names(self, changes: Mapping[str, Any]) -> None:
        if not changes.keys() <= self.__pydantic_fields__.keys():
            unknown_names = changes.keys() - self.__pydantic_fields__.keys()
            raise TypeError(f"{type(self).__name__} has no field {', '.join(sorted(unknown_names))}")

    def keeping_unknown(self, earlier: Self) -> Self:
        """Return this value with the unknown keys of its earlier version, also in fields that are values themselves."""
        inner = {
            name: own_value.keeping_unknown(earlier_value)
            for name in type(self).model_fields
            if isinstance(own_value := getattr(self, name), Value)
            and type(own_value) is type(earlier_value := getattr(earlier, name))
        }
        known_values = {name: getattr(self, name) for name in type(self).model_fields}
        return type(self).model_validate({**(earlier.__pydantic_extra__ or {}), **known_values, **inner}, extra="allow")


class StrictValue(Value):
    """A value that refuses unknown keys of a request or a policy, because a misspelled name would have no effect.

    A stored row is read with `extra="allow"`. Then its unknown keys are kept, as in every `Value`.
    """

    model_config = ConfigDict(extra="forbid")

    def model_post_init(self, _context: Any, /) -> None:
        """Drop the empty mapping of unknown keys that `extra="allow"` leaves, so that equal values are equal."""
        if not self.__pydantic_extra__:
            object.__setattr__(self, "__pydantic_extra__", None)

    @model_serializer(mode="wrap")
    def _with_unknown_keys(self, serialize: SerializerFunctionWrapHandler) -> dict[str, Any]:
        document: dict[str, Any] = serialize(self)
        return {**document, **self.__pydantic_extra__} if self.__pydantic_extra__ else document


FieldPath = tuple[str | int, ...]
"""Path of a value in a document: names of fields, and indexes of lists."""
NOT_A_NUMBER = "must be a number, not a boolean"


def booleans_for_numbers(kind: Any, document: Any, path: FieldPath = ()) -> Iterator[FieldPath]:
    """Yield the path of each boolean in a document where its type is a number.

    Pydantic accepts `true` as 1, but a request with `nodes: true` is a mistake.

    Args:
        kind: The type of the document: a model, or the annotation of a field.
        document: The document before its validation.
        path: Path of the document inside a larger one.
    """
    if isinstance(document, bool):
        kinds = {kind, *alternatives(kind)}
        if kinds & {int, float} and bool not in kinds:
            yield path
    elif isinstance(document, Mapping):
        yield from _in_mapping(kind, document, path)
    elif isinstance(document, list | tuple):
        inner = next((get_args(one_kind)[0] for one_kind in alternatives(kind) if get_origin(one_kind) in _LISTS), None)
        for index, item in enumerate(document):
            yield from booleans_for_numbers(inner, item, (*path, index))


def _in_mapping(kind: Any, document: Mapping[Any, Any], path: FieldPath) -> Iterator[FieldPath]:
    models = [part for part in alternatives(kind) if isinstance(part, type) and issubclass(part, BaseModel)]
    values = next((get_args(part)[1] for part in alternatives(kind) if get_origin(part) in (dict, Mapping)), None)
    fields = {
        name: field.annotation
        for known, field in (models[0].model_fields.items() if len(models) == 1 else ())
        for name in (known, field.alias or known)
    }
    for name, item in document.items():
        yield from booleans_for_numbers(fields.get(name, values), item, (*path, str(name)))


_LISTS = (tuple, list, set, frozenset, Sequence)


def alternatives(kind: Any) -> tuple[Any, ...]:
    """Return the members of a union type, without annotations."""
    if get_origin(kind) is Annotated:
        return alternatives(get_args(kind)[0])
    if get_origin(kind) in (Union, UnionType):
        return tuple(alternative for argument in get_args(kind) for alternative in alternatives(argument))
    return (kind,)
