"""The cluster's own calls to the AWS emulator."""

from __future__ import annotations

import contextlib
import json
from collections.abc import Mapping
from dataclasses import dataclass
from urllib.parse import urlencode
from xml.etree import ElementTree as ET

import aiohttp
from botocore.auth import SigV4Auth
from botocore.awsrequest import AWSRequest
from botocore.credentials import Credentials
from yarl import URL

from evenkeel_local.gpu_cluster.aws_model import Json

TIMEOUT_SECONDS = 10.0


class EngineClientError(Exception):
    """The AWS emulator refused a call of the cluster, or did not answer."""


@dataclass(frozen=True)
class EngineResponse:
    """An answer of the AWS emulator."""

    status: int
    body: bytes

    def text(self, tag: str) -> str | None:
        """Return the text of the first XML element of that name."""
        try:
            root = ET.fromstring(self.body)  # noqa: S314 (the engine's own answer)
        except ET.ParseError:
            return None
        for element in root.iter():
            if element.tag.rsplit("}", 1)[-1] == tag:
                return element.text
        return None

    def json(self) -> Json:
        """Return the body as JSON; empty if it is not a JSON object."""
        try:
            body = json.loads(self.body)
        except ValueError:
            return {}
        return body if isinstance(body, dict) else {}


class EngineClient:
    """A client of the emulator. It signs every call and retries none."""

    def __init__(self, endpoint: str, credentials: Mapping[str, str], region: str) -> None:
        self.endpoint = endpoint.rstrip("/")
        self._region = region
        self._credentials = Credentials(
            credentials["AWS_ACCESS_KEY_ID"],
            credentials["AWS_SECRET_ACCESS_KEY"],
            credentials.get("AWS_SESSION_TOKEN") or None,
        )
        self._session: aiohttp.ClientSession | None = None

    async def open(self) -> None:
        """Open the connection pool."""
        timeout = aiohttp.ClientTimeout(total=TIMEOUT_SECONDS)
        self._session = aiohttp.ClientSession(timeout=timeout, auto_decompress=False)

    async def warm_up(self) -> None:
        """Let the engine load its list of services; the first call to an unknown service would wait for it."""
        with contextlib.suppress(EngineClientError):
            await self.json("sagemaker", "SageMaker.ListClusters", {})

    async def close(self) -> None:
        """Close the connection pool."""
        if self._session is not None:
            await self._session.close()

    async def query(self, service: str, parameters: Mapping[str, str], version: str) -> EngineResponse:
        """Call an action of a query-protocol service (IAM, STS)."""
        body = urlencode({**parameters, "Version": version}).encode()
        headers = {"Content-Type": "application/x-www-form-urlencoded; charset=utf-8"}
        return await self._signed(service, body, headers)

    async def json(self, service: str, target: str, body: Json) -> EngineResponse:
        """Call an operation of a JSON-protocol service (EventBridge)."""
        headers = {"Content-Type": "application/x-amz-json-1.1", "X-Amz-Target": target}
        return await self._signed(service, json.dumps(body).encode(), headers)

    async def get(self, service: str, path: str) -> EngineResponse:
        """Read a path of a REST service (Lambda)."""
        return await self._signed(service, b"", {}, "GET", path)

    async def _signed(
        self, service: str, body: bytes, headers: dict[str, str], method: str = "POST", path: str = "/"
    ) -> EngineResponse:
        request = AWSRequest(method=method, url=f"{self.endpoint}{path}", data=body, headers=headers)
        SigV4Auth(self._credentials, service, self._region).add_auth(request)
        return await self.forward(method, path, dict(request.headers.items()), body)

    async def forward(self, method: str, path: str, headers: Mapping[str, str], body: bytes) -> EngineResponse:
        """Send a request unchanged, so that its signature stays valid.

        Raises:
            EngineClientError: the engine did not answer.
        """
        if self._session is None:
            raise EngineClientError("the connection to the engine is not open")
        try:
            async with self._session.request(
                method, URL(f"{self.endpoint}{path}", encoded=True), headers=headers, data=body or None
            ) as response:
                return EngineResponse(response.status, await response.read())
        except (aiohttp.ClientError, TimeoutError) as failure:
            raise EngineClientError(f"no answer from the engine for {method} {path}: {failure!r}") from failure
