"""Authentication of the Kubernetes API: EKS tokens, access entries and the admin's static token.

An EKS token is a presigned STS request. The server checks the request, sends it, and uses the identity that STS
returns, as aws-iam-authenticator does. It sends the request to the engine only, even if the token names another host.
"""

from __future__ import annotations

import base64
import binascii
import hmac
import re
import time
from collections.abc import Iterator
from urllib.parse import parse_qs, urlsplit

from evenkeel_local.gpu_cluster.aws_auth import EngineAuth, policy_source
from evenkeel_local.gpu_cluster.config import AccessEntry, AccessPolicy
from evenkeel_local.gpu_cluster.engine import EngineClient, EngineClientError
from evenkeel_local.gpu_cluster.identity import ADMIN, AccessScope, User
from evenkeel_local.gpu_cluster.rbac import ADMIN_VIEW

PREFIX = "k8s-aws-v1."
CLUSTER_HEADER = "x-k8s-aws-id"
CACHE_SECONDS = 30.0
LONGEST_SECONDS = 900
ALLOWED_PARAMETERS = frozenset(
    {
        *("action", "version", "x-amz-algorithm", "x-amz-credential", "x-amz-date", "x-amz-expires"),
        *("x-amz-security-token", "x-amz-signature", "x-amz-signedheaders", "x-amz-user-agent"),
    }
)
ROLES = {
    "AmazonEKSClusterAdminPolicy": "cluster-admin",
    "AmazonEKSAdminPolicy": "admin",
    "AmazonEKSEditPolicy": "edit",
    "AmazonEKSViewPolicy": "view",
    "AmazonEKSAdminViewPolicy": ADMIN_VIEW,
}
"""The cluster role nearest to each EKS access policy."""


class StaticAuthenticator:
    """Accepts the admin's token only; with `open_to_all`, a request without a token is the admin's, too."""

    def __init__(self, admin_token: str, open_to_all: bool = False) -> None:
        self._admin_token = admin_token
        self._open = open_to_all

    async def authenticate(self, authorization: str) -> User | None:
        """Return the admin for the admin's token, or for no token with `open_to_all`."""
        if self._open and not authorization:
            return ADMIN
        token = bearer_token(authorization)
        return ADMIN if token and hmac.compare_digest(token, self._admin_token) else None


class EksAuthenticator:
    """Accepts the admin's token, and IAM principals that have an access entry."""

    def __init__(
        self, admin_token: str, engine: EngineClient, callers: EngineAuth, cluster_name: str, entries: list[AccessEntry]
    ) -> None:
        self._static = StaticAuthenticator(admin_token)
        self._engine = engine
        self._callers = callers
        self._cluster_name = cluster_name
        self._entries = entries
        self._known: dict[str, tuple[float, str]] = {}

    async def authenticate(self, authorization: str) -> User | None:
        """Return the user of an Authorization header; None if it is not valid."""
        user = await self._static.authenticate(authorization)
        if user is not None:
            return user
        token = bearer_token(authorization)
        if not token.startswith(PREFIX):
            return None
        arn = await self._identity(token)
        return None if arn is None else user_of(arn, self._entries)

    async def _identity(self, token: str) -> str | None:
        now = time.monotonic()
        cached_identity = self._known.get(token)
        if cached_identity is not None and cached_identity[0] > now:
            return cached_identity[1]
        self._known = {key: cached_identity for key, cached_identity in self._known.items() if cached_identity[0] > now}
        url = checked_sts_url(token, self._engine.endpoint)
        if url is None:
            return None
        url_parts = urlsplit(url)
        headers = {"Host": url_parts.netloc, CLUSTER_HEADER: self._cluster_name}
        try:
            answer = await self._engine.forward("GET", f"{url_parts.path or '/'}?{url_parts.query}", headers, b"")
        except EngineClientError:
            return None
        arn = answer.text("Arn") if answer.status == 200 else None
        if arn is not None:
            self._known[token] = (now + CACHE_SECONDS, arn)
            credential = parse_qs(url_parts.query).get("X-Amz-Credential", [""])[0]
            self._callers.learn(credential.split("/", 1)[0], arn)
        return arn


def bearer_token(authorization: str) -> str:
    """Return the token of a Bearer header, empty for any other."""
    scheme, _, token = authorization.partition(" ")
    return token.strip() if scheme.lower() == "bearer" else ""


def checked_sts_url(token: str, endpoint: str) -> str | None:
    """Return the presigned STS URL in a token; None if it must not be requested.

    Source: the checks of `pkg/token/token.go` in kubernetes-sigs/aws-iam-authenticator. The host must be the engine.
    """
    encoded_url = token[len(PREFIX) :]
    try:
        url = base64.urlsafe_b64decode(encoded_url + "=" * (-len(encoded_url) % 4)).decode("ascii")
        url_parts = urlsplit(url)
        port, endpoint_parts = url_parts.port, urlsplit(endpoint)
    except (binascii.Error, ValueError):
        return None
    local = ("127.0.0.1", "localhost")
    same_host = url_parts.hostname == endpoint_parts.hostname or (
        url_parts.hostname in local and endpoint_parts.hostname in local
    )
    if (
        url_parts.scheme != endpoint_parts.scheme
        or not same_host
        or port != endpoint_parts.port
        or url_parts.path not in ("", "/")
    ):
        return None
    query = parse_qs(url_parts.query, keep_blank_values=True)
    lower_query = {name.lower(): values for name, values in query.items()}
    if set(lower_query) - ALLOWED_PARAMETERS or any(len(values) != 1 for values in lower_query.values()):
        return None
    if lower_query.get("action") != ["GetCallerIdentity"]:
        return None
    signed_headers = lower_query.get("x-amz-signedheaders", [""])[0].lower().split(";")
    expires = lower_query.get("x-amz-expires", ["0"])[0]
    if CLUSTER_HEADER not in signed_headers or not expires.isdigit() or int(expires) > LONGEST_SECONDS:
        return None
    return url


def user_of(arn: str, entries: list[AccessEntry]) -> User | None:
    """Return the Kubernetes user of an IAM principal, by its access entry; None without an entry."""
    principal = policy_source(arn)
    for entry in entries:
        if entry.principal_arn not in (principal, arn):
            continue
        session = arn.rsplit("/", 1)[-1] if ":assumed-role/" in arn else ""
        name = entry.username or (re.sub(r"/[^/]*$", "/{{SessionName}}", arn) if session else arn)
        name = name.replace("{{SessionNameRaw}}", session).replace("{{SessionName}}", session.replace("@", "-"))
        groups = [*entry.kubernetes_groups, "system:authenticated"]
        return User(name, tuple(groups), arn, tuple(_access_scopes(entry)))
    return None


def _access_scopes(entry: AccessEntry) -> Iterator[AccessScope]:
    for associated in entry.access_policies:
        policy = AccessPolicy(policy=associated) if isinstance(associated, str) else associated
        role = ROLES.get(policy.policy.rsplit("/", 1)[-1])
        if role is not None:  # other policies permit no operation of this cluster
            yield AccessScope(role, policy.namespaces)
