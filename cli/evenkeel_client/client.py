"""Clients of the API, with AWS signatures, and of the local GPU cluster's control address."""

import json
import os
import secrets
import sys
import time
from collections.abc import Callable, Mapping
from functools import cached_property
from typing import TYPE_CHECKING, Any, NamedTuple
from urllib.parse import quote, urlencode

from evenkeel_client.context import ApiContext
from evenkeel_client.errors import ApiRequestFailed, CommandFailed, Exit, exit_for

if TYPE_CHECKING:
    from botocore.credentials import Credentials, ReadOnlyCredentials
    from botocore.exceptions import BotoCoreError
    from botocore.httpsession import URLLib3Session

Json = dict[str, Any]
_MAX_TRIES = 3
_PAUSE_SECONDS = 0.4
_TIMEOUT_SECONDS = 35
"""The gateway ends a request after 29 s."""
_MAX_CLOCK_SECONDS = 240
"""AWS refuses a signature if its time differs by more than five minutes from AWS's clock."""
_PROXY_HINT = "A proxy may be the cause: check HTTPS_PROXY and NO_PROXY, then repeat the command."
_CHECK_FIRST = "The change may have been made: check the current state before you repeat the command."
_REVERSIBLE_CHANGES = ("/suspend", "/resume", "/acknowledge")
"""Ends of the paths whose key the API does not remember: a repeat could undo what another person did meanwhile."""
_MAYBE_DONE = f"An earlier try was cut off. {_CHECK_FIRST}"


def warn_on_stderr(text: str) -> None:
    """Print a warning to standard error."""
    print(text, file=sys.stderr)


class RawAnswer(NamedTuple):
    """An answer of the API, not interpreted."""

    status: int
    headers: Mapping[str, str]
    content: bytes


class ApiClient:
    """A client of one API. It retries throttled and unanswered requests: idempotency keys make this safe."""

    def __init__(
        self,
        context: ApiContext,
        *,
        pause: Callable[[float], None] = time.sleep,
        warn: Callable[[str], None] | None = warn_on_stderr,
    ) -> None:
        """Prepare a client; nothing is sent yet.

        Args:
            context: Address of the API, and the credentials for it.
            pause: Waits this many seconds between tries.
            warn: Called once for each source of stale facts; None to ignore stale facts.
        """
        self.context = context
        self._pause = pause
        self._warn = warn
        self._warned: set[str] = set()

    @cached_property
    def fleet(self) -> str:
        """The fleet's name in the form that URL paths use."""
        return self.context.name or str(self.get("/overview")["fleet"])

    def get(self, path: str, **query: str | int | None) -> Json:
        """Send a GET request; `path` is relative to the base URL.

        Raises:
            CommandFailed: the request failed; the exit code follows from the HTTP status.
        """
        parameters = {name: value for name, value in query.items() if value not in (None, "")}
        joint = "&" if "?" in path else "?"
        document = self._send(
            "GET", path + (f"{joint}{urlencode(parameters, quote_via=quote)}" if parameters else ""), None, {}
        )
        for text in document.get("stale") or ():
            if self._warn and text not in self._warned:
                self._warned.add(text)
                self._warn(f"These facts may be stale. {text}")
        return document

    def post(self, path: str, body: Json, *, key: str | None = None, repeat: str = "") -> Json:
        """Send a POST request.

        Idempotent: yes, by the idempotency key; without one, the client creates a new key.

        Args:
            path: Relative to the base URL.
            body: The request body.
            key: The idempotency key.
            repeat: Options that a retry of the command needs to make the same change.

        Raises:
            CommandFailed: the request failed; the exit code follows from the HTTP status. If the change may have been
                made, the hint says how to retry with the same key, or to check the current state first.
        """
        key = key or f"cli-{secrets.token_hex(12)}"
        headers = {"Content-Type": "application/json", "Idempotency-Key": key}
        try:
            return self._send("POST", path, json.dumps(body).encode(), headers)
        except CommandFailed as failure:
            if failure.exit_code in (Exit.TRY_AGAIN, Exit.FAILED):
                repeat_text = (
                    f"The change may have been made. To retry safely, add --idempotency-key {key}{repeat}"
                    " to the same command."
                )
                if path.endswith(_REVERSIBLE_CHANGES):
                    repeat_text = _CHECK_FIRST
                failure.hint = f"{failure.hint}\n  {repeat_text}" if failure.hint else repeat_text
            raise

    def post_read_only(self, path: str, body: Json) -> Json:
        """Send a read-only request that needs a body.

        Raises:
            CommandFailed: the request failed; the exit code follows from the HTTP status.
        """
        # The API requires a key for every POST.
        headers = {"Content-Type": "application/json", "Idempotency-Key": f"cli-{secrets.token_hex(12)}"}
        return self._send("POST", path, json.dumps(body).encode(), headers)

    def change(self, method: str, path: str, body: Json, *, version: int | None = None) -> Json:
        """Change a resource on condition of its version.

        Idempotent: yes, by the version: the change replaces it, so a second request is refused.

        Args:
            method: PUT, PATCH or DELETE.
            path: Relative to the base URL.
            body: The new content.
            version: The version that the caller read; 0 if the resource does not exist yet; None for any version.

        Raises:
            CommandFailed: the request failed; the exit code follows from the HTTP status.
        """
        names = {} if version is None else {"If-Match": f'"{version}"'} if version else {"If-None-Match": "*"}
        headers = {"Content-Type": "application/json", **names}
        try:
            return self._send(method, path, json.dumps(body).encode(), headers)
        except CommandFailed as failure:
            if failure.exit_code in (Exit.TRY_AGAIN, Exit.FAILED):
                failure.hint = f"{failure.hint}\n  {_CHECK_FIRST}".lstrip()
            raise

    def _send(self, method: str, path: str, body: bytes | None, headers: Mapping[str, str]) -> Json:
        is_uncertain = False
        for tries_left in reversed(range(_MAX_TRIES)):
            try:
                return self._send_once(method, path, body, headers)
            except CommandFailed as failure:
                if failure.exit_code is Exit.CONFLICT and is_uncertain:
                    failure.hint = f"{_MAYBE_DONE}\n  {failure.hint}".rstrip()
                if failure.exit_code is not Exit.TRY_AGAIN or not tries_left:
                    raise
                is_uncertain = True
                self._pause(_PAUSE_SECONDS * (_MAX_TRIES - tries_left))
        raise AssertionError("the last try returns or raises")

    def _send_once(self, method: str, path: str, body: bytes | None, headers: Mapping[str, str]) -> Json:
        answer = self.forward(method, path, body, headers)
        try:
            return parse_response(answer.status, answer.content)
        except ApiRequestFailed as failure:
            raise self._with_cause(failure, answer) from None

    def local_cause(self, answer: RawAnswer) -> ApiRequestFailed | None:
        """Return the error of an answer, if its cause is the clock, the credentials or a proxy of this machine."""
        if answer.status < 400:
            return None
        try:
            parse_response(answer.status, answer.content)
        except ApiRequestFailed as failure:
            received_error = failure.code, failure.text
            explained_failure = self._with_cause(failure, answer)
            return explained_failure if (explained_failure.code, explained_failure.text) != received_error else None
        return None

    def _with_cause(self, failure: ApiRequestFailed, answer: RawAnswer) -> ApiRequestFailed:
        """Return an error with the cause that this machine can see: its clock, its credentials, or a proxy."""
        if failure.code in ("BAD_SIGNATURE", "HTTP_403"):
            delay_seconds = _clock_delay_seconds(answer.headers)
            if delay_seconds is not None and abs(delay_seconds) > _MAX_CLOCK_SECONDS:
                direction = "behind" if delay_seconds > 0 else "ahead of"
                minutes = f"{abs(delay_seconds) / 60:.0f} min {direction}"
                failure.text = f"This machine's clock is {minutes} the API's, so AWS refuses its signatures."
                failure.code, failure.hint = "CLOCK_SKEW", "Set the clock, for example: sudo timedatectl set-ntp true"
        elif failure.code == "EXPIRED_CREDENTIALS":
            profile = f" --profile {self.context.profile}" if self.context.profile else ""
            failure.text = "The AWS credentials have expired. Nothing was changed."
            failure.hint = f"Sign in again, then repeat the command: aws sso login{profile}"
        elif failure.code == f"HTTP_{answer.status}" and answer.status in (407, 502, 503, 504):
            failure.text = f"{failure.text}: the answer comes from a gateway or proxy, not from Evenkeel."
            failure.hint = failure.hint or _PROXY_HINT
        return failure

    def prepare(self) -> None:
        """Load the credentials and the HTTP library, so that the first request does not wait for them.

        Idempotent: yes.

        Raises:
            CommandFailed: there are no credentials.
        """
        import botocore.auth
        import botocore.awsrequest  # noqa: F401 - only to load it

        self._frozen_credentials()
        self._session  # noqa: B018 - a cached property

    def forward(self, method: str, path: str, body: bytes | None, headers: Mapping[str, str]) -> RawAnswer:
        """Sign a request, send it once, and return the answer as it is, an error included.

        Idempotent: as the request is.

        Raises:
            CommandFailed: the API does not answer, or there are no credentials.
        """
        from botocore.auth import SigV4Auth
        from botocore.awsrequest import AWSRequest
        from botocore.exceptions import BotoCoreError

        request = AWSRequest(method, self.context.url + path, data=body, headers=dict(headers))
        SigV4Auth(self._frozen_credentials(), "execute-api", self.context.region).add_auth(request)
        try:
            answer = self._session.send(request.prepare())
        except BotoCoreError as error:
            raise self._unreachable_error(error) from error
        # botocore does not compare the length: a connection that was cut gives a part of the answer.
        expected_length = answer.headers.get("Content-Length", "")
        if expected_length.isdecimal() and len(answer.content) < int(expected_length):
            raise self._connection_cut_error()
        return RawAnswer(answer.status_code, answer.headers, answer.content)

    def _unreachable_error(self, error: "BotoCoreError") -> CommandFailed:
        """Return the failure of a request that got no whole answer."""
        from botocore import exceptions

        url_hint = "evenkeel dev status" if self.context.control_url else f"The URL comes from {self.context.source}."
        hint = f"Check that the API is up and that the URL is right: {url_hint}"
        match error:
            case exceptions.ProxyConnectionError():
                text, hint = "The proxy does not answer, or refuses the connection.", _PROXY_HINT
            case exceptions.SSLError():
                text = f"The TLS connection to {self.context.url} failed: {error}"
                hint = "If a proxy inspects TLS, name its certificate in AWS_CA_BUNDLE."
            case exceptions.ReadTimeoutError():
                text = f"{self.context.url} did not answer within {_TIMEOUT_SECONDS} seconds."
            case exceptions.HTTPClientError():
                return self._connection_cut_error()
            case _:
                text = f"{self.context.url} does not answer."
        return CommandFailed(Exit.TRY_AGAIN, text, code="UNREACHABLE", hint=hint)

    def _connection_cut_error(self) -> CommandFailed:
        text = f"The connection to {self.context.url} was cut before the answer was complete."
        return CommandFailed(Exit.TRY_AGAIN, text, code="UNREACHABLE", hint=_PROXY_HINT)

    @cached_property
    def _session(self) -> "URLLib3Session":
        from botocore.httpsession import URLLib3Session
        from botocore.utils import get_environ_proxies

        certificates = os.environ.get("AWS_CA_BUNDLE") or True
        proxies = get_environ_proxies(self.context.url)
        return URLLib3Session(verify=certificates, proxies=proxies, timeout=_TIMEOUT_SECONDS)  # type: ignore[arg-type]  # a path, too

    @cached_property
    def _credentials(self) -> "Credentials":
        from botocore.credentials import Credentials

        key = self.context.key
        if key is not None:
            return Credentials(key.access_key_id, key.secret_access_key)
        return _load_credentials(self.context.profile)

    def _frozen_credentials(self) -> "ReadOnlyCredentials":
        """Return the credentials for one request. Short-lived credentials are refreshed before they expire."""
        from botocore.exceptions import BotoCoreError

        try:
            return self._credentials.get_frozen_credentials()
        except (BotoCoreError, RuntimeError) as error:
            # botocore raises a plain RuntimeError if the refreshed credentials have already expired.
            raise CommandFailed(
                Exit.NOT_ALLOWED,
                f"The AWS credentials do not work: {error}",
                code="BAD_CREDENTIALS",
                hint="If you use IAM Identity Center: aws sso login",
            ) from error


def _clock_delay_seconds(headers: Mapping[str, str]) -> float | None:
    """Return how many seconds this machine's clock is behind the sender's; None if the answer has no date."""
    from email.utils import parsedate_to_datetime

    try:
        return parsedate_to_datetime(headers.get("Date", "")).timestamp() - time.time()
    except (TypeError, ValueError):
        return None


def _load_credentials(profile: str | None) -> "Credentials":
    from botocore.session import Session

    credentials = Session(profile=profile).get_credentials()
    if credentials is None:
        raise CommandFailed(
            Exit.NOT_ALLOWED,
            "No AWS credentials were found.",
            code="NO_CREDENTIALS",
            hint="Sign in as for the AWS CLI (aws sso login), or set EVENKEEL_PROFILE.",
        )
    return credentials


def parse_response(status: int, content: bytes) -> Json:
    """Return the document of a response.

    Raises:
        ApiRequestFailed: the HTTP status is an error.
        CommandFailed: the response is not JSON.
    """
    try:
        document = json.loads(content) if content else {}
    except ValueError as error:
        if status < 400:
            raise CommandFailed(
                Exit.FAILED, "The response is not JSON. Check that the URL is an Evenkeel API.", code="NOT_EVENKEEL"
            ) from error
        document = {}
    if not isinstance(document, dict):
        document = {"answer": document}
    if status < 400:
        return document
    problem = document
    code = str(problem.get("code") or ("REFUSED" if "error" in problem else f"HTTP_{status}"))
    # API Gateway itself answers with `message` alone; the local cluster answers with `error`.
    text = str(problem.get("detail") or problem.get("message") or problem.get("error") or f"HTTP {status}")
    errors = problem.get("errors") or []
    if len(errors) > 1:  # the detail names the first ones
        text = "Several fields are refused" + "".join(f"\n  {error['field']}: {error['message']}" for error in errors)
    raise ApiRequestFailed(
        exit_for(status),
        text,
        code=code,
        hint=str(problem.get("hint") or _HINTS.get(status, "")),
        request_id=str(problem.get("requestId") or ""),
    )


_HINTS = {
    401: "The API accepts only requests with an AWS signature. Check your credentials.",
    403: "Your AWS identity does not have permission. docs/api.md lists the policy that each path needs.",
}


class ControlClient:
    """The local GPU cluster's control address: plain HTTP on loopback."""

    def __init__(self, url: str) -> None:
        self._url = url

    def call(self, method: str, path: str, body: Json | None = None) -> Json:
        """Send a request.

        Raises:
            CommandFailed: the cluster does not answer, or refuses the request.
        """
        from botocore.awsrequest import AWSRequest
        from botocore.exceptions import BotoCoreError
        from botocore.httpsession import URLLib3Session

        data = None if body is None else json.dumps(body).encode()
        request = AWSRequest(method, self._url + path, data=data, headers={"Content-Type": "application/json"})
        try:
            answer = URLLib3Session(timeout=_TIMEOUT_SECONDS).send(request.prepare())
        except BotoCoreError as error:
            raise CommandFailed(
                Exit.TRY_AGAIN,
                "The local GPU cluster does not answer.",
                code="UNREACHABLE",
                hint="Check that the data centre is up: evenkeel dev status",
            ) from error
        return parse_response(answer.status_code, answer.content)
