"""Connections to EKS clusters: the endpoint of each API server, and its bearer tokens."""

import base64
import functools
import threading
import time
from collections.abc import Callable
from typing import Any

from botocore.auth import SigV4QueryAuth
from botocore.awsrequest import AWSRequest

from evenkeel.adapters import aws
from evenkeel.adapters.kubernetes import ApiAddress, KubernetesApi
from evenkeel.ports import NotAllowed, PermanentError

_TOKEN_SECONDS = 600
"""A token is valid for about 14 minutes. It is renewed after 10."""


class EksConnections:
    """API servers of EKS clusters, by name.

    Each container reads the endpoint and certificate of a cluster once, and again if it cannot connect with them.
    """

    def __init__(self, region: str, client: Any = None, session: Any = None) -> None:
        self._region = region
        self._client = client
        self._session = session
        self._known: dict[str, KubernetesApi] = {}
        self._lock = threading.Lock()

    def api(self, cluster: str) -> KubernetesApi:
        with self._lock:
            if cluster not in self._known:
                self._known[cluster] = self._connect(cluster)
            return self._known[cluster]

    def _connect(self, cluster: str) -> KubernetesApi:
        token = EksToken(cluster, self._region, self._session)
        read_address = functools.partial(self._read_address, cluster)
        return KubernetesApi(cluster, *read_address(), token, read_address)

    def _read_address(self, cluster: str) -> ApiAddress:
        client = self._client or aws.client("eks")
        attempt = f"describe EKS cluster {cluster}"
        with aws.translate_errors(attempt):
            answer = client.describe_cluster(name=cluster)
        with aws.translate_malformed_answer(attempt):
            description = answer["cluster"]
            certificate = description.get("certificateAuthority", {}).get("data")
            if not description.get("endpoint") or certificate is None:
                raise PermanentError(f"EKS cluster {cluster} has no endpoint: it is {description.get('status')}")
            authority = base64.b64decode(certificate).decode()
        return ApiAddress(description["endpoint"], authority)


class EksToken:
    """Bearer tokens of EKS. A token is a presigned STS call, with which the API server identifies the caller.

    Creating a token needs no network.
    """

    def __init__(
        self, cluster: str, region: str, session: Any = None, clock: Callable[[], float] = time.monotonic
    ) -> None:
        self._cluster = cluster
        self._region = region
        self._session = session
        self._clock = clock
        self._made: tuple[float, str] | None = None

    def __call__(self, is_fresh_needed: bool) -> str:
        now = self._clock()
        if is_fresh_needed or self._made is None or now - self._made[0] > _TOKEN_SECONDS:
            self._made = (now, self._presigned())
        return self._made[1]

    def _presigned(self) -> str:
        session = self._session or aws.session()
        endpoint = session.create_client("sts", region_name=self._region).meta.endpoint_url.rstrip("/")
        url = f"{endpoint}/?Action=GetCallerIdentity&Version=2011-06-15"
        request = AWSRequest("GET", url, headers={"x-k8s-aws-id": self._cluster})
        credentials = session.get_credentials()
        if credentials is None:
            raise NotAllowed(f"no AWS credentials to sign in to {self._cluster}")
        SigV4QueryAuth(credentials.get_frozen_credentials(), "sts", self._region, expires=60).add_auth(request)
        return "k8s-aws-v1." + base64.urlsafe_b64encode(str(request.url).encode()).decode().rstrip("=")
