"""The errors of a Kubernetes API server: one class, with a `Status` body."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any

Obj = dict[str, Any]


class ApiError(Exception):
    """Raised if the API server refuses a request. `status()` is the body of the response.

    Source: the reasons and codes of `k8s.io/apimachinery/pkg/api/errors`.
    """

    def __init__(
        self,
        code: int,
        reason: str,
        message: str,
        details: Obj | None = None,
        headers: dict[str, str] | None = None,
    ) -> None:
        super().__init__(message)
        self.code = code
        self.reason = reason
        self.message = message
        self.details = details
        self.headers = headers or {}

    def status(self) -> Obj:
        """Return the `Status` object of this failure."""
        body: Obj = {
            "kind": "Status",
            "apiVersion": "v1",
            "metadata": {},
            "status": "Failure",
            "message": self.message,
        }
        if self.reason:
            body["reason"] = self.reason
        if self.details is not None:
            body["details"] = self.details
        body["code"] = self.code
        return body


def success(**more: Any) -> Obj:
    """Return the `Status` object of a success."""
    return {"kind": "Status", "apiVersion": "v1", "metadata": {}, "status": "Success", **more}


def qualified_resource(group: str, plural: str) -> str:
    """Return `plural.group`, or the plural alone for the core group."""
    return f"{plural}.{group}" if group else plural


def _details(group: str, kind: str, name: str) -> Obj:
    return {key: value for key, value in (("name", name), ("group", group), ("kind", kind)) if value}


def not_found(group: str, plural: str, name: str) -> ApiError:
    """Return 404 for an object that does not exist."""
    return ApiError(
        404, "NotFound", f'{qualified_resource(group, plural)} "{name}" not found', _details(group, plural, name)
    )


def no_such_path() -> ApiError:
    """Return 404 for a path that names no resource."""
    return ApiError(404, "NotFound", "the server could not find the requested resource", {})


def already_exists(group: str, plural: str, name: str) -> ApiError:
    """Return 409 for the creation of an object whose name exists."""
    message = f'{qualified_resource(group, plural)} "{name}" already exists'
    return ApiError(409, "AlreadyExists", message, _details(group, plural, name))


def conflict(group: str, plural: str, name: str, why: str | None = None) -> ApiError:
    """Return 409 for a write based on an older version of the object."""
    reason = why or "the object has been modified; please apply your changes to the latest version and try again"
    message = f'Operation cannot be fulfilled on {qualified_resource(group, plural)} "{name}": {reason}'
    return ApiError(409, "Conflict", message, _details(group, plural, name))


def invalid(group: str, kind: str, name: str, causes: Iterable[tuple[str, str, str]]) -> ApiError:
    """Return 422 with one cause for each (reason, field, message)."""
    cause_documents = [{"reason": reason, "message": message, "field": field} for reason, field, message in causes]
    texts = [f"{cause['field']}: {cause['message']}" for cause in cause_documents]
    text = texts[0] if len(texts) == 1 else f"[{', '.join(texts)}]"
    details = _details(group, kind, name)
    details["causes"] = cause_documents
    return ApiError(422, "Invalid", f'{qualified_resource(group, kind)} "{name}" is invalid: {text}', details)


def bad_request(message: str) -> ApiError:
    """Return 400 for a request that cannot be parsed."""
    return ApiError(400, "BadRequest", message)


def forbidden(group: str, plural: str, name: str, why: str) -> ApiError:
    """Return 403 for a caller without the permission."""
    subject = f'{qualified_resource(group, plural)} "{name}"' if name else qualified_resource(group, plural)
    return ApiError(403, "Forbidden", f"{subject} is forbidden: {why}", _details(group, plural, name))


def unauthorized() -> ApiError:
    """Return 401 for a request without a valid identity."""
    return ApiError(401, "Unauthorized", "Unauthorized")


def gone(message: str = "The resourceVersion for the provided watch is too old.") -> ApiError:
    """Return 410 for a resourceVersion or continue token that is older than the stored history."""
    return ApiError(410, "Expired", message)


def unsupported_media_type(message: str) -> ApiError:
    """Return 415 for a patch type that the resource does not support."""
    return ApiError(415, "UnsupportedMediaType", message)


def too_many_requests(message: str, details: Obj | None = None, retry_after: int | None = None) -> ApiError:
    """Return 429. If a disruption budget blocks an eviction, there is no Retry-After."""
    headers = {"Retry-After": str(retry_after)} if retry_after is not None else {}
    return ApiError(429, "TooManyRequests", message, details, headers)
