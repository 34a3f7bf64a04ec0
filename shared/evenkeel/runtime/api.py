"""Shared code of the four API functions: resolver, caller, problem documents (RFC 9457), ETags, idempotency keys."""

import hashlib
import json
import math
import re
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from http import HTTPStatus
from typing import Any, ClassVar, NamedTuple, TypeVar

from aws_lambda_powertools.event_handler import APIGatewayRestResolver, Response
from aws_lambda_powertools.event_handler.exceptions import NotFoundError
from aws_lambda_powertools.utilities.data_classes import APIGatewayProxyEvent
from pydantic import BaseModel, ConfigDict, ValidationError
from pydantic.alias_generators import to_camel

from evenkeel.domain.quotas.teams import identity_of
from evenkeel.domain.values import NOT_A_NUMBER, booleans_for_numbers
from evenkeel.domain.wrong_fields import requirement
from evenkeel.ports import (
    Conflict,
    EvenkeelError,
    Invalid,
    KeyReused,
    NoPolicyInForce,
    NotAllowed,
    NotFound,
    Refused,
    StaleVersion,
    Telemetry,
    Throttled,
    TransientError,
    Unreadable,
)

Json = dict[str, Any]
Reply = Response[Any]

LARGEST_BODY = 64_000
"""Maximum bytes of a request body, in UTF-8."""
_IDEMPOTENCY_KEY = re.compile(r"[\x21-\x7e]{1,128}", re.ASCII)
_ETAG = re.compile(r'(?:W/)?"(\d{1,9})(?:-[0-9a-f]{16})?"', re.ASCII)
"""Matches the ETag of a resource with a version."""
PROBLEM_TYPE = "application/problem+json"


class ProblemKind(NamedTuple):
    """Status, title and hint of one problem code."""

    status: int
    title: str
    hint: str


PROBLEMS: Mapping[str, ProblemKind] = {
    "VALIDATION_FAILED": ProblemKind(400, "The request is not valid", "Correct the fields that `errors` names."),
    "NOT_JSON": ProblemKind(400, "The body is not a JSON object", "Send one JSON object, UTF-8, at most 64 kB."),
    "BAD_PAGE_TOKEN": ProblemKind(400, "Unknown page token", "Start the list again without nextPageToken."),
    "TOO_MANY_TO_SORT": ProblemKind(400, "Too many rows to sort", "Add a filter, for example state, or omit sort."),
    "IDEMPOTENCY_KEY_MISSING": ProblemKind(
        400, "Idempotency-Key is missing", "Send a header Idempotency-Key of 1 to 128 visible ASCII characters."
    ),
    "REFUSED": ProblemKind(400, "The request was refused", "Read the detail; the same request will not succeed."),
    "NOT_ALLOWED": ProblemKind(
        403, "Not allowed", "Ask for the IAM policy that this path needs (docs/api.md lists them)."
    ),
    "NOT_YOUR_TEAM": ProblemKind(
        403,
        "Not your team",
        "Ask a lead or an administrator for a role in the team (evenkeel teams show).",
    ),
    "NOT_FOUND": ProblemKind(404, "Not found", "Check the id. Ended jobs and incidents are kept for 400 days."),
    "NO_SUCH_ROUTE": ProblemKind(404, "No such route", "docs/api.md lists every route."),
    "CONFLICT": ProblemKind(
        409, "Conflicting change", "Read the resource again, then decide whether to repeat the request."
    ),
    "JOB_ENDED": ProblemKind(409, "The job has ended", "An ended job cannot change. Submit it again to run it."),
    "TOO_MANY_OPEN_JOBS": ProblemKind(
        409, "Too many open jobs", "Cancel jobs that are not needed, or submit again when some have ended."
    ),
    "TEAM_IN_USE": ProblemKind(
        409, "The team is in use", "Cancel its jobs, wait until its quota is released, then remove it."
    ),
    "CORDONED_BY_PERSON": ProblemKind(409, "A person cordoned the node", "Ask that person, or run kubectl uncordon."),
    "CORDONED_BY_RECOVERY": ProblemKind(
        409, "A recovery cordoned the node", "Run evenkeel nodes uncordon first, then cordon the node."
    ),
    "ALREADY_ANSWERED": ProblemKind(
        409, "The plan was already answered", "The first answer counts; the detail names it."
    ),
    "PLAN_SUPERSEDED": ProblemKind(
        409,
        "This plan is no longer awaiting approval",
        "Read the incident again. If a newer plan is awaiting approval, answer that one.",
    ),
    "STALE_VERSION": ProblemKind(
        412, "The resource has changed", "Read it again, then send the change with its current ETag."
    ),
    "IDEMPOTENCY_KEY_REUSED": ProblemKind(
        422, "Idempotency-Key was used for another request", "Use a fresh key for a different request."
    ),
    "PRECONDITION_MISSING": ProblemKind(
        428, "If-Match is missing", "Send If-Match with the ETag that you read, or If-None-Match: * to create."
    ),
    "THROTTLED": ProblemKind(429, "Too many requests", "Wait a moment, then send the same request again."),
    "INTERNAL": ProblemKind(500, "Internal error", "Report the requestId; changing requests are safe to repeat."),
    "UNAVAILABLE": ProblemKind(503, "AWS or Kubernetes does not respond", "Send the same request again in a moment."),
}
"""Every code that the API may answer with. docs/api.md lists them; a test compares."""


class FieldError(NamedTuple):
    """A field that is wrong."""

    field: str
    message: str


class ApiProblem(Exception):
    """Ends a request with a problem document."""

    def __init__(self, code: str, detail: str, errors: tuple[FieldError, ...] = ()) -> None:
        super().__init__(detail)
        self.code = code
        self.detail = detail
        self.errors = errors


@dataclass(frozen=True, slots=True)
class ApiCaller:
    """The caller who signed the request."""

    principal: str
    """`role/Name` or `user/name`, with its account if that is not the API's own. It is the same in all sessions."""
    session: str
    arn: str

    @property
    def identity(self) -> str:
        """ARN of the user or role, without a session. Teams name their members in this form."""
        return identity_of(self.arn)

    @property
    def actor(self) -> str:
        """Name of the caller in records: the principal, with the session of an assumed role."""
        return f"{self.principal} ({self.session})" if self.session else self.principal


class Body(BaseModel):
    """A request's body or query: frozen, with camelCase names and without unknown fields."""

    model_config = ConfigDict(
        frozen=True,
        defer_build=True,  # a request uses one of thirty
        alias_generator=to_camel,
        populate_by_name=False,
        extra="forbid",
        str_strip_whitespace=False,
    )

    sources: ClassVar[Mapping[str, tuple[type[BaseModel], str]]] = {}
    """For a derived body: where each field is declared, as a type of the domain and the name of its field."""


B = TypeVar("B", bound=Body)


class Resolver(APIGatewayRestResolver):
    """Routes of one API function. Every failure becomes a problem document."""

    def __init__(self, telemetry: Callable[[], Telemetry]) -> None:
        super().__init__(debug=False)
        self._telemetry = telemetry
        self.not_found(self._no_such_route)
        # A bug is not handled here. The entry wrapper logs it with its stack trace.
        self.exception_handler([ApiProblem, EvenkeelError])(self._error_reply)

    def handle_request(self, event: Json, context: Any) -> Json:
        """Answer one request."""
        return self.resolve(event, context)

    @property
    def proxy_event(self) -> APIGatewayProxyEvent:
        """The event of the current request."""
        event: APIGatewayProxyEvent = self.current_event
        return event

    def parse_body(self, model: type[B]) -> B:
        """Parse the body.

        Raises:
            ApiProblem: The body is not a JSON object, or fields are not valid. The problem names them.
        """
        return _validate(model, self._json_body())

    def parse_query(self, model: type[B]) -> B:
        """Parse the query string.

        Raises:
            ApiProblem: A parameter is unknown, not valid, or given twice. A second value would be ignored silently.
        """
        parameters = self.proxy_event.multi_value_query_string_parameters
        faults = tuple(
            FieldError(name, "is given more than once; separate several values with commas")
            for name, values in parameters.items()
            if len(values) > 1
        )
        self._require_no_faults(faults)
        return _validate(model, dict(self.proxy_event.query_string_parameters or {}))

    def idempotency_key(self) -> str:
        """Return the idempotency key of this request.

        Raises:
            ApiProblem: The key is missing or not valid.
        """
        key = self.proxy_event.headers.get("Idempotency-Key") or ""
        if not _IDEMPOTENCY_KEY.fullmatch(key):
            raise ApiProblem(
                "IDEMPOTENCY_KEY_MISSING",
                "This request changes something, so it needs an Idempotency-Key."
                if not key
                else "The Idempotency-Key must be 1 to 128 visible ASCII characters.",
            )
        return key

    def fingerprint(self) -> str:
        """Return a digest of method, path and content. It detects another request with the same idempotency key."""
        text = json.dumps([self.proxy_event.http_method, self.proxy_event.path, self._json_body()], sort_keys=True)
        return hashlib.sha256(text.encode()).hexdigest()

    def caller(self) -> ApiCaller:
        """Return the caller who signed the request.

        Raises:
            ApiProblem: The request has no identity. The gateway already rejects unsigned requests.
        """
        context = self.proxy_event.request_context
        arn = context.identity.user_arn or ""
        if not arn:
            raise ApiProblem("NOT_ALLOWED", "The request has no AWS identity.")
        return read_caller(arn, own_account=context.account_id or "")

    def expected_version(self) -> int:
        """Return the version that a change expects: the version of the ETag in If-Match, or 0 to create the resource.

        Raises:
            ApiProblem: The request has no precondition, or its ETag is not valid.
        """
        headers = self.proxy_event.headers
        if (headers.get("If-None-Match") or "").strip() == "*":
            return 0
        match = headers.get("If-Match") or ""
        self.require(bool(match.strip()), "PRECONDITION_MISSING", "This change needs If-Match or If-None-Match.")
        tag = _ETAG.fullmatch(match.strip())
        if tag is None:
            raise ApiProblem("STALE_VERSION", f"{match[:80]!r} is not a valid ETag of this resource.")
        return int(tag[1])

    def request_id(self) -> str:
        """Return the durable id of this request: its caller and its idempotency key."""
        return f"{self.caller().principal}#{self.idempotency_key()}"

    def require(self, is_true: bool, code: str, detail: str) -> None:
        """End the request with a problem if a condition is false.

        Raises:
            ApiProblem: The condition is false.
        """
        if not is_true:
            raise ApiProblem(code, detail)

    def _require_no_faults(self, faults: tuple[FieldError, ...]) -> None:
        if faults:
            raise ApiProblem("VALIDATION_FAILED", "; ".join(": ".join(fault) for fault in faults), faults)

    def require_fleet(self, fleet: str, own_fleet: str) -> None:
        """Check that the path names this stack's fleet.

        Raises:
            ApiProblem: The path names another fleet.
        """
        self.require(fleet == own_fleet, "NOT_FOUND", f"This stack serves the fleet {own_fleet}, not {fleet}.")

    def read_reply(self, document: Json, *, undated: tuple[str, ...] = ("asOf",)) -> Reply:
        """Answer a read with an ETag, or with 304 if the caller already has it.

        The ETag covers all fields except `undated`, which change with time alone. If the resource has a version, the
        ETag begins with it, so that a change can send the ETag back.
        """
        compared_fields = {name: value for name, value in document.items() if name not in undated}
        digest = hashlib.sha256(json.dumps(compared_fields, sort_keys=True, default=str).encode()).hexdigest()
        version = f"{document['version']}-" if "version" in document else ""
        tag = f'"{version}{digest[:16]}"'
        headers: Mapping[str, str | list[str]] = {"ETag": tag, "Cache-Control": "no-cache"}
        if_none_match = self.proxy_event.headers.get("If-None-Match") or ""
        if tag in (part.strip().removeprefix("W/") for part in if_none_match.split(",")):
            return Response(status_code=304, headers=dict(headers), body="")
        return _json_reply(200, document, headers)

    def accepted_reply(self, document: Json, location: str) -> Reply:
        """Answer 202: the change was accepted and is not complete yet."""
        return _json_reply(202, document, {"Location": location, "Retry-After": "1"})

    def change_reply(self, document: Json) -> Reply:
        """Answer a change that is complete, with the new ETag if the resource has a version."""
        return _json_reply(200, document, {"ETag": f'"{document["version"]}"'} if "version" in document else {})

    def _json_body(self) -> Json:
        try:
            text = self.proxy_event.decoded_body or ""
        except ValueError as error:
            raise ApiProblem("NOT_JSON", "The body is not text in UTF-8.") from error
        if (size := len(text.encode("utf-8", "surrogatepass"))) > LARGEST_BODY:
            raise ApiProblem("NOT_JSON", f"The body has {size} bytes; at most {LARGEST_BODY} are read.")
        try:
            document = (
                json.loads(text, parse_float=_parse_finite_float, parse_constant=_parse_finite_float)
                if text.strip()
                else {}
            )
            # Evenkeel could store an unpaired surrogate, but could never return it.
            json.dumps(document, ensure_ascii=False).encode()
        except UnicodeEncodeError as error:
            raise ApiProblem("NOT_JSON", "The body contains an unpaired surrogate.") from error
        except ValueError as error:
            raise ApiProblem("NOT_JSON", f"The body cannot be read as JSON: {error}.") from error
        except RecursionError as error:
            raise ApiProblem("NOT_JSON", "The body is nested too deeply.") from error
        if not isinstance(document, dict):
            raise ApiProblem("NOT_JSON", "The body must be a JSON object.")
        return document

    def _no_such_route(self, _error: NotFoundError) -> Reply:
        return self._problem_reply(
            ApiProblem("NO_SUCH_ROUTE", f"{self.proxy_event.http_method} {self.proxy_event.path} does not exist.")
        )

    def _error_reply(self, error: Exception) -> Reply:
        problem = as_problem(error)
        if PROBLEMS[problem.code].status >= 500:
            self._telemetry().warning("RequestFailed", error=type(error).__name__, detail=str(error))
        return self._problem_reply(problem)

    def _problem_reply(self, problem: ApiProblem) -> Reply:
        document = problem_document(problem, self.proxy_event.request_context.request_id or "")
        return _json_reply(document["status"], document, retry_headers(document["status"]), content_type=PROBLEM_TYPE)


def error_reply(error: Exception, request_id: str) -> Json:
    """Return the API Gateway response for an error that no route handled."""
    document = problem_document(as_problem(error), request_id)
    headers = {"Content-Type": PROBLEM_TYPE, **retry_headers(document["status"])}
    return {"statusCode": document["status"], "headers": headers, "body": json.dumps(document)}


def problem_document(problem: ApiProblem, request_id: str) -> Json:
    """Return the body of a problem answer."""
    kind = PROBLEMS[problem.code]
    document: Json = {
        "type": f"urn:evenkeel:problem:{problem.code.lower().replace('_', '-')}",
        "title": kind.title,
        "status": kind.status,
        "code": problem.code,
        "detail": problem.detail,
        "hint": kind.hint,
        "requestId": request_id,
    }
    if problem.errors:
        document["errors"] = [error._asdict() for error in problem.errors]
    return document


def retry_headers(status: int) -> dict[str, str]:
    """Return the header Retry-After, for answers after which a retry helps."""
    return {"Retry-After": "2"} if status in (429, 503) else {}


def as_problem(error: Exception) -> ApiProblem:
    """Convert an error to a problem of the API. An unknown class becomes INTERNAL without its text."""
    match error:
        case ApiProblem():
            return error
        case NotFound():
            return ApiProblem("NOT_FOUND", str(error))
        case Unreadable():
            return ApiProblem("UNAVAILABLE", _unreadable_detail(error))
        case NotAllowed():
            detail = "AWS or Kubernetes denied a call of Evenkeel. An operator must check its role."
            return ApiProblem("UNAVAILABLE", detail)
        case Invalid():
            faults = tuple(FieldError(field, message) for field, message in error.faults)
            return ApiProblem(
                "VALIDATION_FAILED", "; ".join(": ".join(fault) for fault in faults) or str(error), faults
            )
        case KeyReused():
            return ApiProblem("IDEMPOTENCY_KEY_REUSED", str(error))
        case Refused():
            return ApiProblem(_refusal_code(error), str(error))
        case StaleVersion():
            return ApiProblem("STALE_VERSION", str(error))
        case Conflict():
            return ApiProblem("CONFLICT", "The resource changed during this request. Read it again and retry.")
        case Throttled():
            return ApiProblem("THROTTLED", "AWS or Kubernetes is throttling the calls of Evenkeel.")
        case TransientError():
            return ApiProblem("UNAVAILABLE", "AWS or Kubernetes did not respond to Evenkeel.")
        case _:
            return ApiProblem("INTERNAL", "The request could not be answered.")


def _unreadable_detail(error: Unreadable) -> str:
    if isinstance(error, NoPolicyInForce):
        detail = "This release cannot use the policy of the site, so Evenkeel decides nothing."
        return f"{detail} An administrator must apply a valid policy."
    return "A newer release of Evenkeel wrote this record. This release cannot read it."


def _refusal_code(error: Refused) -> str:
    """Return the problem code of a refusal: the class attribute `code`, if it is a known code."""
    code = getattr(error, "code", "REFUSED")
    return code if code in PROBLEMS else "REFUSED"


def read_caller(arn: str, *, own_account: str) -> ApiCaller:
    """Parse a caller's ARN. All sessions of a role are the same principal."""
    segments = arn.split(":", 5)
    account, resource = (segments[4], segments[5]) if len(segments) == 6 else ("", arn)
    kind, _, rest = resource.partition("/")
    session = ""
    if kind == "assumed-role":
        kind, (rest, _, session) = "role", rest.partition("/")
    else:
        # The path of a user belongs to its ARN, not to its name.
        rest = rest.rpartition("/")[2]
    principal = f"{kind}/{rest}" if rest else kind
    return ApiCaller(principal if account == own_account else f"{account}:{principal}", session, arn)


def _validate(model: type[B], document: Json) -> B:
    wrong = tuple(FieldError(_field_path(path), NOT_A_NUMBER) for path in booleans_for_numbers(model, document))[:20]
    if wrong:
        raise ApiProblem("VALIDATION_FAILED", f"{wrong[0].field}: {wrong[0].message}", wrong)
    try:
        return model.model_validate(document)
    except ValidationError as error:
        errors = tuple(
            FieldError(_field_path(fault["loc"]), _field_message(fault, model))
            for fault in error.errors(include_input=False, include_url=False)[:20]
        )
        first_error = errors[0]
        more_text = f" ({len(errors) - 1} more)" if len(errors) > 1 else ""
        raise ApiProblem(
            "VALIDATION_FAILED", f"{first_error.field}: {first_error.message}{more_text}", errors
        ) from error


def _parse_finite_float(text: str) -> float:
    """Parse a number. Infinity and NaN are not JSON, and would be stored as null."""
    value = float(text)
    if not math.isfinite(value):
        raise ValueError(f"{text[:20]} is not a finite number")
    return value


def _field_path(location: tuple[int | str, ...]) -> str:
    text = ""
    for part in location:
        text += f"[{part}]" if isinstance(part, int) else f".{part}" if text else str(part)
    return text or "body"


def _field_message(fault: Any, model: type[BaseModel]) -> str:
    text = requirement(fault, model)
    return text[:1].lower() + text[1:]


def _json_reply(
    status: int, document: Json, headers: Mapping[str, str | list[str]], *, content_type: str = "application/json"
) -> Reply:
    text = json.dumps(document, separators=(",", ":"), ensure_ascii=False)
    return Response(status_code=HTTPStatus(status).value, content_type=content_type, body=text, headers=dict(headers))
