"""Authentication and authorization of the AWS endpoints, by the engine.

The request is forwarded unchanged, so the engine checks its signature, time and session token. The engine has no
SageMaker: it answers "unsupported service" to a valid signature, and AWS's refusal to a wrong one. For EKS, a missing
cluster means that the signature is valid. The access key then identifies the principal, and `SimulatePrincipalPolicy`
decides about the action and the ARN.
"""

from __future__ import annotations

import hashlib
import re
import time
from collections.abc import Mapping
from dataclasses import dataclass
from types import MappingProxyType
from typing import Protocol

from evenkeel_local.gpu_cluster.aws_model import AwsError
from evenkeel_local.gpu_cluster.engine import EngineClient, EngineClientError, EngineResponse

_CREDENTIAL = re.compile(r"Credential=([^/,\s]+)/")
NO_TAGS: Mapping[str, str] = MappingProxyType({})
IAM_VERSION = "2010-05-08"
UNSUPPORTED = b"Unsupported service"
_ON_GROUPS = ("eks:DescribeNodegroup", "autoscaling:TerminateInstanceInAutoScalingGroup")
FUNCTIONS_PATH = "/2015-03-31/functions/"
HOP_HEADERS = frozenset({"connection", "transfer-encoding", "content-length", "expect", "keep-alive"})


@dataclass(frozen=True)
class Incoming:
    """An HTTP request, unchanged."""

    method: str
    path: str
    headers: dict[str, str]
    body: bytes

    @property
    def access_key(self) -> str:
        """The access key id that the request names, empty when it is not signed."""
        for name, value in self.headers.items():
            if name.lower() == "authorization":
                match = _CREDENTIAL.search(value)
                return match.group(1) if match else ""
        return ""


class AwsAuth(Protocol):
    """Authenticates and authorizes calls to the AWS endpoints."""

    async def check(self, request: Incoming, action: str, resource: str, tags: Mapping[str, str] = NO_TAGS) -> str:
        """Return the caller's ARN, or raise the refusal.

        Args:
            request: The request.
            action: The IAM action.
            resource: ARN of the resource.
            tags: Tags of the resource, which a policy may require.
        """


class NoAuth:
    """Allows every request; for use without an engine."""

    async def check(self, request: Incoming, action: str, resource: str, tags: Mapping[str, str] = NO_TAGS) -> str:
        """Return the access key instead of an ARN."""
        return request.access_key or "anonymous"


class EngineAuth:
    """Lets the engine authenticate and authorize each call."""

    def __init__(self, engine: EngineClient, account: str, region: str, cache_seconds: float) -> None:
        self._engine = engine
        self._account = account
        self._region = region
        self._cache_seconds = cache_seconds
        self._principals: dict[str, str] = {}
        self._decisions: dict[tuple[str, str, str], tuple[float, str]] = {}

    def learn(self, access_key: str, arn: str) -> None:
        """Remember the principal of an access key that signed a Kubernetes token."""
        self._principals[access_key] = arn

    async def check(self, request: Incoming, action: str, resource: str, tags: Mapping[str, str] = NO_TAGS) -> str:
        """Let the engine verify the signature and evaluate the policies.

        Raises:
            AwsError: the signature is missing or wrong, or no policy allows the action.
        """
        if not request.access_key:
            raise AwsError("MissingAuthenticationTokenException", "Missing Authentication Token", 403)
        headers = {name: value for name, value in request.headers.items() if name.lower() not in HOP_HEADERS}
        try:
            answer = await self._engine.forward(request.method, request.path, headers, request.body)
            self._read_signature(answer, action)
            principal = await self._principal(request.access_key)
            await self._decide(principal, action, resource, tags)
        except EngineClientError as failure:
            raise AwsError("ServiceUnavailable", str(failure), 503) from failure
        return principal

    def _read_signature(self, answer: EngineResponse, action: str) -> None:
        """Accept the error "unsupported service": the engine checks the signature first, so the signature is valid.

        The engine knows neither node groups nor Auto Scaling groups, so it may refuse the action itself. `_decide` then
        decides with the ARN and the tags of the group.
        """
        if UNSUPPORTED in answer.body:
            return
        if action.startswith("eks:") and answer.status in (200, 404):
            return
        if action in _ON_GROUPS and f"not authorized to perform: {action}".encode() in answer.body:
            return
        raise _engine_refusal(answer)

    async def _principal(self, access_key: str) -> str:
        if access_key in ("test", self._account):
            return f"arn:aws:iam::{self._account}:root"
        if access_key not in self._principals:
            if access_key.startswith("AKIA"):
                question = {"Action": "GetAccessKeyLastUsed", "AccessKeyId": access_key}
                answer = await self._engine.query("iam", question, IAM_VERSION)
                name = answer.text("UserName")
                if answer.status == 200 and name:
                    self._principals[access_key] = f"arn:aws:iam::{self._account}:user/{name}"
            else:
                await self._learn_functions()
        if access_key not in self._principals:
            text = f"The principal of access key {access_key} is not known to the local cluster. It is not the key of "
            text += "a user or a function, and it has not signed a Kubernetes token yet."
            raise AwsError("UnrecognizedClientException", text, 403)
        return self._principals[access_key]

    async def _learn_functions(self) -> None:
        """Learn the session keys of the engine's functions. The engine derives them from the ARNs of function and role.

        Source: `execution_credentials` in `core/lambda_runtime.py` of the pinned engine.
        """
        marker = ""
        while True:
            answer = await self._engine.get("lambda", FUNCTIONS_PATH + (f"?Marker={marker}" if marker else ""))
            if answer.status != 200:
                raise EngineClientError(f"the cluster may not list functions: {answer.body[:300]!r}")
            page = answer.json()
            for function in page.get("Functions") or ():
                arn, role = function["FunctionArn"], function["Role"]
                digest = hashlib.sha256(f"{arn}:{role}".encode()).hexdigest()
                name = role.rsplit("/", 1)[-1]
                self._principals[f"ASIA{digest[:16].upper()}"] = (
                    f"arn:aws:sts::{self._account}:assumed-role/{name}/{function['FunctionName'][:64]}"
                )
            marker = page.get("NextMarker") or ""
            if not marker:
                return

    async def _decide(self, principal: str, action: str, resource: str, tags: Mapping[str, str]) -> None:
        if principal.endswith(":root"):
            return
        key = (principal, action, resource)
        cached_decision = self._decisions.get(key)
        now = time.monotonic()
        if cached_decision is None or cached_decision[0] < now:
            question = {
                "Action": "SimulatePrincipalPolicy",
                "PolicySourceArn": policy_source(principal),
                "ActionNames.member.1": action,
                "ResourceArns.member.1": resource,
            }
            for number, (tag, value) in enumerate(sorted(tags.items()), start=1):
                entry = f"ContextEntries.member.{number}"
                question[f"{entry}.ContextKeyName"] = f"aws:ResourceTag/{tag}"
                question[f"{entry}.ContextKeyType"] = "string"
                question[f"{entry}.ContextKeyValues.member.1"] = value
            answer = await self._engine.query("iam", question, IAM_VERSION)
            decision = answer.text("EvalDecision")
            if answer.status != 200 or decision is None:
                raise EngineClientError(f"the cluster may not ask about policies: {answer.body[:300]!r}")
            cached_decision = (now + self._cache_seconds, decision)
            self._decisions[key] = cached_decision
        if cached_decision[1] == "allowed":
            return
        why = "with an explicit deny in an identity-based policy"
        if cached_decision[1] != "explicitDeny":
            why = f"because no identity-based policy allows the {action} action"
        message = f"User: {principal} is not authorized to perform: {action} on resource: {resource} {why}"
        raise AwsError("AccessDeniedException", message)


def policy_source(arn: str) -> str:
    """Return the role or user whose policies apply to a principal: for a session, its role."""
    match = re.match(r"^arn:aws:sts::(\d+):assumed-role/([^/]+)/.+$", arn)
    return f"arn:aws:iam::{match.group(1)}:role/{match.group(2)}" if match else arn


def _engine_refusal(answer: EngineResponse) -> AwsError:
    """Return the engine's refusal as an AwsError."""
    body = answer.json()
    code = str(body.get("__type") or body.get("code") or answer.text("Code") or "AccessDeniedException")
    message = str(body.get("message") or body.get("Message") or answer.text("Message") or "")
    return AwsError(code.rsplit("#", 1)[-1], message, answer.status if answer.status >= 400 else 403)
