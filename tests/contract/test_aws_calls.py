"""Every AWS call of the adapters: its request, and the handling of each answer that the service models allow."""

import contextlib
import json
import math
import re
from collections.abc import Mapping
from datetime import datetime
from pathlib import Path
from typing import Any

import boto3
import pytest
from botocore.exceptions import ClientError
from botocore.model import OperationModel

from evenkeel.ports import EvenkeelError, NotAllowed, Refused, Throttled, Unreachable
from evenkeel_local.gpu_cluster import aws_model
from tests import aws_calls, aws_shapes
from tests.aws_calls import ADAPTERS, CASES, Case, Fill, Recorder, name_of

NOT_FOR_EVENKEEL = {
    "lambda:Invoke": (
        *("EFS", "S3Files", "CodeArtifact", "Durable", "Runtime"),  # features that the functions do not use
        *("ModeNotSupported", "NoPublishedVersion", "UnsupportedMediaType"),  # the adapter fixes these parameters
    ),
    "s3:PutObject": ("EncryptionTypeMismatch", "InvalidWriteOffset", "TooManyParts"),  # appending and multipart uploads
    "sns:Publish": ("EndpointDisabled", "PlatformApplicationDisabled"),  # push notifications
    "stepfunctions:ListExecutions": ("StateMachineTypeNotSupported",),  # express workflows
}
"""Prefixes of error codes of features that the adapters do not use."""
COMMON_ERRORS = [
    *((code, 400, Refused) for code in ("MalformedHttpRequestException", "SerializationException", "ParseError")),
    *((code, 400, Refused) for code in ("ValidationError", "InvalidParameterException", "BadRequestException")),
    *((code, 400, Refused) for code in ("InvalidParameterCombination", "InvalidParameterValue", "MissingParameter")),
    *((code, 400, Refused) for code in ("InvalidQueryParameter", "InvalidAction", "MissingAction")),
    ("MalformedQueryString", 404, Refused),
    ("UnknownOperationException", 404, Refused),
    ("RequestEntityTooLargeException", 413, Refused),
    ("PermanentRedirect", 301, Refused),
    *((code, 403, NotAllowed) for code in ("AccessDeniedException", "OptInRequired")),
    *((code, 403, NotAllowed) for code in ("IncompleteSignature", "IncompleteSignatureException")),
    *((code, 403, NotAllowed) for code in ("InvalidSignatureException", "UnrecognizedClientException")),
    *((code, 403, NotAllowed) for code in ("MissingAuthenticationToken", "MissingAuthenticationTokenException")),
    *((code, 403, NotAllowed) for code in ("UnauthorizedOperation", "InvalidAccessKeyId")),
    *((code, 401, NotAllowed) for code in ("NotAuthorized", "AuthFailure")),
    *((code, 400, Unreachable) for code in ("RequestAbortedException", "RequestExpired", "RequestTimeout")),
    *((code, 400, Unreachable) for code in ("ExpiredToken", "ExpiredTokenException", "RequestTimeTooSkewed", "400")),
    ("RequestTimeoutException", 408, Unreachable),
    ("InternalFailure", 500, Unreachable),
    ("ServiceUnavailable", 503, Unreachable),
    ("ThrottlingException", 400, Throttled),
]
"""Errors that every service may send, so no model of an operation lists them.
https://docs.aws.amazon.com/amazondynamodb/latest/APIReference/CommonErrors.html"""
ANSWERS_ERRORS_WITH_VALUES = (
    *("hyperpod.reboot", "hyperpod.replace", "hyperpod.check_health", "autoscaling.terminate"),
    "container_insights.read",
)
"""Calls whose answer tells what an error means, instead of an exception."""
SOURCES = Path(__file__).resolve().parents[2] / "shared" / "evenkeel" / "adapters"


@pytest.mark.parametrize("adapter", ADAPTERS)
def test_requests_equal_their_golden_copies(adapter: str) -> None:
    golden = json.loads(aws_calls.golden_path(adapter).read_text(encoding="utf-8"))

    assert aws_calls.recorded(adapter) == golden, f"a request changed: check it, then run `{aws_calls.UPDATE}`"


@pytest.mark.parametrize("case", CASES, ids=str)
def test_request_to_aws_fits_the_model_of_its_service(case: Case) -> None:
    recorder = Recorder(case.values)
    case.act(recorder.client)

    assert recorder.requests
    for model, request in recorder.requests:
        assert aws_shapes.problems(request, model.input_shape) == []
        aws_model.check_input(model, _as_sent(request))  # patterns and limits that botocore does not check


@pytest.mark.parametrize("fill", Fill)
@pytest.mark.parametrize("case", CASES, ids=str)
def test_adapter_reads_every_response_that_botocore_model_allows(case: Case, fill: Fill) -> None:
    recorder = Recorder(_values_sent(case, fill), fill)

    with contextlib.nullcontext() if fill is Fill.ALL else contextlib.suppress(EvenkeelError):
        case.act(recorder.client)

    assert recorder.requests


@pytest.mark.parametrize("case", CASES, ids=str)
def test_every_error_of_the_aws_model_has_its_own_exception(case: Case) -> None:
    recorder = Recorder(case.values)
    case.act(recorder.client)
    errors = {error: name_of(model) for model, _ in recorder.requests for error in errors_of(model)}
    unknown = []

    for error, operation in sorted(errors.items()):
        recorder.error = error
        try:
            case.act(recorder.client)
        except EvenkeelError:
            continue
        except ClientError:
            unknown.append(f"{operation}: {error}")

    assert unknown == []


@pytest.mark.parametrize("case", CASES, ids=str)
def test_every_common_error_of_aws_has_a_meaning(case: Case) -> None:
    recorder = Recorder(case.values)
    wrong: dict[str, str] = {}

    for code, status, kind in COMMON_ERRORS:
        recorder.error = (code, status)
        try:
            case.act(recorder.client)
        except EvenkeelError as error:
            meaning = type(error).__name__
        else:
            meaning = kind.__name__ if str(case) in ANSWERS_ERRORS_WITH_VALUES else "no error"
        if meaning != kind.__name__:
            wrong[code] = f"{meaning}, expected {kind.__name__}"

    assert wrong == {}


def test_every_aws_operation_of_an_adapter_has_a_golden_case() -> None:
    session: Any = boto3.session.Session("testing", "testing", region_name="us-west-2")
    sources = {path.name: path.read_text(encoding="utf-8") for path in SOURCES.glob("*.py")}
    services = {service for text in sources.values() for service in re.findall(r'aws\.client\("([a-z]+)"', text)}
    spelled = {
        (service, python, name)
        for service in services
        for python, name in session.client(service).meta.method_to_api_mapping.items()
    }
    recorded = {name_of(model) for case in CASES for model, _ in _requests(case)}
    missing = {
        f"{name}: {python}"
        for name, text in sources.items()
        for python in aws_calls.operations_called(text)
        if any(python == spelling for _, spelling, _ in spelled)
        and not any(
            python == spelling and f"{service}:{operation}" in recorded for service, spelling, operation in spelled
        )
    }

    assert missing == set()
    assert len(recorded) >= 30


def errors_of(model: OperationModel) -> list[tuple[str, int]]:
    """Return code and HTTP status of an operation's modelled errors, as the service sends them."""
    described = [(shape, shape.metadata.get("error", {})) for shape in model.error_shapes]
    return [
        (error.get("code") or shape.name, error.get("httpStatusCode") or 400)
        for shape, error in described
        if not shape.name.startswith(NOT_FOR_EVENKEEL.get(name_of(model), ()))
    ]


def _requests(case: Case) -> list[tuple[OperationModel, dict[str, Any]]]:
    recorder = Recorder(case.values)
    case.act(recorder.client)
    return recorder.requests


def _values_sent(case: Case, fill: Fill) -> Mapping[str, Any]:
    is_kept = fill is not Fill.EMPTY
    return {name: value for name, value in case.values.items() if is_kept or not isinstance(value, list)}


def _as_sent(value: Any) -> Any:
    """Return a request with times as numbers, as the JSON protocols send them."""
    match value:
        case dict():
            return {name: _as_sent(inner) for name, inner in value.items()}
        case list() | tuple():
            return [_as_sent(inner) for inner in value]
        case datetime():
            return math.floor(value.timestamp())
    return value
