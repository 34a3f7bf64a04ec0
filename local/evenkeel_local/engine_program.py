"""The program of the engine: the pinned ministack, with corrections.

The engine's own interpreter runs it, so it cannot import this project. The corrections:

* Branches of a Parallel state shared one context object. Two branches that opened a task token at the same time got one
  token, and one of them waited for ever. Measured: 5 of 300 executions under load. On AWS each branch has its own
  context. It sees the variables of the outer state, but does not change them.
* The history of an execution did not show the states of a branch. On AWS it does.
* An error that left a handler lost its name, so no Retry matched. It also ended the function's process, so the next
  call was a cold start (measured: 1.7 s instead of 15 ms). On AWS the name and the process stay.
* Every worker unpacked every layer and compiled its imports. Here a layer is unpacked once, with its compiled modules.
* Every worker imported its layer (0.9 s of processor time). Here workers are forks of a process that has imported it,
  unless `PLAIN_WORKERS` is set.
* The first call of a service that the engine lacks read the models of all services (measured: 4 s of a processor). Here
  it reads only their names.
* A process that dies during a call had an error name that AWS does not have. On AWS it is Runtime.ExitError, which
  workflows retry.
* A function that failed under a task token left its state waiting for ever. On AWS the state fails with it.
* Each item of a list was measured leaf by leaf, and each condition was parsed again for each item. In a storm, this
  was a third of the work. Here a condition is parsed once, and items are measured only if a page may be full.
* Every host name and origin was accepted, so a web page could reach the engine through a name that points to 127.0.0.1.
  Here only loopback names are accepted, and no requests of web pages.
* Two hundred simultaneous calls started two hundred processes of a function. Here calls wait if a function has
  `MAX_PARALLEL` processes.
* No record showed which permissions a role uses. Here each request that a role's policy allows is written once to
  `ALLOWED_LOG`.
* A simulation of a policy ignored the context entries of the request. On AWS conditions see them.
* A refusal of DynamoDB did not name the table. On AWS it does, and so shows which statement of a policy is missing.
* CloudFormation did not know versions and aliases of workflows. An execution of a version ran the newest definition. A
  permission for a workflow did not allow a start through an alias, and the qualifier of a function was not part of its
  ARN. Here versions and aliases are as on AWS.
* A test makes a cold start by writing a setting that the function has already. This ended the processes of the newest
  code only. Here it ends the processes of every version; a write that changes a setting does not.
* The SAM transform did not get the parameters of the stack, so no new id published a version of a function. On AWS it
  gets them.
* An update with another description made another REST API, with another URL. On AWS the API keeps its id. Here, too.
* No caller could put events of AWS's own sources. On AWS the services can. Here an IAM user whose name starts with
  `SERVICE_PREFIX` can; other callers are refused, as on AWS.
"""

# ruff: noqa: SLF001 - a correction uses private parts of the engine

import contextvars
import copy
import functools
import hashlib
import importlib.util
import io
import json
import marshal
import os
import re
import subprocess
import tempfile
import threading
import types
import zipfile
from pathlib import Path
from typing import Any
from urllib.parse import urlsplit

from ministack import app
from ministack.core import iam_actions, iam_evaluator, lambda_runtime, router
from ministack.services import cloudformation, dynamodb, eventbridge, iam, lambda_svc, stepfunctions
from ministack.services.cloudformation import provisioners
from samtranslator.translator import transform

Document = dict[str, Any]

MAX_PARALLEL = 4
"""Maximum processes of one function: enough to cause every race, and few enough for two processors."""
PLAIN_WORKERS = "EVENKEEL_ENGINE_PLAIN_WORKERS"
"""Name of an environment variable. If it is set, each function worker imports its layer itself, as on AWS."""
ALLOWED_LOG = "EVENKEEL_ENGINE_ALLOWED_LOG"
"""Name of an environment variable with a file. The engine writes each allowed request to it: role, action, resource."""
SERVICE_PREFIX = "aws-"
FAILURE = "__evenkeel_handler_failure__"
_UNPACKED = b"unpacked:"
_ROLE = re.compile(r":(?:assumed-)?role/([^/]+)")
_BROKEN_MESSAGE = '{"status": "error", "error": str(e), "trace": traceback.format_exc()}'
_MESSAGE_BY_NAME = (
    '{"status": "ok", "result": {"'
    + FAILURE
    + '": {"errorType": type(e).__name__, "errorMessage": str(e), "stackTrace": traceback.format_exc().splitlines()}}}'
)


def run_branch(states: Document, start_at: str, branch_input: Any, execution: Document, outer: Document) -> Any:
    """Run one branch or one Map item to its end, as the engine's main loop runs the state machine."""
    context = {**outer, "variables": dict(outer.get("variables", {}))}
    name: str | None = start_at
    document = copy.deepcopy(branch_input)
    while name:
        state = states[name]
        kind = state["Type"]
        context["State"] = {"Name": name, "EnteredTime": stepfunctions.now_iso(), "RetryCount": 0}
        _add_history_event(execution, f"{kind}StateEntered", "stateEnteredEventDetails", name, input=document)
        if kind == "Fail":
            raise stepfunctions._ExecutionError(*stepfunctions._fail_state_error(state, document, context))
        if kind == "Succeed":
            _add_history_event(execution, "SucceedStateExited", "stateExitedEventDetails", name, output=document)
            return document
        step = getattr(stepfunctions, f"_execute_{kind.lower()}")
        if kind in ("Task", "Parallel", "Map"):
            document, next_state = step(state, document, execution, context)
        else:
            document, next_state = step(state, document, context)
        _add_history_event(execution, f"{kind}StateExited", "stateExitedEventDetails", name, output=document)
        name = next_state
    return document


def _add_history_event(execution: Document, kind: str, details: str, name: str, **document: Any) -> None:
    encoded_fields = {field: json.dumps(value) for field, value in document.items()}
    stepfunctions._add_event(execution, kind, {details: {"name": name, **encoded_fields}})


def keep_error_names() -> None:
    """Keep the name of an error that leaves a handler, and keep the process."""
    script = lambda_runtime._PYTHON_WORKER_SCRIPT
    if script.count(_BROKEN_MESSAGE) != 1:
        message = "this correction does not fit the engine's worker"
        raise RuntimeError(message)
    lambda_runtime._PYTHON_WORKER_SCRIPT = script.replace(_BROKEN_MESSAGE, _MESSAGE_BY_NAME)
    execute = lambda_svc._execute_function_warm

    def execute_and_name(func: Document, event: Any, request_id: str) -> Document:
        result: Document = execute(func, event, request_id)
        body = result.get("body")
        if not isinstance(body, dict):
            return result
        if result.get("error") and _has_died(body):
            return {**result, "body": {**body, "errorType": "Runtime.ExitError"}}
        failure = body.get(FAILURE)
        if failure is None:
            return result
        log = "\n".join(filter(None, [result.get("log", ""), *failure["stackTrace"]]))
        return {"body": failure, "error": True, "log": log}

    lambda_svc._execute_function_warm = execute_and_name


def limit_processes() -> None:
    """Limit the processes of a function. A call waits for one; no function calls another, so no call waits for ever."""
    execute, lock = lambda_svc._execute_function_warm, threading.Lock()
    semaphores: dict[str, threading.Semaphore] = {}

    def execute_serially(func: Document, event: Any, request_id: str) -> Document:
        with lock:
            semaphore = semaphores.setdefault(
                (func.get("config") or func)["FunctionName"], threading.Semaphore(MAX_PARALLEL)
            )
        with semaphore:
            result: Document = execute(func, event, request_id)
        return result

    lambda_svc._execute_function_warm = execute_serially


def _has_died(body: Document) -> bool:
    """Whether the function's process ended during a call or during its start."""
    message = str(body.get("errorMessage"))
    return body.get("errorType") == "Runtime.HandlerError" or message.startswith("Worker process exited immediately")


def fail_waits_with_function() -> None:
    """Fail a state that waits for a token if the function with the token fails."""
    under = threading.local()
    wait, call = stepfunctions._invoke_with_callback, stepfunctions._call_lambda

    def wait_or_fail(resource: str, parameters: Document, token: str, state: Document) -> Any:
        under.token = token
        try:
            return wait(resource, parameters, token, state)
        finally:
            under.token = None

    def call_with_error_details(function: str, event: Any) -> Any:
        try:
            return call(function, event)
        except stepfunctions._ExecutionError as failure:
            wait_entry = stepfunctions._task_tokens.get(getattr(under, "token", None) or "")
            if wait_entry is not None and not wait_entry["event"].is_set():
                wait_entry["error"] = {"Error": failure.error, "Cause": failure.cause}
                wait_entry["event"].set()
            raise

    stepfunctions._invoke_with_callback = wait_or_fail
    stepfunctions._call_lambda = call_with_error_details


class LayerArchive(zipfile.ZipFile):
    """A zip archive. If it represents an unpacked layer, extraction only creates a link to the layer's folder."""

    def extractall(self, path: Any = None, members: Any = None, pwd: Any = None) -> None:
        """Unpack into `path`, or make `path` a link to the unpacked layer."""
        if not self.comment.startswith(_UNPACKED):
            super().extractall(path, members, pwd)
            return
        Path(path).rmdir()
        Path(path).symlink_to(self.comment.removeprefix(_UNPACKED).decode())


def unpacked_layer(data: bytes) -> bytes:
    """Unpack a layer. Return an empty archive that represents it: its comment names the folder."""
    folder = Path(os.environ["TMPDIR"]) / "layers" / hashlib.sha256(data).hexdigest()
    draft = Path(tempfile.mkdtemp(prefix="layer-"))
    with zipfile.ZipFile(io.BytesIO(data)) as layer:
        layer.extractall(draft)
    folder.parent.mkdir(exist_ok=True)
    draft.rename(folder)
    stub = io.BytesIO()
    with zipfile.ZipFile(stub, "w") as archive:
        archive.comment = _UNPACKED + str(folder).encode()
    return stub.getvalue()


def _cached_check(check: Any) -> Any:
    """Return a cached copy of a check of moto.

    Updates pass the tokens as a list, which cannot be a cache key, so it becomes a tuple.
    """
    cached_check = functools.lru_cache(maxsize=1000)(check)
    return lambda tokens, *more: cached_check(tuple(tokens) if isinstance(tokens, list) else tokens, *more)


def speed_up_queries() -> None:
    """Parse each condition only once. Measure the exact size of items only if a page may be full."""
    tokenize, measured = dynamodb._tokenize, dynamodb._paginate_evaluated_items
    dynamodb._tokenize = functools.lru_cache(maxsize=1000)(lambda expression: tuple(tokenize(expression)))
    for check in ("_check_redundant_parens", "_check_reserved_keyword_usage", "_condition_syntax_error"):
        setattr(dynamodb, check, _cached_check(getattr(dynamodb, check)))

    def paginate(items: list[Document], limit: Any, table: Document, index_name: str | None = None) -> Any:
        documents = items if limit is None else items[: int(limit)]
        # This size is never less than the size that DynamoDB counts.
        if sum(len(marshal.dumps(item, 0)) for item in documents) >= dynamodb._DDB_PAGE_SIZE_BYTES:
            return measured(items, limit, table, index_name)
        return list(documents), limit is not None and bool(documents) and len(documents) >= int(limit)

    dynamodb._paginate_evaluated_items = paginate


_AUTHORITY = re.compile(r"[a-z0-9.-]+(:[0-9]{1,5})?", re.ASCII | re.IGNORECASE)
"""A host name with an optional port. `urlsplit` would also accept paths, spaces and tabs."""


def version_workflows() -> None:
    """Publish versions and aliases of workflows by CloudFormation, and run an execution on its version.

    IAM decides about a version or an alias of a workflow by the ARN of the workflow, as on AWS:
    https://docs.aws.amazon.com/step-functions/latest/dg/auth-version-alias.html
    """
    handlers = provisioners._RESOURCE_HANDLERS
    handlers["AWS::StepFunctions::StateMachineVersion"] = {
        "create": _create_version,
        "update": _update_version,
        "update_with_logical_id": True,
        "delete": lambda arn, _properties: stepfunctions._delete_state_machine_version({"stateMachineVersionArn": arn}),
    }
    handlers["AWS::StepFunctions::StateMachineAlias"] = {
        "create": _create_alias,
        "update": _update_alias,
        "delete": lambda arn, _properties: stepfunctions._delete_state_machine_alias({"stateMachineAliasArn": arn}),
    }
    _run_executions_on_their_version()
    _authorize_versions_by_their_workflow()
    _share_the_session_of_a_function()


def _run_executions_on_their_version() -> None:
    start, run = stepfunctions._start_execution, stepfunctions._run_execution
    version_arn: contextvars.ContextVar[str | None] = contextvars.ContextVar("version_arn", default=None)

    def start_version(parameters: Document) -> Any:
        # The thread of the execution gets a copy of this context variable.
        started = version_arn.set(
            stepfunctions._execution_version_arn(str(parameters.get("stateMachineArn", "")).partition("#")[0])
        )
        try:
            return start(parameters)
        finally:
            version_arn.reset(started)

    def run_version(arn: str) -> None:
        execution = stepfunctions._executions.get(arn)
        version = stepfunctions._state_machine_versions.get(version_arn.get())
        if version is None or execution is None:
            run(arn)
            return
        execution["stateMachineVersionArn"] = version["stateMachineVersionArn"]
        machine = execution["stateMachineArn"]
        pinned = {machine: {**stepfunctions._state_machines[machine], **version, "stateMachineArn": machine}}
        types.FunctionType(run.__code__, {**vars(stepfunctions), "_state_machines": pinned})(arn)

    stepfunctions._start_execution, stepfunctions._run_execution = start_version, run_version


def _authorize_versions_by_their_workflow() -> None:
    extract = iam_actions.extract_resource_arn

    def extract_with_qualifier(service: str, *arguments: Any, **named: Any) -> str:
        arn = str(extract(service, *arguments, **named))
        if service == "states" and ":stateMachine:" in arn:
            return ":".join(arn.split(":")[:7])
        return arn

    iam_actions.extract_resource_arn = extract_with_qualifier


def _share_the_session_of_a_function() -> None:
    credentials = lambda_runtime.execution_credentials

    def credentials_of_function(config: Document) -> dict[str, str]:
        """Return the same session for every version of a function. The local GPU cluster derives its key."""
        function = ":".join(str(config.get("FunctionArn", "")).split(":")[:7])
        return dict(credentials({**config, "FunctionArn": function}))

    lambda_runtime.execution_credentials = credentials_of_function


def end_processes_of_every_version() -> None:
    """End the processes of all versions of a function after a write that changes none of its settings."""
    update = lambda_svc._update_config

    def update_and_end(name: str, parameters: Document) -> Any:
        before = dict(lambda_svc._functions[name]["config"]) if name in lambda_svc._functions else {}
        answer = update(name, parameters)
        if answer[0] < 400 and all(before.get(field) == value for field, value in parameters.items()):
            lambda_runtime.invalidate_worker(name)
        return answer

    lambda_svc._update_config = update_and_end


def transform_with_parameters() -> None:
    """Give the SAM transform the values of the stack's parameters, as CloudFormation does."""
    apply, translate = cloudformation.engine._apply_transforms, transform.transform
    values: contextvars.ContextVar[Document] = contextvars.ContextVar("values")

    def apply_with_parameters(template: Document, *arguments: Any) -> Document:
        parameters = [*arguments, None, None][:2]
        resolved = values.set(cloudformation.engine._transform_parameters(template, *parameters))
        try:
            result: Document = apply(template, *arguments)
        finally:
            values.reset(resolved)
        return result

    def translate_with_parameters(template: Document, _parameters: Document, *arguments: Any) -> Any:
        return translate(template, values.get(), *arguments)

    for module in (cloudformation.engine, cloudformation.changesets, cloudformation.handlers):
        module._apply_transforms = apply_with_parameters
    transform.transform = translate_with_parameters


def keep_api_ids() -> None:
    """Import a changed description into the REST API that exists. The engine made another API and deleted the first."""
    apis, handlers = provisioners._apigw_v1, provisioners._RESOURCE_HANDLERS["AWS::ApiGateway::RestApi"]
    update = handlers["update"]

    def update_in_place(api_id: str, old: Document, new: Document, stack: str, logical_id: str = "") -> Any:
        if new.get("Body") == old.get("Body"):
            return update(api_id, old, new, stack, logical_id)
        imported_id, _ = handlers["create"](logical_id or api_id, new, stack)
        apis._rest_apis[api_id] = {**apis._rest_apis.pop(imported_id), "id": api_id}
        for table in (apis._resources, apis._authorizers_v1, apis._models):
            table[api_id] = table.pop(imported_id, {})
        return api_id, provisioners._apigw_rest_api_attrs(api_id)

    handlers["update"] = update_in_place


def _create_version(_logical_id: str, properties: Document, _stack: str) -> tuple[str, Document]:
    document = {"stateMachineArn": properties["StateMachineArn"], "description": properties.get("Description", "")}
    arn = _answer_body(stepfunctions._publish_state_machine_version(document))["stateMachineVersionArn"]
    return arn, {"Arn": arn}


def _update_version(arn: str, old: Document, new: Document, stack: str, logical_id: str = "") -> tuple[str, Document]:
    """Publish a new version if the workflow changed. The template keeps the old one."""
    return (arn, {"Arn": arn}) if old == new else _create_version(logical_id, new, stack)


def _create_alias(_logical_id: str, properties: Document, _stack: str) -> tuple[str, Document]:
    document = {"name": properties["Name"], "routingConfiguration": _routing_list(properties)}
    arn = _answer_body(stepfunctions._create_state_machine_alias(document))["stateMachineAliasArn"]
    return arn, {"Arn": arn}


def _update_alias(arn: str, _old: Document, new: Document, _stack: str) -> tuple[str, Document]:
    _answer_body(
        stepfunctions._update_state_machine_alias(
            {"stateMachineAliasArn": arn, "routingConfiguration": _routing_list(new)}
        )
    )
    return arn, {"Arn": arn}


def _routing_list(properties: Document) -> list[Document]:
    return [{"stateMachineVersionArn": properties["DeploymentPreference"]["StateMachineVersionArn"], "weight": 100}]


def _answer_body(answer: Any) -> Document:
    """Return the body of an answer.

    Raises:
        ValueError: The call failed. CloudFormation then fails the resource with this reason.
    """
    if answer[0] >= 400:
        raise ValueError(f"{answer[2]!r}")
    return dict(json.loads(answer[2]))


def reject_foreign_hosts() -> None:
    """Answer 421 to a request for another host, and 403 to one from another origin."""
    serve = app.app

    async def serve_local_names(scope: Document, receive: Any, send: Any) -> None:
        if scope["type"] == "lifespan":
            await serve(scope, receive, send)
            return
        headers = [(name.lower(), value.decode("latin-1")) for name, value in scope["headers"]]
        hosts = [value for name, value in headers if name in (b"host", b":authority")]
        origins = [value for name, value in headers if name == b"origin"]
        status = 0 if all(map(_is_local, origins)) else 403
        # A target such as `GET http://attacker.example/` names a host too, and has precedence over `Host`.
        has_valid_host = (
            len(hosts) == 1 and _AUTHORITY.fullmatch(hosts[0]) is not None and scope["path"].startswith("/")
        )
        if not has_valid_host or not _is_local(f"//{hosts[0]}"):
            status = 421
        if not status:
            await serve(scope, receive, send)
        elif scope["type"] == "websocket":
            await receive()
            await send({"type": "websocket.close", "code": 1008})
        else:
            await send({"type": "http.response.start", "status": status, "headers": []})
            await send({"type": "http.response.body", "body": b"The engine serves 127.0.0.1 and localhost only.\n"})

    app.app = serve_local_names


def _is_local(url: str) -> bool:
    try:
        parts = urlsplit(url)
        name, _ = parts.hostname, parts.port
    except ValueError:
        return False
    return name in ("127.0.0.1", "localhost") and parts.username is None


def allow_service_events() -> None:
    """Let users with `SERVICE_PREFIX` put events of AWS's own sources."""
    handle, put = eventbridge.handle_request, eventbridge._put_events
    caller: contextvars.ContextVar[str] = contextvars.ContextVar("caller", default="")

    async def handle_for_caller(method: str, path: str, headers: Document, body: Any, query: Any) -> Any:
        key = re.search(r"Credential=([^/]+)/", str(headers.get("authorization", "")))
        user = iam._access_keys.get(key[1], {}).get("UserName", "") if key else ""
        caller.set(user)
        return await handle(method, path, headers, body, query)

    def put_for_caller(data: Document, allow_aws_source: bool = False) -> Any:
        return put(data, allow_aws_source or caller.get().startswith(SERVICE_PREFIX))

    eventbridge.handle_request = handle_for_caller
    eventbridge._put_events = put_for_caller


def simulate_with_context() -> None:
    """Let conditions see the context entries of SimulatePrincipalPolicy."""
    simulate = iam._IAM_HANDLERS["SimulatePrincipalPolicy"]
    evaluate = iam_evaluator.evaluate
    entries_of_context: contextvars.ContextVar[Document] = contextvars.ContextVar("given")

    def simulate_with_entries(parameters: Document) -> Any:
        entries = {}
        for name, key in parameters.items():
            entry, has_context, _ = name.partition(".ContextKeyName")
            if has_context:
                entries[iam._p({"key": key}, "key").lower()] = iam._p(parameters, f"{entry}.ContextKeyValues.member.1")
        entries_of_context.set(entries)
        try:
            return simulate(parameters)
        finally:
            entries_of_context.set({})

    def evaluate_with_entries(context: Any, *policies: Any) -> Any:
        context.service_context.update(entries_of_context.get({}))
        return evaluate(context, *policies)

    iam._IAM_HANDLERS["SimulatePrincipalPolicy"] = simulate_with_entries
    iam_evaluator.evaluate = evaluate_with_entries


def name_refused_tables() -> None:
    """Name the resource in a refusal of DynamoDB."""
    answer = iam_actions.access_denied_response

    def answer_by_name(service: str, action: str, principal: str, *arguments: Any, **options: Any) -> Any:
        resource = str(options.get("resource_arn", ""))
        if service == "dynamodb" and resource.startswith("arn:") and not options.get("message"):
            denies = bool(options.get("explicit_deny"))
            options["message"] = iam_actions.identity_denial_message(action, principal, resource, denies)
        return answer(service, action, principal, *arguments, **options)

    iam_actions.access_denied_response = answer_by_name


def log_allowed_requests(log: Path) -> None:
    """Write each request that a role's policy allows as a line of JSON. A repeated request is written once."""
    evaluate = iam_evaluator.evaluate
    requests = set()

    def evaluate_and_log(context: Any, *policies: Any) -> Any:
        result = evaluate(context, *policies)
        role = _ROLE.search(context.principal_arn)
        if result.decision == "Allow" and role:
            request = (role[1], context.action, context.resource_arn)
            if request not in requests:
                requests.add(request)
                with log.open("a", encoding="utf-8") as lines:
                    lines.write(json.dumps(request) + "\n")
        return result

    iam_evaluator.evaluate = evaluate_and_log


def name_services() -> None:
    """Take the names of services from the folder of their models."""
    botocore = importlib.util.find_spec("botocore")
    if botocore is None or botocore.origin is None:
        message = "the engine has no botocore"
        raise RuntimeError(message)
    models = Path(botocore.origin).parent / "data"
    router._KNOWN_AWS_SERVICE_NAMES = frozenset(model.name for model in models.iterdir() if model.is_dir())


def share_layers() -> None:
    """Share one copy of each layer between all workers."""
    resolve, lock = lambda_svc._resolve_layer_zip, threading.Lock()
    unpacked_layers: dict[bytes, bytes] = {}

    def resolve_once(attachment: Any) -> bytes | None:
        data: bytes | None = resolve(attachment)
        if data is None:
            return None
        with lock:
            if data not in unpacked_layers:
                unpacked_layers[data] = unpacked_layer(data)
        return unpacked_layers[data]

    lambda_svc._resolve_layer_zip = resolve_once
    lambda_runtime.zipfile = types.SimpleNamespace(**{**vars(zipfile), "ZipFile": LayerArchive})


def fork_workers() -> None:
    """Fork the workers of a layer from a process that has imported it."""
    spec = importlib.util.spec_from_file_location("worker_template", Path(__file__).with_name("worker_template.py"))
    if spec is None or spec.loader is None:
        message = f"worker_template.py is not beside {__file__}"
        raise RuntimeError(message)
    worker_template = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(worker_template)
    start = worker_template.WorkerTemplates().start_worker
    lambda_runtime.subprocess = types.SimpleNamespace(**{**vars(subprocess), "Popen": start})


if __name__ == "__main__":
    stepfunctions._run_sub_machine = run_branch
    keep_error_names()
    limit_processes()
    fail_waits_with_function()
    speed_up_queries()
    allow_service_events()
    name_refused_tables()
    simulate_with_context()
    log_allowed_requests(Path(os.environ.pop(ALLOWED_LOG)))
    name_services()
    share_layers()
    version_workflows()
    transform_with_parameters()
    keep_api_ids()
    end_processes_of_every_version()
    if os.environ.pop(PLAIN_WORKERS, None) is None:
        fork_workers()
    reject_foreign_hosts()
    app.main()
