"""Read facts from AWS and the API with the caller's credentials, and from the functions' self-tests. No call writes."""

import json
import threading
from collections.abc import Callable, Mapping
from functools import cached_property, partial, wraps
from typing import TYPE_CHECKING, Any, Protocol, TypeVar

from evenkeel_cli.doctor.deadlines import AWS_SECONDS, SELF_TEST_SECONDS, answers_within
from evenkeel_cli.doctor.findings import CouldNotCheck
from evenkeel_cli.state_signs import count_of
from evenkeel_client.client import ApiClient
from evenkeel_client.context import ApiContext
from evenkeel_client.errors import CommandFailed, Exit

if TYPE_CHECKING:
    from botocore.session import Session

Json = dict[str, Any]

SIGN_IN = "Sign in as for the AWS CLI (aws sso login), or set EVENKEEL_PROFILE."
_ATTACH = "Use an identity with the stack's EvenkeelOnCallPolicy (docs/operate/doctor.md)."
_ALIAS = "live"
"""Alias of the version that queues, schedules and the API call. After a rollback it is not the newest version."""
_INVOKE = "Use an identity that may invoke the functions, or skip the check: --skip access (docs/operate/doctor.md)."
_DENIED = frozenset({"AccessDenied", "AccessDeniedException", "AuthorizationError", "UnauthorizedOperation", "403"})
_BAD_CREDENTIALS = frozenset(
    {
        *("ExpiredToken", "ExpiredTokenException", "InvalidClientTokenId", "UnrecognizedClientException"),
        *("SignatureDoesNotMatch", "InvalidSignatureException", "RequestExpired", "IncompleteSignature"),
    }
)
_NOT_FOUND_CODES = frozenset(
    {"ResourceNotFoundException", "ResourceNotFound", "NotFoundException", "ValidationError", "NotFound", "404"}
)
_NOT_OFFERED = frozenset({"InvalidAction", "UnknownOperationException", "NotImplemented", "UnsupportedOperation"})
_MAX_PARALLEL = 8
"""Maximum number of concurrent self-tests."""
_TEAMS = 50
_NETWORK = "Check the network, the proxy and the region."


class ResourceNotFound(Exception):
    """The requested resource does not exist."""


class BadCredentials(CouldNotCheck):
    """There are no credentials, or AWS does not accept them."""


class AwsCalls(Protocol):
    """Makes calls to the AWS APIs."""

    def call(self, service: str, operation: str, **parameters: Any) -> Json:
        """Return the answer.

        Raises:
            ResourceNotFound: the resource does not exist.
            CouldNotCheck: AWS did not answer, or refused the call.
        """
        ...


class BotocoreAws:
    """Call AWS through botocore with the context's settings. Translates failures into plain messages."""

    def __init__(self, context: ApiContext) -> None:
        self._context = context
        self._clients: dict[str, Any] = {}
        self._lock = threading.Lock()
        self.endpoints: dict[str, str] = {}
        """Service → its endpoint, if that is not the default endpoint."""

    def call(self, service: str, operation: str, **parameters: Any) -> Json:
        from botocore.exceptions import BotoCoreError, ClientError

        operation_name = "".join(word.capitalize() for word in operation.split("_"))
        try:
            answer: Json = getattr(self.client(service), operation)(**parameters)
        except ClientError as error:
            raise _translate_error(service, operation_name, error) from error
        except (BotoCoreError, RuntimeError) as error:
            name = type(error).__name__
            if "Credential" in name or "Token" in name or "SSO" in name or "Profile" in name:
                raise BadCredentials(f"The AWS credentials do not work: {error}", SIGN_IN) from error
            raise CouldNotCheck(f"{service}:{operation_name}: {_no_answer_reason(error)}.", _NETWORK) from error
        if hasattr(answer.get("Payload"), "read"):
            answer["Payload"] = answer["Payload"].read()
        return answer

    def client(self, service: str) -> Any:
        """Return the botocore client of a service."""
        from botocore.config import Config

        with self._lock:
            if service not in self._clients:
                read_timeout = SELF_TEST_SECONDS if service == "lambda" else AWS_SECONDS
                options = Config(
                    connect_timeout=5, read_timeout=read_timeout, retries={"mode": "standard", "total_max_attempts": 2}
                )
                endpoint = self.endpoints.get(service) or self._context.aws_endpoint_url or None
                self._clients[service] = self._session.create_client(
                    service, region_name=self._context.region, endpoint_url=endpoint, config=options
                )
            return self._clients[service]

    @cached_property
    def _session(self) -> "Session":
        from botocore.session import Session

        session = Session(profile=self._context.profile)
        if self._context.key is not None:
            session.set_credentials(self._context.key.access_key_id, self._context.key.secret_access_key)
        return session


def _no_answer_reason(error: Exception) -> str:
    """Return why a call has no answer. Some of these errors contain texts of urllib3 that show Python objects."""
    from botocore.exceptions import BotoCoreError, ConnectTimeoutError, HTTPClientError, ReadTimeoutError, SSLError

    if isinstance(error, (ReadTimeoutError, ConnectTimeoutError)):
        return f"no answer in time from {error.kwargs.get('endpoint_url')}"
    if isinstance(error, SSLError):
        return f"the TLS connection to {error.kwargs.get('endpoint_url')} failed"
    if type(error) is HTTPClientError or not isinstance(error, BotoCoreError):
        return f"the connection failed ({type(error.__context__ or error).__name__})"
    return str(error).rstrip(".")


def _translate_error(service: str, operation: str, error: Any) -> Exception:
    details = error.response.get("Error", {})
    code, text = str(details.get("Code", "")), str(details.get("Message", ""))
    call = f"{service}:{operation}"
    if code in _BAD_CREDENTIALS:
        return BadCredentials(f"AWS does not accept the credentials: {code}: {text}", SIGN_IN)
    if code in _DENIED:
        fix = _INVOKE if operation == "Invoke" else _ATTACH
        return CouldNotCheck(f"Your AWS identity may not call {call}.", fix)
    if code in _NOT_OFFERED:
        return CouldNotCheck(f"This endpoint does not offer {call}.", "docs/operate/doctor.md")
    if code in _NOT_FOUND_CODES or code.endswith(("NotFoundException", "NonExistentQueue")):
        return ResourceNotFound(f"{call}: {code}: {text}")
    return CouldNotCheck(f"{call} failed: {code}: {text}", "Try again in a minute.")


T = TypeVar("T")


class CachedSite(Protocol):
    """A site that caches its answers."""

    lock: threading.Lock
    reading: dict[str, threading.Lock]
    results: dict[str, Any]


S = TypeVar("S", bound=CachedSite)


def read_once(read: Callable[[S], T]) -> Callable[[S], T]:
    """Cache the answer or the error of a method of a site. A slow read delays only callers of the same method."""

    @wraps(read)
    def method(site: S) -> T:
        with site.lock:
            reading = site.reading.setdefault(read.__name__, threading.Lock())
        with reading:
            if read.__name__ not in site.results:
                try:
                    site.results[read.__name__] = read(site)
                except (CouldNotCheck, ResourceNotFound, CommandFailed) as error:
                    site.results[read.__name__] = error
        result: T | Exception = site.results[read.__name__]
        if isinstance(result, Exception):
            raise result
        return result

    return method


class InspectedSite:
    """A stack and its surroundings. Facts that several checks need are read once."""

    def __init__(
        self, aws: AwsCalls, client: ApiClient | None, context: ApiContext, stack: str, rights: "RightsTable"
    ) -> None:
        self.aws = aws
        self.client = client
        self.context = context
        self.stack = stack
        self.rights = rights
        self.lock = threading.Lock()
        self.reading: dict[str, threading.Lock] = {}
        self.results: dict[str, Any] = {}

    # ------------------------------------------------------------ the stack

    def stack_description(self) -> Json:
        """Return the stack as CloudFormation describes it.

        Raises:
            CouldNotCheck: it cannot be described; the check `stack` says why.
        """
        try:
            return self.read_stack()
        except CouldNotCheck as error:
            raise CouldNotCheck(
                "This check needs the description of the stack. See the check `stack`.", error.fix
            ) from error

    @read_once
    def read_stack(self) -> Json:
        """Return the stack as CloudFormation describes it."""
        try:
            stacks: Json = self.aws.call("cloudformation", "describe_stacks", StackName=self.stack)["Stacks"][0]
        except ResourceNotFound:
            text = f"There is no stack {self.stack} in {self.context.region}."
            raise CouldNotCheck(text, "Give its name with --stack, or deploy the stack: docs/deploy.md") from None
        return stacks

    def output(self, name: str) -> str:
        """Return an output of the stack."""
        document = {
            output_row["OutputKey"]: output_row["OutputValue"]
            for output_row in self.stack_description().get("Outputs", ())
        }
        if name not in document:
            raise CouldNotCheck(f"The stack has no output {name}.", "Deploy the stack again: make deploy")
        return str(document[name])

    def parameter(self, name: str) -> str:
        """Return a parameter of the stack; empty if the stack has no such parameter."""
        document = {
            parameter_row["ParameterKey"]: parameter_row.get("ParameterValue", "")
            for parameter_row in self.stack_description().get("Parameters", ())
        }
        return str(document.get(name, ""))

    @read_once
    def resources(self) -> Mapping[str, str]:
        """Return the physical ids of the stack's resources by their logical ids."""
        resources: dict[str, str] = {}
        token: dict[str, str] = {}
        while True:
            page = self.aws.call("cloudformation", "list_stack_resources", StackName=self.stack, **token)
            for summary in page["StackResourceSummaries"]:
                resources[summary["LogicalResourceId"]] = summary.get("PhysicalResourceId", "")
            if not page.get("NextToken"):
                return resources
            token = {"NextToken": page["NextToken"]}

    def clusters(self) -> tuple[str, ...]:
        names = (name.strip() for name in self.parameter("KubernetesClusters").split(","))
        return tuple(name for name in names if name and name != "none")

    def roles(self) -> Mapping[str, str]:
        """Return the role's ARN of each function that calls Kubernetes."""
        pairs = (pair.partition("=") for pair in self.output("KubernetesRoleArns").split(","))
        return {name: arn for name, _, arn in pairs}

    def fleet(self) -> str:
        """Return the fleet's name; empty if it is unknown."""
        try:
            return self.context.name or self.parameter("FleetName")
        except CouldNotCheck:
            return ""

    # ------------------------------------------------------------ the API

    @read_once
    def overview(self) -> Json:
        """Return `GET /overview`.

        Raises:
            CommandFailed: it was refused, or did not answer.
        """
        if self.client is None:
            raise CommandFailed(Exit.USAGE, "No API address is set.", code="NO_CONTEXT", hint="Set EVENKEEL_URL.")
        return self.client.get("/overview")

    def namespaces(self) -> tuple[str, ...]:
        """Return the namespaces in which jobs run: the stack's own, and each team's as far as they can be read."""
        own_namespace = self.parameter("JobNamespace") or "evenkeel-jobs"
        return tuple(dict.fromkeys([own_namespace, *self._read_team_namespaces()[0]]))

    def namespaces_problem(self) -> str:
        """Return why the teams' namespaces are unknown; empty if they are known."""
        return self._read_team_namespaces()[1]

    @read_once
    def _read_team_namespaces(self) -> tuple[tuple[str, ...], str]:
        client = self.client
        if client is None:
            return (), "no API address is known"
        try:
            team_rows = client.get("/teams")["items"]
            # A team that has jobs but no setup has no namespace of its own.
            teams = [team_row["team"] for team_row in team_rows if team_row["weight"] is not None]
            quotas = [client.get(f"/teams/{team}/quota")["team"] for team in teams[:_TEAMS]]
        except CommandFailed as failure:
            return (), failure.text
        limit_text = (
            f"only the first {_TEAMS} of {count_of(len(teams), 'team')} were read" if len(teams) > _TEAMS else ""
        )
        return tuple(name for team_row in quotas if (name := team_row.get("namespace"))), limit_text

    # ------------------------------------------------------------ the functions' self-tests

    @read_once
    def self_tests(self) -> tuple[Mapping[str, Json], Mapping[str, tuple[str, str]]]:
        """Return the answers by function. For a function without an answer, return the reason and the fix."""
        names = [name for name in self.rights.functions_with_access() if name in self.roles()]
        namespaces = self.namespaces()
        calls = [partial(self._run_self_test, name, namespaces) for name in names]
        silent = CouldNotCheck(f"No answer in {SELF_TEST_SECONDS:g} s.", "docs/operate/doctor.md#no-answer")
        test_answers = answers_within(SELF_TEST_SECONDS, calls, _MAX_PARALLEL)
        answers = {name: answer or silent for name, answer in zip(names, test_answers, strict=True)}
        readable_answers = {name: answer for name, answer in answers.items() if isinstance(answer, dict)}
        reasons_and_fixes = {
            name: (answer.reason, answer.fix) for name, answer in answers.items() if isinstance(answer, CouldNotCheck)
        }
        return readable_answers, reasons_and_fixes

    def _run_self_test(self, function: str, namespaces: tuple[str, ...]) -> Json | CouldNotCheck:
        rights = self.rights.rights_of(function, namespaces)
        request = {
            "rights": [right._asdict() for right in rights],
            "readsKueue": function == KUEUE_READER,
            "readsPolicy": function == KUEUE_READER,
        }
        name = f"{self.stack}-{function}"
        try:
            answer = self.aws.call(
                "lambda", "invoke", FunctionName=f"{name}:{_ALIAS}", Payload=json.dumps({"selfTest": request}).encode()
            )
        except ResourceNotFound:
            return CouldNotCheck(f"There is no function {name}.", "Deploy the stack again: make deploy")
        except CouldNotCheck as error:
            return error
        document = json.loads(answer["Payload"] or b"{}")
        if answer.get("FunctionError") or not isinstance(document, dict) or "clusters" not in document:
            message = document.get("errorMessage") or document.get("error") if isinstance(document, dict) else document
            text = f"The self-test of {function} failed: {message or 'no answer'}"
            return CouldNotCheck(text, "docs/runbooks/function-errors.md")
        return document


KUEUE_READER = "schedule_jobs"
"""The function that reads Kueue's objects and the policy, and acts on both."""


class RightsTable(Protocol):
    """The Kubernetes rights that each function needs: the module `offline.access`."""

    def functions_with_access(self) -> tuple[str, ...]: ...

    def groups_of(self, function: str) -> tuple[str, ...]: ...

    def rights_of(self, function: str, namespaces: Any) -> tuple[Any, ...]: ...
