"""Read and validate the parameters of a request.

Source: `k8s.io/apimachinery/pkg/apis/meta/v1/validation` and `pkg/apis/meta/internalversion/validation`.
"""

from __future__ import annotations

from aiohttp import web

from evenkeel_local.gpu_cluster import errors
from evenkeel_local.gpu_cluster.errors import ApiError, Obj
from evenkeel_local.gpu_cluster.validation import causes

GROUP = "meta.k8s.io"
POLICIES = ("Foreground", "Background", "Orphan")
DIRECTIVES = ("Ignore", "Warn", "Strict")
LONGEST_MANAGER = 128
JSON, YAML = "application/json", "application/yaml"
ANSWERS = {JSON: JSON, "application/*": JSON, "*/*": JSON, YAML: YAML}
"""The media type of an answer, by the type that a client accepts."""
OTHER_ANSWERS = frozenset({"log", "exec", "attach", "portforward"})


def options_kind(http: web.Request) -> str:
    """Return the kind of the options of a request."""
    kinds = {"POST": "CreateOptions", "PUT": "UpdateOptions", "PATCH": "PatchOptions"}
    return kinds.get(http.method, "DeleteOptions")


def is_dry_run(http: web.Request, body: Obj | None = None) -> bool:
    """Return whether a request is a dry run.

    Raises:
        ApiError: 422 for another value than `All`.
    """
    stated_values = http.query.getall("dryRun", []) or (body or {}).get("dryRun") or []
    if any(value != "All" for value in stated_values):
        cause = causes.not_supported("dryRun", stated_values, ("All",))
        raise errors.invalid(GROUP, options_kind(http), "", [cause])
    return bool(stated_values)


def field_manager(http: web.Request) -> str:
    """Return the field manager of a writer.

    Raises:
        ApiError: 422 for a name that is too long.
    """
    stated_manager = http.query.get("fieldManager")
    if stated_manager and len(stated_manager) > LONGEST_MANAGER:
        cause = causes.too_long("fieldManager", LONGEST_MANAGER)
        raise errors.invalid(GROUP, options_kind(http), "", [cause])
    return stated_manager or http.headers.get("User-Agent", "unknown").split("/", 1)[0][:128]


def unknown_field_handling(http: web.Request) -> str:
    """Return how to handle unknown fields: Ignore, Warn or Strict.

    Raises:
        ApiError: 422 for another value.
    """
    stated_handling = http.query.get("fieldValidation") or "Warn"
    if stated_handling not in DIRECTIVES:
        cause = causes.not_supported("fieldValidation", stated_handling, ("", *sorted(DIRECTIVES)))
        raise errors.invalid(GROUP, options_kind(http), "", [cause])
    return stated_handling


def deletion_options(http: web.Request, body: Obj) -> Obj:
    """Return the options of a deletion, from its parameters and its body.

    Raises:
        ApiError: 422 for invalid options, 400 for a grace period that is not a number.
    """
    options = dict(body)
    if (grace := http.query.get("gracePeriodSeconds")) is not None:
        try:
            options["gracePeriodSeconds"] = int(grace)
        except ValueError as error:
            raise errors.bad_request(f"invalid gracePeriodSeconds: {error}") from error
    if "propagationPolicy" in http.query:
        options["propagationPolicy"] = http.query["propagationPolicy"]
    if "orphanDependents" in http.query:
        options["orphanDependents"] = http.query["orphanDependents"] in ("true", "1")
    policy, problems = options.get("propagationPolicy"), []
    if policy and options.get("orphanDependents") is not None:
        message = "orphanDependents and deletionPropagation cannot be both set"
        problems.append(causes.invalid("propagationPolicy", policy, message))
    if policy and policy not in POLICIES:
        problems.append(causes.not_supported("propagationPolicy", policy, (*POLICIES, "nil")))
    if problems:
        raise errors.invalid(GROUP, "DeleteOptions", "", problems)
    return options


def check_list_options(http: web.Request) -> None:
    """Refuse contradicting parameters of a list or watch.

    Raises:
        ApiError: 422 for such parameters, 400 for a version with a continue token.
    """
    match, version = http.query.get("resourceVersionMatch") or "", http.query.get("resourceVersion") or ""
    continue_token, is_watch = http.query.get("continue"), http.query.get("watch") in ("true", "1")
    initial, field, problems = http.query.get("sendInitialEvents"), "resourceVersionMatch", []
    if initial is not None and not is_watch:
        problems.append(causes.forbidden("sendInitialEvents", "sendInitialEvents is forbidden for list"))
    if initial is not None and match != "NotOlderThan":
        message = "sendInitialEvents requires setting resourceVersionMatch to NotOlderThan"
        problems.append(causes.forbidden(field, message))
    elif match and initial is None:
        if is_watch:
            problems.append(causes.forbidden(field, "resourceVersionMatch is forbidden for watch"))
        if not version:
            message = "resourceVersionMatch is forbidden unless resourceVersion is provided"
            problems.append(causes.forbidden(field, message))
        if continue_token:
            problems.append(causes.forbidden(field, "resourceVersionMatch is forbidden when continue is provided"))
        if match not in ("Exact", "NotOlderThan"):
            problems.append(causes.not_supported(field, match, ("Exact", "NotOlderThan", "")))
        if match == "Exact" and version == "0":
            message = 'resourceVersionMatch "exact" is forbidden for resourceVersion "0"'
            problems.append(causes.forbidden(field, message))
    if problems:
        raise errors.invalid(GROUP, "ListOptions", "", problems)
    if continue_token and version not in ("", "0"):
        raise errors.bad_request("specifying resource version is not allowed when using continue")


def media_type(http: web.Request, subresource: str) -> str:
    """Return the media type of the answer.

    Raises:
        ApiError: 406 if the client accepts none of the supported types.
    """
    accepted_types = [clause.partition(";")[0].strip() for clause in http.headers.get("Accept", "*/*").split(",")]
    for media in accepted_types:
        if media in ANSWERS:
            return ANSWERS[media]
    if subresource in OTHER_ANSWERS:
        return ""
    raise ApiError(406, "NotAcceptable", f"only the following media types are accepted: {JSON}, {YAML}")
