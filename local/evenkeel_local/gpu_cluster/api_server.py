"""The Kubernetes API over HTTP: paths, verbs, bodies, lists and watches."""

from __future__ import annotations

import asyncio
import json
import logging
import ssl
from collections.abc import AsyncIterator, Iterable
from contextvars import ContextVar
from dataclasses import dataclass
from typing import Any, Protocol

import yaml
from aiohttp import web

from evenkeel_local.gpu_cluster import (
    admission,
    catalogue,
    discovery,
    errors,
    exec_session,
    field_table,
    metrics,
    object_schemas,
    patches,
    printers,
    protobuf,
    quantities,
    request_options,
    scale,
    schemas,
    selectors,
    server_side_apply,
)
from evenkeel_local.gpu_cluster.call_faults import ApiCall, CallFailed, CallFaults, ReplyLost
from evenkeel_local.gpu_cluster.catalogue import ResourceCatalogue
from evenkeel_local.gpu_cluster.errors import ApiError, Obj
from evenkeel_local.gpu_cluster.exec_session import Begin
from evenkeel_local.gpu_cluster.identity import User
from evenkeel_local.gpu_cluster.objects import put
from evenkeel_local.gpu_cluster.registry import Registry
from evenkeel_local.gpu_cluster.selectors import Predicate
from evenkeel_local.gpu_cluster.store import ResourceType, ScalePaths, Store, StoreChange, clone, name_of, namespace_of
from evenkeel_local.gpu_cluster.validation import causes

_logger = logging.getLogger(__name__)
_warnings: ContextVar[list[str]] = ContextVar("warnings")
"""Warnings for the answer to the request that this task handles."""

BEAT_SECONDS = 5.0
BOOKMARK_EVERY_BEATS = 6
DEFAULT_WATCH_SECONDS = 1800.0
READABLE_TYPES = frozenset({"application/json", "application/yaml", "application/octet-stream", "text/plain", "*/*"})
ACCOUNT_PREFIX = "system:serviceaccount:"
RETURNED_WHEN_DELETED = (
    *(catalogue.PODS, catalogue.NAMESPACES, catalogue.SERVICES, catalogue.SERVICE_ACCOUNTS),
    *(catalogue.VOLUME_CLAIMS, catalogue.RESOURCE_QUOTAS),
)
"""Kinds whose deletion answers with the object; others answer with a Status (`ReturnDeletedObject`)."""
PODS_STAY = (
    "child pods are preserved by default when jobs are deleted; set propagationPolicy=Background to remove them or set "
    "propagationPolicy=Orphan to suppress this warning"
)
NEVER_DELETED = frozenset({"default", "kube-system", "kube-public"})
PATCH_TYPES = {
    "application/json-patch+json": "json",
    "application/merge-patch+json": "merge",
    "application/strategic-merge-patch+json": "strategic",
    "application/apply-patch+yaml": "apply",
}


@dataclass(frozen=True)
class RequestInfo:
    """The attributes of a request that authorization uses."""

    verb: str
    group: str
    version: str
    plural: str
    namespace: str
    name: str
    subresource: str
    path: str

    @property
    def resource(self) -> str:
        """The resource with its subresource, as rules name it."""
        return f"{self.plural}/{self.subresource}" if self.subresource else self.plural


class Authenticator(Protocol):
    """Identifies callers."""

    async def authenticate(self, authorization: str) -> User | None:
        """Return the user of an Authorization header; None if it is not valid."""


class Authorizer(Protocol):
    """Decides the rights of callers."""

    def refusal(self, user: User, request: RequestInfo) -> str | None:
        """Return why a request is refused; None if it is allowed."""

    def rules(self, user: User, namespace: str) -> Iterable[Obj]:
        """Return the rules of a user in a namespace."""


class Logs(Protocol):
    """Reads the output of containers."""

    def stream(
        self, pod: Obj, container: str, *, follow: bool, previous: bool, timestamps: bool
    ) -> AsyncIterator[bytes]:
        """Yield a container's output."""


class Commands(Protocol):
    """Runs commands in containers."""

    def prepare(self, pod: Obj, name: str, command: list[str], *, tty: bool, stdin: bool) -> Begin:
        """Return a function that starts a command in a container."""


class ApiServer:
    """Answers as kube-apiserver does, for the paths that this cluster has."""

    def __init__(
        self,
        registry: Registry,
        authenticator: Authenticator,
        authorizer: Authorizer,
        logs: Logs,
        commands: Commands,
        metrics_server: metrics.MetricsServer,
        faults: CallFaults,
    ) -> None:
        self._registry = registry
        self._store: Store = registry.store
        self._types: ResourceCatalogue = registry.types
        self._authenticator = authenticator
        self._authorizer = authorizer
        self._logs = logs
        self._commands = commands
        self._metrics = metrics_server
        self._faults = faults
        self._watches: set[asyncio.Task[Any]] = set()

    def drop_watches(self) -> int:
        """Drop every open watch, as a restart of an API server does; return their number."""
        open_now = list(self._watches)
        for task in open_now:
            task.cancel()
        return len(open_now)

    async def handle(self, http: web.Request) -> web.StreamResponse:
        """Answer one request."""
        _warnings.set([])
        try:
            answer = await self._answer(http)
            for warning in _warnings.get():
                answer.headers.add("Warning", f"299 - {json.dumps(warning)}")
        except ApiError as refusal:
            return web.json_response(refusal.status(), status=refusal.code, headers=refusal.headers)
        except ReplyLost:
            if http.transport is not None:
                http.transport.abort()
            return web.Response(status=500)
        except Exception as bug:
            _logger.exception("a request could not be answered")
            internal_error = ApiError(500, "InternalError", f"Internal error occurred: {bug!r}")
            return web.json_response(internal_error.status(), status=500)
        else:
            return answer

    async def _answer(self, http: web.Request) -> web.StreamResponse:
        user = await self._authenticator.authenticate(http.headers.get("Authorization", ""))
        if user is None:
            raise errors.unauthorized()
        user = self._impersonated(http, user)
        document = discovery.discovery_document(http.path, http.headers.get("Accept", ""), self._types)
        if document is not None:
            body, content_type = document
            return web.Response(body=body, content_type=content_type)
        request = self._parse(http)
        refusal = self._authorizer.refusal(user, request)
        if refusal is not None:
            raise errors.forbidden(request.group, request.plural, request.name, refusal)
        review = await self._review(http, user, request)
        if review is not None:
            return review
        if request.group == metrics.GROUP:
            return self._metrics_response(request)
        rt = self._types.find(request.group, request.version, request.plural)
        if rt is None:
            raise errors.no_such_path()
        call = ApiCall("kubernetes", f"{request.verb} {request.resource}", request.name, user.name)
        try:
            await self._faults.before(call)
        except CallFailed as failure:
            fault = failure.fault
            if fault.effect == "throttle":
                message = "The server has received too many requests and has asked us to try again later"
                raise errors.too_many_requests(message, None, 1) from None
            raise ApiError(fault.status, fault.code, fault.message) from None
        form = request_options.media_type(http, request.subresource)
        answer = await self._dispatch(http, rt, request, user, call)
        self._faults.after(call)
        if (
            form == request_options.YAML
            and isinstance(answer, web.Response)
            and answer.content_type == request_options.JSON
        ):
            yaml_text = yaml.safe_dump(json.loads(answer.text or "null"))
            return web.Response(text=yaml_text, status=answer.status, content_type=request_options.YAML)
        return answer

    def _impersonated(self, http: web.Request, user: User) -> User:
        """Return the user that the request impersonates. Refuse it if the caller may not impersonate that user."""
        name, groups = http.headers.get("Impersonate-User"), http.headers.getall("Impersonate-Group", [])
        if not name:
            if groups:
                raise errors.bad_request("requested groups without a user to impersonate")
            return user
        account = name.split(":") if name.startswith(ACCOUNT_PREFIX) else []
        if len(account) == 4:
            subjects = [("serviceaccounts", account[2], account[3])]
            groups = groups or ["system:serviceaccounts", f"system:serviceaccounts:{account[2]}"]
        else:
            subjects = [("users", "", name)]
        for plural, namespace, subject in [*subjects, *(("groups", "", group) for group in groups if not account)]:
            request_info = RequestInfo("impersonate", "", "v1", plural, namespace, subject, "", http.path)
            if (refusal := self._authorizer.refusal(user, request_info)) is not None:
                raise errors.forbidden("", plural, subject, refusal)
        return User(name, tuple(dict.fromkeys([*groups, "system:authenticated"])))

    def _metrics_response(self, request: RequestInfo) -> web.Response:
        """Answer a request to the metrics API. Its objects are measured, not stored."""
        if request.verb not in ("get", "list") or request.plural not in ("pods", "nodes"):
            raise errors.no_such_path()
        is_pods = request.plural == "pods"
        items = self._metrics.pods(request.namespace or None) if is_pods else self._metrics.nodes()
        if not request.name:
            kind = "PodMetricsList" if is_pods else "NodeMetricsList"
            version = f"{metrics.GROUP}/{metrics.VERSION}"
            return web.json_response({"kind": kind, "apiVersion": version, "metadata": {}, "items": items})
        for item in items:
            if name_of(item) == request.name:
                return web.json_response(item)
        raise errors.not_found(metrics.GROUP, request.plural, request.name)

    # Reading the request

    def _parse(self, http: web.Request) -> RequestInfo:
        parts = [segment for segment in http.path.split("/") if segment]
        if parts[:2] == ["api", "v1"]:
            group, version, segments = "", "v1", parts[2:]
        elif len(parts) >= 3 and parts[0] == "apis":
            group, version, segments = parts[1], parts[2], parts[3:]
        else:
            raise errors.no_such_path()
        namespace = ""
        if len(segments) >= 3 and segments[0] == "namespaces" and segments[2] not in ("status", "finalize"):
            namespace, segments = segments[1], segments[2:]
        if not segments:
            raise errors.no_such_path()
        plural, name = segments[0], segments[1] if len(segments) > 1 else ""
        subresource = "/".join(segments[2:])
        verb = self._verb(http, name)
        return RequestInfo(verb, group, version, plural, namespace, name, subresource, http.path)

    def _verb(self, http: web.Request, name: str) -> str:
        if http.method in ("GET", "HEAD"):
            if _flag(http, "watch"):
                return "watch"
            return "get" if name else "list"
        if http.method == "DELETE":
            return "delete" if name else "deletecollection"
        return {"POST": "create", "PUT": "update", "PATCH": "patch"}.get(http.method, http.method.lower())

    async def _body(self, http: web.Request) -> Obj:
        raw = await http.read()
        if not raw:
            return {}
        if http.content_type == protobuf.CONTENT_TYPE:
            return protobuf.decode_body(raw)
        if http.content_type not in READABLE_TYPES:
            raise _unknown_format("application/json", "application/yaml", protobuf.CONTENT_TYPE)
        try:
            body = yaml.safe_load(raw) if "yaml" in http.content_type else _read_json(raw)
        except (ValueError, yaml.YAMLError) as error:
            raise errors.bad_request(f"the object provided is unrecognized: {error}") from error
        if not isinstance(body, dict):
            raise errors.bad_request("the object provided is unrecognized (must be of type object)")
        return body

    def _decoded(self, http: web.Request, rt: ResourceType, body: Obj) -> Obj:
        """Decode a body: check types, drop nulls and unknown fields.

        Raises:
            ApiError: 400 for a value of another type, and for unknown fields if the request is strict.
        """
        unknown_fields: list[str] = []
        if (message := field_table.message_of(rt)) is not None:
            try:
                body = field_table.decode_object(message, body, unknown_fields)
            except field_table.DecodingFailed as failure:
                raise errors.bad_request(_decode_error(rt, str(failure))) from failure
        elif not rt.custom:
            body = object_schemas.without_nulls(body)
        elif rt.schema is not None:
            schemas.prune(rt.schema, body, dropped=unknown_fields)
        body.setdefault("metadata", {})
        object_schemas.check_decodes(rt, body)
        self._handle_unknown_fields(http, rt, unknown_fields)
        return body

    def _handle_unknown_fields(self, http: web.Request, rt: ResourceType, unknown_fields: list[str]) -> None:
        message = [f'unknown field "{path}"' for path in unknown_fields]
        directive = request_options.unknown_field_handling(http)
        if message and directive == "Strict":
            strict = f"strict decoding error: {', '.join(message)}"
            if http.method == "PATCH":
                raise errors.invalid("", "", "", [("FieldValueInvalid", "patch", f"Invalid value: {strict}")])
            raise errors.bad_request(_decode_error(rt, strict))
        if message and directive == "Warn":
            _warnings.get().extend(message)

    # Verbs

    async def _dispatch(
        self, http: web.Request, rt: ResourceType, request: RequestInfo, user: User, call: ApiCall
    ) -> web.StreamResponse:
        if not rt.namespaced and request.namespace and rt.key != catalogue.NAMESPACES.key:
            raise errors.no_such_path()
        if request.subresource:
            return await self._subresource(http, rt, request, user)
        if request.verb == "list":
            return self._list(http, rt, request)
        if request.verb == "watch":
            return await self._watch(http, rt, request, call)
        if request.verb == "get":
            return self._object_response(http, rt, self._store.get(rt, request.namespace, request.name))
        if request.verb == "create" and not request.name:
            return await self._create(http, rt, request)
        if request.verb == "update":
            return await self._update(http, rt, request, "")
        if request.verb == "patch":
            return await self._patch(http, rt, request, "")
        if request.verb == "delete":
            return await self._delete(http, rt, request)
        if request.verb == "deletecollection" and rt.key != catalogue.NAMESPACES.key:
            return await self._delete_all(http, rt, request)
        raise ApiError(405, "MethodNotAllowed", "the server does not allow this method on the requested resource")

    async def _create(self, http: web.Request, rt: ResourceType, request: RequestInfo) -> web.Response:
        body = self._decoded(http, rt, await self._body(http))
        namespace = self._namespace(rt, request)
        manager = request_options.field_manager(http)
        server_side_apply.track_write(rt, body, None, manager, "")
        created_object = self._registry.create(rt, namespace, body, dry_run=request_options.is_dry_run(http))
        return self._object_response(http, rt, created_object, 201)

    async def _update(
        self, http: web.Request, rt: ResourceType, request: RequestInfo, subresource: str
    ) -> web.Response:
        body = self._decoded(http, rt, await self._body(http))
        metadata = body["metadata"]
        _check_names(request, {**metadata, "name": metadata.get("name", request.name)})
        metadata["name"] = request.name
        if rt.namespaced:
            metadata["namespace"] = self._namespace(rt, request)
        old = self._store.get(rt, request.namespace, request.name)
        self._registry.check_replacement(rt, body, old)
        server_side_apply.track_write(rt, body, old, request_options.field_manager(http), subresource)
        stored_object = self._registry.update(
            rt, body, subresource=subresource, dry_run=request_options.is_dry_run(http)
        )
        return self._object_response(http, rt, stored_object)

    async def _patch(self, http: web.Request, rt: ResourceType, request: RequestInfo, subresource: str) -> web.Response:
        kind = self._patch_type(http, ("json", "merge", "apply") if rt.custom else tuple(PATCH_TYPES.values()))
        if kind != "apply" and "force" in http.query:
            cause = causes.forbidden("force", "may not be specified for non-apply patch")
            raise errors.invalid("meta.k8s.io", "PatchOptions", "", [cause])
        raw = await http.read()
        dry_run = request_options.is_dry_run(http)
        if kind == "apply":
            return self._apply(http, rt, request, subresource, raw, dry_run)
        old = self._store.get(rt, request.namespace, request.name)
        new = self._decoded(http, rt, self._patched(rt, old, raw, kind, request))
        _check_names(request, new["metadata"])
        if rt.namespaced:
            new["metadata"]["namespace"] = request.namespace
        server_side_apply.track_write(rt, new, old, request_options.field_manager(http), subresource)
        stored_object = self._registry.update(rt, new, subresource=subresource, dry_run=dry_run)
        return self._object_response(http, rt, stored_object)

    def _patch_type(self, http: web.Request, accepted_types: tuple[str, ...]) -> str:
        kind = PATCH_TYPES.get(http.content_type, "")
        if kind not in accepted_types:
            raise _unknown_format(
                *(name for name, format_accepted in PATCH_TYPES.items() if format_accepted in accepted_types)
            )
        return kind

    def _patched(self, rt: ResourceType, old: Obj, raw: bytes, kind: str, request: RequestInfo) -> Obj:
        try:
            patch = _read_json(raw)
        except ValueError as error:
            raise errors.bad_request(f"error decoding patch: {error}") from error
        try:
            if kind == "json":
                new = patches.json_patch(old, patch)
            elif kind == "merge":
                if not isinstance(patch, dict):
                    raise errors.bad_request("a merge patch must be an object")
                new = patches.merge_patch(old, patch)
            else:
                new = patches.strategic_patch(old, patch, rt.kind)
        except patches.PatchFailed as failure:
            message = "the server rejected our request due to an error in our request"
            raise ApiError(422, "Invalid", message, {}) from failure
        if not isinstance(new, dict) or not isinstance(new.get("metadata"), dict):
            raise errors.bad_request("the patch leaves no object")
        return new

    def _apply(
        self, http: web.Request, rt: ResourceType, request: RequestInfo, subresource: str, raw: bytes, dry_run: bool
    ) -> web.Response:
        manager = http.query.get("fieldManager", "")
        if not manager:
            cause = causes.required("fieldManager", "is required for apply patch")
            raise errors.invalid("meta.k8s.io", "PatchOptions", "", [cause])
        try:
            config = yaml.safe_load(raw)
        except yaml.YAMLError as error:
            raise errors.bad_request(f"error decoding YAML: {error}") from error
        if not isinstance(config, dict):
            raise errors.bad_request("the applied configuration must be an object")
        config = self._check_applied_fields(rt, request, config)
        if config.get("apiVersion") != rt.api_version or config.get("kind") != rt.kind:
            message = f"the applied configuration must be of apiVersion {rt.api_version} and kind {rt.kind}"
            raise errors.bad_request(message)
        if config["metadata"].get("managedFields"):
            raise errors.bad_request("metadata.managedFields must be nil")
        force = _flag(http, "force")
        namespace = self._namespace(rt, request)
        config.setdefault("metadata", {}).setdefault("name", request.name)
        old = self._store.find(rt.key, namespace if rt.namespaced else "", request.name)
        if old is None:
            if (config["metadata"]).get("uid") or config["metadata"].get("resourceVersion"):
                raise errors.conflict(rt.group, rt.plural, request.name, "the object does not exist")
            new = clone(config)
            server_side_apply.record_ownership(rt, new, config, manager, subresource)
            return self._object_response(http, rt, self._registry.create(rt, namespace, new, dry_run=dry_run), 201)
        if rt.namespaced:
            config["metadata"]["namespace"] = namespace
        new = server_side_apply.apply_configuration(rt, old, config, manager, force, subresource)
        return self._object_response(http, rt, self._registry.update(rt, new, subresource=subresource, dry_run=dry_run))

    def _check_applied_fields(self, rt: ResourceType, request: RequestInfo, config: Obj) -> Obj:
        """Decode an applied configuration. Unknown fields are an error, regardless of `fieldValidation`."""
        unknown_fields: list[str] = []
        if (message := field_table.message_of(rt)) is not None:
            try:
                config = field_table.decode_object(message, config, unknown_fields)
            except field_table.DecodingFailed as failure:
                unknown_fields.append(str(failure))
        if unknown_fields:
            where = "/".join(filter(None, (request.namespace, request.name)))
            text = f".{unknown_fields[0]}: field not declared in schema"
            kind = f"{rt.group}/{rt.version}, Kind={rt.kind}"
            raise ApiError(500, "", f"failed to create typed patch object ({where}; {kind}): {text}")
        config.setdefault("metadata", {})
        object_schemas.check_decodes(rt, config)
        return config

    async def _delete(self, http: web.Request, rt: ResourceType, request: RequestInfo) -> web.Response:
        deletion = request_options.deletion_options(http, await self._body(http))
        self._warn_of_orphans(rt, deletion)
        if rt.key == catalogue.NAMESPACES.key and request.name in NEVER_DELETED:
            raise errors.forbidden("", "namespaces", request.name, "this namespace may not be deleted")
        dry_run = request_options.is_dry_run(http, deletion)
        last_object, done = self._registry.delete(rt, request.namespace, request.name, deletion, dry_run=dry_run)
        if done and rt not in RETURNED_WHEN_DELETED:
            details = {"name": name_of(last_object), "kind": rt.plural, "uid": last_object["metadata"]["uid"]}
            put(details, "group", rt.group)
            return web.json_response(errors.success(details=details))
        return self._object_response(http, rt, last_object)

    def _warn_of_orphans(self, rt: ResourceType, options: Obj) -> None:
        if rt.key in admission.ORPHANING and not options.get("propagationPolicy") and "orphanDependents" not in options:
            _warnings.get().append(PODS_STAY)

    async def _delete_all(self, http: web.Request, rt: ResourceType, request: RequestInfo) -> web.Response:
        deletion = request_options.deletion_options(http, await self._body(http))
        self._warn_of_orphans(rt, deletion)
        chosen_objects = self._select(http, rt, request)
        dry_run = request_options.is_dry_run(http, deletion)
        for obj in chosen_objects:
            self._registry.delete(rt, namespace_of(obj), name_of(obj), deletion, dry_run=dry_run)
        return self._items(http, rt, chosen_objects, self._store.revision, None, 0)

    # Subresources

    async def _subresource(
        self, http: web.Request, rt: ResourceType, request: RequestInfo, user: User
    ) -> web.StreamResponse:
        sub = request.subresource
        if sub == "status" and rt.has_status:
            if request.verb == "get":
                return self._object_response(http, rt, self._store.get(rt, request.namespace, request.name))
            if request.verb == "update":
                return await self._update(http, rt, request, "status")
            if request.verb == "patch":
                return await self._patch(http, rt, request, "status")
        if sub == "scale" and rt.scale is not None and request.verb in ("get", "update", "patch"):
            return await self._scale(http, rt, rt.scale, request)
        if rt.key == catalogue.PODS.key and sub == "eviction" and request.verb == "create":
            body = await self._body(http)
            self._registry.evict(request.namespace, request.name, body, dry_run=request_options.is_dry_run(http))
            return web.json_response(errors.success(code=201), status=201)
        if rt.key == catalogue.PODS.key and sub == "log" and request.verb == "get":
            return await self._serve_log(http, request)
        if rt.key == catalogue.PODS.key and sub == "exec" and request.verb in ("get", "create"):
            return await self._exec(http, request)
        if rt.key == catalogue.PODS.key and sub == "binding" and request.verb == "create":
            return await self._bind(http, request)
        if rt.key == catalogue.NAMESPACES.key and sub == "finalize" and request.verb == "update":
            return await self._finalize(http, request)
        if rt.key == catalogue.SERVICE_ACCOUNTS.key and sub == "token":
            raise errors.forbidden("", "serviceaccounts/token", request.name, "this cluster issues no tokens")
        raise errors.no_such_path()

    async def _scale(
        self, http: web.Request, rt: ResourceType, paths: ScalePaths, request: RequestInfo
    ) -> web.Response:
        # Read the body first: between the read and the write of the object, nothing may await.
        document = await self._body(http) if request.verb == "update" else {}
        patch = await http.read() if request.verb == "patch" else b""
        old = self._store.get(rt, request.namespace, request.name)
        shown = scale.scale_of(paths, old)
        if request.verb == "get":
            return web.json_response(shown)
        if request.verb == "patch":
            kind = self._patch_type(http, ("json", "merge", "strategic"))
            del shown["metadata"]["resourceVersion"]  # only a version in the patch itself is a precondition
            document = self._patched(rt, shown, patch, kind, request)
        new = scale.with_replicas(paths, old, document)
        server_side_apply.track_write(rt, new, old, request_options.field_manager(http), "scale")
        stored_object = self._registry.update(rt, new, dry_run=request_options.is_dry_run(http))
        return web.json_response(scale.scale_of(paths, stored_object))

    async def _bind(self, http: web.Request, request: RequestInfo) -> web.Response:
        body = await self._body(http)
        node = str((body.get("target") or {}).get("name") or "")
        pod = self._store.get(catalogue.PODS, request.namespace, request.name)
        if not node:
            raise errors.invalid("", "Binding", request.name, [causes.required("target.name")])
        if node_name := pod["spec"].get("nodeName"):
            message = f'pod {request.name} is already assigned to node "{node_name}"'
            raise errors.conflict("", "pods/binding", request.name, message)
        self._registry.change(pod, lambda obj: obj["spec"].update(nodeName=node))
        return web.json_response(errors.success(code=201), status=201)

    async def _finalize(self, http: web.Request, request: RequestInfo) -> web.Response:
        body = self._decoded(http, catalogue.NAMESPACES, await self._body(http))
        old = self._store.get(catalogue.NAMESPACES, "", request.name)
        stated_metadata = body["metadata"]
        self._registry.check_replacement(catalogue.NAMESPACES, body, old)
        if stated_metadata.get("resourceVersion") not in (None, old["metadata"]["resourceVersion"]):
            raise errors.conflict("", "namespaces", request.name)

        def finalize(obj: Obj) -> None:
            obj["spec"]["finalizers"] = (body.get("spec") or {}).get("finalizers") or []
            for field in ("finalizers", "labels", "annotations"):
                if field in stated_metadata:
                    obj["metadata"][field] = stated_metadata[field]

        stored_object = self._registry.change(old, finalize)
        return self._object_response(http, catalogue.NAMESPACES, stored_object or old)

    async def _exec(self, http: web.Request, request: RequestInfo) -> web.StreamResponse:
        pod = self._store.get(catalogue.PODS, request.namespace, request.name)
        container, command = self._container(http, pod), http.query.getall("command", [])
        if not command:
            raise errors.bad_request("you must specify at least 1 command for the container")
        flags = {name: _flag(http, name) for name in ("tty", "stdin")}
        begin = self._commands.prepare(pod, container, command, **flags)
        if http.headers.get("Upgrade", "").lower() != "websocket":
            raise errors.bad_request("Upgrade request required: this server runs commands over WebSockets alone")
        return await exec_session.serve_session(http, begin)

    def _container(self, http: web.Request, pod: Obj) -> str:
        """Return the container that a request names; by default the pod's only container."""
        containers = [container["name"] for container in pod["spec"]["containers"]]
        container = http.query.get("container") or ""
        if not container:
            if len(containers) > 1:
                message = f"a container name must be specified for pod {name_of(pod)}, choose one of: {containers}"
                raise errors.bad_request(message)
            return str(containers[0])
        if container not in [*containers, *(c["name"] for c in pod["spec"].get("initContainers") or ())]:
            raise errors.bad_request(f"container {container} is not valid for pod {name_of(pod)}")
        return container

    async def _serve_log(self, http: web.Request, request: RequestInfo) -> web.StreamResponse:
        pod = self._store.get(catalogue.PODS, request.namespace, request.name)
        container = self._container(http, pod)
        follow = _flag(http, "follow")
        tail = int(http.query["tailLines"]) if "tailLines" in http.query else None
        limit = int(http.query["limitBytes"]) if "limitBytes" in http.query else None
        previous, timestamps = _flag(http, "previous"), _flag(http, "timestamps")
        source = self._logs.stream(pod, container, follow=follow, previous=previous, timestamps=timestamps)
        response = web.StreamResponse(headers={"Content-Type": "text/plain"})
        first_chunk = await anext(source, b"")
        if tail is not None:
            lines = first_chunk.splitlines(keepends=True)
            first_chunk = b"".join(lines[len(lines) - tail :] if tail else [])
        await response.prepare(http)
        sent_bytes = 0
        try:
            while True:
                if limit is not None:
                    first_chunk = first_chunk[: limit - sent_bytes]
                if first_chunk:
                    await response.write(first_chunk)
                    sent_bytes += len(first_chunk)
                if limit is not None and sent_bytes >= limit:
                    break
                first_chunk = await anext(source)
        except (StopAsyncIteration, ConnectionError):
            pass
        return response

    # Lists and watches

    def _namespace(self, rt: ResourceType, request: RequestInfo) -> str:
        if not rt.namespaced:
            return ""
        if not request.namespace:
            raise errors.bad_request("an empty namespace may not be set during creation")
        return request.namespace

    def _predicate(self, http: web.Request, rt: ResourceType) -> Predicate | None:
        tests: list[Predicate] = []
        if text := http.query.get("labelSelector"):
            tests.append(selectors.label_selector(text))
        if text := http.query.get("fieldSelector"):
            tests.append(selectors.field_selector(text, rt.key))
        return (lambda obj: all(test(obj) for test in tests)) if tests else None

    def _select(self, http: web.Request, rt: ResourceType, request: RequestInfo) -> list[Obj]:
        namespace = request.namespace if rt.namespaced and request.namespace else None
        objects = self._store.all(rt.key, namespace)
        predicate = self._predicate(http, rt)
        return objects if predicate is None else [obj for obj in objects if predicate(obj)]

    def _list(self, http: web.Request, rt: ResourceType, request: RequestInfo) -> web.Response:
        request_options.check_list_options(http)
        try:
            limit = int(http.query.get("limit") or 0)
        except ValueError as error:
            raise errors.bad_request(f"invalid limit: {error}") from error
        token = http.query.get("continue")
        if token:
            objects, revision, continue_token, remaining_count = self._store.take_page(token, limit or 1 << 30)
            return self._items(http, rt, objects, revision, continue_token, remaining_count)
        objects, revision = self._select(http, rt, request), self._store.revision
        continue_token, remaining_count = None, 0
        if limit and len(objects) > limit:
            documents = objects[limit:]
            continue_token, remaining_count = self._store.open_page(documents, revision), len(documents)
            objects = objects[:limit]
        shown_remaining = 0 if http.query.get("labelSelector") or http.query.get("fieldSelector") else remaining_count
        return self._items(http, rt, objects, revision, continue_token, shown_remaining)

    def _items(
        self,
        http: web.Request,
        rt: ResourceType,
        objects: list[Obj],
        revision: int,
        continue_token: str | None,
        remaining_count: int,
    ) -> web.Response:
        metadata: Obj = {"resourceVersion": str(revision)}
        if continue_token:
            metadata["continue"] = continue_token
            if remaining_count:
                metadata["remainingItemCount"] = remaining_count
        if printers.is_table_requested(http.headers.get("Accept", "")):
            include = http.query.get("includeObject", "Metadata")
            table = printers.table_of(rt, objects, metadata, include)
            return web.json_response(table)
        head = json.dumps({"kind": f"{rt.kind}List", "apiVersion": rt.api_version, "metadata": metadata})
        items = b",".join(
            self.encoded(rt, obj) if rt.custom else self._store.encoded_item(rt.key, obj) for obj in objects
        )
        body = head[:-1].encode() + b',"items":[' + items + b"]}\n"
        return web.Response(body=body, content_type="application/json")

    def encoded(self, rt: ResourceType, obj: Obj) -> bytes:
        """Return an object as JSON, in the requested version."""
        if rt.custom and obj.get("apiVersion") != rt.api_version:
            return json.dumps({**obj, "apiVersion": rt.api_version}, separators=(",", ":")).encode()
        return self._store.encoded(rt.key, obj)

    def _object_response(self, http: web.Request, rt: ResourceType, obj: Obj, status: int = 200) -> web.Response:
        if printers.is_table_requested(http.headers.get("Accept", "")):
            include = http.query.get("includeObject", "Metadata")
            metadata = {"resourceVersion": obj["metadata"].get("resourceVersion", "")}
            return web.json_response(printers.table_of(rt, [obj], metadata, include), status=status)
        return web.Response(body=self.encoded(rt, obj) + b"\n", status=status, content_type="application/json")

    async def _watch(
        self, http: web.Request, rt: ResourceType, request: RequestInfo, call: ApiCall
    ) -> web.StreamResponse:
        namespace = request.namespace if rt.namespaced and request.namespace else None
        predicate = self._predicate(http, rt)
        request_options.check_list_options(http)
        if request.name:
            name, inner = request.name, predicate
            predicate = lambda obj: name_of(obj) == name and (inner is None or inner(obj))  # noqa: E731 (a closure)
        try:
            seconds = float(http.query.get("timeoutSeconds") or DEFAULT_WATCH_SECONDS)
            stated_version = http.query.get("resourceVersion") or ""
            since = int(stated_version or 0)
        except ValueError as error:
            raise errors.bad_request(f"invalid watch parameter: {error}") from error
        response = web.StreamResponse(headers={"Content-Type": "application/json"})
        await response.prepare(http)
        task = asyncio.current_task()
        if task is not None:
            self._watches.add(task)
        watch = _Watch(http, rt, call, namespace, predicate, since, _Encoder(self, http, rt))
        try:
            async with asyncio.timeout(seconds):
                await self._send_changes(watch, response)
        except (TimeoutError, ConnectionError):
            pass
        except asyncio.CancelledError:
            if http.transport is not None:
                http.transport.abort()
            if task is None or not task.uncancel():
                return response
            raise
        finally:
            if task is not None:
                self._watches.discard(task)
        return response

    async def _send_changes(self, watch: _Watch, response: web.StreamResponse) -> None:
        """Send the existing objects if the client needs them. Then send each change until the connection ends."""
        since = watch.since
        if watch.sends_existing:
            since = self._store.revision
            if lines := watch.lines_of_existing(self._store.all(watch.rt.key, watch.namespace), since):
                await response.write(b"".join(lines))
        beats = 0
        try:
            if self._drop_watch(watch):
                return
            async for batch in self._store.watch(watch.rt.key, since, BEAT_SECONDS):
                if self._drop_watch(watch):
                    return
                lines = watch.lines_of(batch)
                if batch:
                    since = batch[-1].revision
                else:
                    beats += 1
                if beats >= BOOKMARK_EVERY_BEATS and watch.wants_bookmarks:
                    lines.append(watch.encode.bookmark(since if batch else max(since, self._store.revision)))
                    beats = 0
                if lines:
                    await response.write(b"".join(lines))
                elif watch.is_closing:
                    return
        except ApiError as expired:
            await response.write(json.dumps({"type": "ERROR", "object": expired.status()}).encode() + b"\n")

    def _drop_watch(self, watch: _Watch) -> bool:
        """Drop the connection if a rule drops this watch."""
        if not self._faults.drops_watch(watch.call):
            return False
        if watch.http.transport is not None:
            watch.http.transport.abort()
        return True

    # Access reviews

    async def _review(self, http: web.Request, user: User, request: RequestInfo) -> web.Response | None:
        if request.verb != "create" or request.group not in ("authorization.k8s.io", "authentication.k8s.io"):
            return None
        body = await self._body(http)
        spec = body.get("spec") or {}
        if request.plural == "selfsubjectreviews":
            body["status"] = {"userInfo": {"username": user.name, "groups": list(user.groups)}}
        elif request.plural == "selfsubjectrulesreviews":
            rules = list(self._authorizer.rules(user, spec.get("namespace") or ""))
            body["status"] = {
                "resourceRules": [rule for rule in rules if rule.get("resources")],
                "nonResourceRules": [rule for rule in rules if rule.get("nonResourceURLs")],
                "incomplete": False,
            }
        elif request.plural in ("selfsubjectaccessreviews", "subjectaccessreviews", "localsubjectaccessreviews"):
            if request.plural != "selfsubjectaccessreviews":
                refusal = self._authorizer.refusal(user, request)
                if refusal is not None:
                    raise errors.forbidden(request.group, request.plural, "", refusal)
                user = User(spec.get("user") or "", tuple(spec.get("groups") or ()))
            attributes = spec.get("resourceAttributes") or {}
            attribute_names = ("verb", "group", "version", "namespace", "name", "subresource")
            document = {attribute: attributes.get(attribute, "") for attribute in attribute_names}
            path = (spec.get("nonResourceAttributes") or {}).get("path", "")
            request_info = RequestInfo(**document, plural=attributes.get("resource", ""), path=path)
            body["status"] = {"allowed": self._authorizer.refusal(user, request_info) is None}
        else:
            return None
        body.setdefault("metadata", {})
        return web.json_response(body, status=201)


class _Encoder:
    """Encodes watch events, as objects or as table rows."""

    def __init__(self, server: ApiServer, http: web.Request, rt: ResourceType) -> None:
        self._server = server
        self._rt = rt
        self._as_table = printers.is_table_requested(http.headers.get("Accept", ""))
        self._include = http.query.get("includeObject", "Metadata")

    def event(self, kind: str, obj: Obj) -> bytes:
        if self._as_table:
            metadata = {"resourceVersion": obj["metadata"]["resourceVersion"]}
            body = json.dumps(printers.table_of(self._rt, [obj], metadata, self._include)).encode()
        else:
            body = self._server.encoded(self._rt, obj)
        return b'{"type":"' + kind.encode() + b'","object":' + body + b"}\n"

    def bookmark(self, revision: int, *, initial_end: bool = False) -> bytes:
        metadata: Obj = {"resourceVersion": str(revision), "creationTimestamp": None}
        if initial_end:
            metadata["annotations"] = {"k8s.io/initial-events-end": "true"}
        obj: Obj = {"kind": self._rt.kind, "apiVersion": self._rt.api_version, "metadata": metadata}
        if self._as_table:
            obj = printers.table_of(self._rt, [], {"resourceVersion": str(revision)}, self._include)
        return json.dumps({"type": "BOOKMARK", "object": obj}).encode() + b"\n"


@dataclass(frozen=True)
class _Watch:
    """A watch request: the objects that its client sees, and how they are encoded."""

    http: web.Request
    rt: ResourceType
    call: ApiCall
    namespace: str | None
    """None = all namespaces."""
    predicate: Predicate | None
    since: int
    """The client wants changes after this revision; 0 = it also wants the existing objects."""
    encode: _Encoder

    @property
    def sends_existing(self) -> bool:
        return self.since == 0 or _flag(self.http, "sendInitialEvents")

    @property
    def wants_bookmarks(self) -> bool:
        return _flag(self.http, "allowWatchBookmarks")

    @property
    def is_closing(self) -> bool:
        return self.http.transport is None or self.http.transport.is_closing()

    def lines_of_existing(self, objects: Iterable[Obj], revision: int) -> list[bytes]:
        """Encode the existing objects, with a bookmark at the end if the client asked for initial events."""
        lines = [self.encode.event("ADDED", obj) for obj in objects if self.predicate is None or self.predicate(obj)]
        if _flag(self.http, "sendInitialEvents"):
            lines.append(self.encode.bookmark(revision, initial_end=True))
        return lines

    def lines_of(self, changes: Iterable[StoreChange]) -> list[bytes]:
        """Encode the changes that the client may see."""
        events = (self._filter(change) for change in changes)
        return [self.encode.event(*event) for event in events if event is not None]

    def _filter(self, change: StoreChange) -> tuple[str, Obj] | None:
        """Return the event that this watch gets for a change; None if its selector matches neither version."""
        if self.namespace is not None and change.new["metadata"].get("namespace") != self.namespace:
            return None
        if self.predicate is None:
            return change.kind, change.new
        now = change.kind != "DELETED" and self.predicate(change.new)
        matched_before = change.old is not None and self.predicate(change.old)
        if now:
            return ("MODIFIED" if matched_before else "ADDED"), change.new
        return ("DELETED", change.new) if matched_before else None


def _check_names(request: RequestInfo, metadata: Obj) -> None:
    """Refuse a body whose name or namespace differs from the URL.

    Raises:
        ApiError: 400 for another name or namespace.
    """
    for field, url_value in (("name", request.name), ("namespace", request.namespace)):
        body_value = metadata.get(field) or ""
        if body_value != url_value and (field == "name" or (body_value and url_value)):
            message = f"the {field} of the object ({body_value}) does not match the {field} on the URL ({url_value})"
            raise errors.bad_request(message)


def _flag(http: web.Request, name: str) -> bool:
    return http.query.get(name) in ("true", "1")


def _unknown_format(*supported_formats: str) -> ApiError:
    message = "the body of the request was in an unknown format - accepted media types include: "
    return errors.unsupported_media_type(message + ", ".join(supported_formats))


def _read_json(raw: bytes) -> Any:
    """Parse JSON. Numbers with a fraction keep their text, because they may be quantities."""
    return json.loads(raw, parse_float=quantities.WrittenFloat, parse_constant=_reject_constant)


def _reject_constant(text: str) -> None:
    raise ValueError(f"invalid character in literal: {text}")


def _decode_error(rt: ResourceType, why: str) -> str:
    return f'{rt.kind} in version "{rt.version}" cannot be handled as a {rt.kind}: {why}'


def tls_context(certificate: str, key: str) -> ssl.SSLContext:
    """Return the server's TLS context for the files of a certificate chain and its key."""
    context = ssl.create_default_context(ssl.Purpose.CLIENT_AUTH)
    context.load_cert_chain(certificate, key)
    return context
