"""Checks whether a request or an answer fits botocore's service models, enumerations included."""

from collections.abc import Iterator, Mapping
from typing import Any

from botocore.model import ListShape, OperationModel, Shape, StringShape, StructureShape
from botocore.session import get_session
from botocore.validate import ParamValidator

_MISSING = "Missing required"


def operation(service: str, name: str) -> OperationModel:
    """Return the model of an operation by its name in Python: `describe_cluster`."""
    spelled = "".join(word.capitalize() for word in name.split("_"))
    return get_session().get_service_model(service).operation_model(spelled)


def check_exchange(
    service: str, name: str, request: Mapping[str, Any], answer: Mapping[str, Any], newer: str = ""
) -> None:
    """Check that a request, and the answer of a fake, fit the model. A fake answers only what its caller reads.

    Args:
        service: The service, as botocore names it.
        name: The operation, in Python's spelling.
        request: Its parameters.
        answer: Its answer.
        newer: A value in the answer that only a newer API than the model has; empty for none.
    """
    model = operation(service, name)
    assert problems(request, model.input_shape) == []
    differences = problems(answer, model.output_shape, is_partial=True)
    assert [
        difference for difference in differences if not newer or f"is {newer!r}, not one of" not in difference
    ] == []


def problems(value: Any, shape: Shape | None, *, is_partial: bool = False) -> list[str]:
    """Return what does not fit.

    Args:
        value: A request or an answer.
        shape: Its shape; None if the operation has none.
        is_partial: Whether required fields may be missing, as in the answer of a fake.
    """
    if shape is None:
        return [f"nothing is expected, not {value}"] if value else []
    report = ParamValidator().validate(value, shape).generate_report().splitlines()
    return [problem for problem in report if not (is_partial and problem.startswith(_MISSING))] + list(
        _beyond(value, shape, "")
    )


def _beyond(value: Any, shape: Shape, path: str) -> Iterator[str]:
    """Yield unknown fields of answers, and values that an enumeration does not have: botocore checks neither."""
    if isinstance(shape, StructureShape) and isinstance(value, dict):
        for name, inner in value.items():
            if name not in shape.members:
                yield f"{path}.{name} does not exist"
            else:
                yield from _beyond(inner, shape.members[name], f"{path}.{name}")
    elif isinstance(shape, ListShape) and isinstance(value, (list, tuple)):
        for item in value:
            yield from _beyond(item, shape.member, path)
    elif isinstance(shape, StringShape) and shape.enum and value not in shape.enum:
        yield f"{path} is {value!r}, not one of {', '.join(shape.enum)}"
