"""The AWS endpoints on one port: SageMaker's JSON protocol, EKS's REST paths, and the queries of EC2 Auto Scaling."""

from __future__ import annotations

import base64
import json
import time
import uuid
from dataclasses import dataclass
from urllib.parse import unquote

from aiohttp import web

from evenkeel_local.gpu_cluster import aws_model
from evenkeel_local.gpu_cluster.access_entries_api import OPERATIONS, AccessEntriesApi
from evenkeel_local.gpu_cluster.autoscaling_api import AutoScalingApi, error_xml
from evenkeel_local.gpu_cluster.aws_auth import AwsAuth, Incoming
from evenkeel_local.gpu_cluster.aws_model import AwsError, Json
from evenkeel_local.gpu_cluster.call_faults import ApiCall, CallFailed, CallFaults, ReplyLost
from evenkeel_local.gpu_cluster.config import SECURITY_GROUPS, SUBNETS, ClusterConfig
from evenkeel_local.gpu_cluster.hyperpod import HyperPod
from evenkeel_local.gpu_cluster.node_groups import AutoScalingGroups

TARGET = "SageMaker."
READS = ("Describe", "List", "Search")


class TokenBucket:
    """A rate limit that allows the calls of one second at once."""

    def __init__(self, per_second: float) -> None:
        self._rate = per_second
        self._level = max(per_second, 1.0)
        self._at = time.monotonic()

    def take(self) -> bool:
        """Take one token; return whether there was one. A rate of 0 never runs out."""
        if self._rate <= 0:
            return True
        now = time.monotonic()
        self._level = min(max(self._rate, 1.0), self._level + (now - self._at) * self._rate)
        self._at = now
        if self._level < 1:
            return False
        self._level -= 1
        return True


@dataclass(frozen=True)
class ApiAccess:
    """How a client reaches the Kubernetes API of the cluster."""

    url: str
    ca_pem: str
    admin_token: str


class AwsApi:
    """Answers SageMaker and EKS calls."""

    def __init__(
        self,
        config: ClusterConfig,
        hyperpod: HyperPod,
        auth: AwsAuth,
        faults: CallFaults,
        access: ApiAccess,
        groups: AutoScalingGroups,
        entries: AccessEntriesApi,
    ) -> None:
        self._config = config
        self._hyperpod = hyperpod
        self._auth = auth
        self._faults = faults
        self._access = access
        self._created_at = time.time()
        self._groups = groups
        self._entries = entries
        self._autoscaling = AutoScalingApi(config, groups, auth, faults)
        self._reads = TokenBucket(config.reads_per_second)
        self._writes = TokenBucket(config.writes_per_second)

    async def handle(self, http: web.Request) -> web.StreamResponse:
        """Answer one request of any service."""
        request_id = str(uuid.uuid4())
        request_body = await http.read()
        incoming = Incoming(http.method, http.raw_path, dict(http.headers), request_body)
        service = _service_of(http)
        try:
            if service == "autoscaling":
                xml_answer = await self._autoscaling.answer(incoming)
                return web.Response(body=xml_answer, content_type="text/xml", headers={"x-amzn-RequestId": request_id})
            json_answer = await (self._eks(http, incoming) if service == "eks" else self._sagemaker(http, incoming))
        except AwsError as refusal:
            return _error_response(refusal, request_id, service)
        except CallFailed as failure:
            fault = failure.fault
            throttling_code = "Throttling" if service == "autoscaling" else "ThrottlingException"
            if fault.effect == "throttle":
                return _error_response(AwsError(throttling_code, "Rate exceeded", 400), request_id, service)
            return _error_response(AwsError(fault.code, fault.message, fault.status), request_id, service)
        except ReplyLost:
            if http.transport is not None:
                http.transport.abort()
            return web.Response(status=500)
        return _response(json_answer, 200, request_id, service)

    async def _sagemaker(self, http: web.Request, incoming: Incoming) -> Json:
        target = http.headers.get("X-Amz-Target", "")
        if http.method != "POST" or not target.startswith(TARGET):
            raise AwsError("UnknownOperationException", "", 404)
        name = target[len(TARGET) :]
        op = aws_model.operation_model(aws_model.service_model("sagemaker"), name)
        if name not in self._hyperpod.operations:
            raise AwsError("UnknownOperationException", f"The local cluster does not have {name}.", 501)
        try:
            body = json.loads(incoming.body or b"{}")
        except ValueError as error:
            raise AwsError("SerializationException", f"the body is not JSON: {error}") from error
        if not isinstance(body, dict):
            raise AwsError("SerializationException", "the body is not an object")
        caller = await self._auth.check(incoming, f"sagemaker:{name}", self._resource(name, body))
        call = ApiCall("hyperpod", name, _subject(body), caller)
        await self._faults.before(call)
        bucket = self._reads if name.startswith(READS) else self._writes
        if not bucket.take():
            raise AwsError("ThrottlingException", "Rate exceeded")
        aws_model.check_input(op, body)
        answer = self._hyperpod.operations[name](body, caller)
        problems = aws_model.output_problems(op, answer)
        if problems:
            raise AwsError("InternalFailure", f"the answer breaks the service model: {problems}", 500)
        self._faults.after(call)
        return answer

    def _resource(self, operation: str, body: Json) -> str:
        """Return the ARN that a policy must cover. Source: the service authorization reference of SageMaker."""
        arn = self._config.arn
        if "ComputeQuota" in operation:
            return "*" if operation.startswith("List") else arn(f"compute-quota/{body.get('ComputeQuotaId', '*')}")
        if "SchedulerConfig" in operation:
            resource_id = body.get("ClusterSchedulerConfigId", "*")
            return "*" if operation.startswith("List") else arn(f"cluster-scheduler-config/{resource_id}")
        if operation == "DescribeTrainingPlan":
            return arn(f"training-plan/{str(body.get('TrainingPlanName')).rsplit('/', 1)[-1]}")
        if operation == "ListUltraServersByReservedCapacity":
            return str(body.get("ReservedCapacityArn"))
        return "*" if operation in ("ListClusters", "SearchTrainingPlanOfferings") else self._config.cluster_arn

    async def _eks(self, http: web.Request, incoming: Incoming) -> Json:
        segments = [segment for segment in http.path.split("/") if segment]
        if http.method == "GET" and len(segments) == 4 and segments[2] == "node-groups":
            return await self._describe_nodegroup(incoming, segments[1], segments[3])
        if len(segments) > 2 and segments[2] == "access-entries":
            return await self._access_entries(http, incoming)
        if http.method != "GET" or len(segments) > 2:
            message = "The local EKS API has only clusters, node groups and access entries."
            raise AwsError("InvalidRequestException", message, 501)
        action = "ListClusters" if len(segments) == 1 else "DescribeCluster"
        resource = self._config.arn(f"cluster/{segments[1]}", "eks") if len(segments) > 1 else self._config.eks_arn
        caller = await self._auth.check(incoming, f"eks:{action}", resource)
        call = ApiCall("eks", action, segments[-1], caller)
        await self._faults.before(call)
        other_clusters = {cluster.name: cluster for cluster in self._config.other_eks_clusters}
        if action == "ListClusters":
            answer: Json = {"clusters": [self._config.eks_cluster_name, *other_clusters]}
        elif segments[1] == self._config.eks_cluster_name:
            answer = {"cluster": self._describe_eks(segments[1], self._access.url, self._access.ca_pem)}
        elif cluster := other_clusters.get(segments[1]):
            answer = {"cluster": self._describe_eks(cluster.name, cluster.endpoint, cluster.ca_pem)}
        else:
            raise AwsError("ResourceNotFoundException", f"No cluster found for name: {segments[1]}.", 404)
        self._faults.after(call)
        return answer

    async def _access_entries(self, http: web.Request, incoming: Incoming) -> Json:
        # The ARN in the path contains an encoded slash.
        _, cluster, _, *principal = map(unquote, http.raw_path.partition("?")[0].strip("/").split("/"))
        operation = OPERATIONS.get((http.method, bool(principal)))
        if operation is None or len(principal) > 1:
            raise AwsError("InvalidRequestException", f"There is no {http.method} of {http.path}.", 404)
        caller = await self._auth.check(incoming, f"eks:{operation}", self._config.eks_arn)
        call = ApiCall("eks", operation, "".join(principal), caller)
        await self._faults.before(call)
        if cluster != self._config.eks_cluster_name:
            raise AwsError("ResourceNotFoundException", f"No cluster found for name: {cluster}.", 404)
        try:
            body = json.loads(incoming.body or b"{}")
        except ValueError as error:
            raise AwsError("InvalidParameterException", f"the body is not JSON: {error}") from error
        answer = self._entries.answer(operation, "".join(principal), http.query, body)
        self._faults.after(call)
        return answer

    async def _describe_nodegroup(self, incoming: Incoming, cluster: str, name: str) -> Json:
        arn = self._config.arn(f"nodegroup/{cluster}/{name}/{uuid.uuid5(uuid.NAMESPACE_DNS, name)}", "eks")
        caller = await self._auth.check(incoming, "eks:DescribeNodegroup", arn)
        call = ApiCall("eks", "DescribeNodegroup", name, caller)
        await self._faults.before(call)
        group = self._groups.groups.get(name)
        if cluster != self._config.eks_cluster_name or group is None:
            raise AwsError("ResourceNotFoundException", f"No node group found for name: {name}.", 404)
        answer = {
            "nodegroup": {
                "nodegroupName": name,
                "nodegroupArn": arn,
                "clusterName": cluster,
                "status": "ACTIVE",
                "capacityType": "ON_DEMAND",
                "scalingConfig": {"minSize": 0, "maxSize": group.count, "desiredSize": group.count},
                "instanceTypes": [group.instance_type],
                "resources": {"autoScalingGroups": [{"name": name}]},
                "nodeRepairConfig": {"enabled": group.repair_seconds is not None},
            }
        }
        self._faults.after(call)
        return answer

    def _describe_eks(self, name: str, endpoint: str, ca_pem: str) -> Json:
        config = self._config
        return {
            "name": name,
            "arn": config.arn(f"cluster/{name}", "eks"),
            "createdAt": self._created_at,
            "version": "1.33",
            "endpoint": endpoint,
            "roleArn": f"arn:aws:iam::{config.account}:role/{name}",
            "resourcesVpcConfig": {
                "subnetIds": SUBNETS,
                "securityGroupIds": SECURITY_GROUPS,
                "vpcId": "vpc-0a1b2c3d4e5f60718",
                "endpointPublicAccess": True,
                "endpointPrivateAccess": False,
                "publicAccessCidrs": ["127.0.0.0/8"],
            },
            "kubernetesNetworkConfig": {"serviceIpv4Cidr": "10.100.0.0/16", "ipFamily": "ipv4"},
            "status": "ACTIVE",
            "certificateAuthority": {"data": base64.b64encode(ca_pem.encode()).decode()},
            "platformVersion": "eks.1",
            "tags": {},
            "accessConfig": {"authenticationMode": "API"},
        }


def _subject(body: Json) -> str:
    for name in ("NodeId", "NodeLogicalId"):
        if isinstance(body.get(name), str):
            return str(body[name])
    for name in ("NodeIds", "NodeLogicalIds"):
        if isinstance(body.get(name), list):
            return ",".join(str(item) for item in body[name])
    return str(body.get("ClusterName") or "")


def _service_of(http: web.Request) -> str:
    if http.path.startswith("/clusters"):
        return "eks"
    return "autoscaling" if http.content_type == "application/x-www-form-urlencoded" else "sagemaker"


def _response(body: Json, status: int, request_id: str, service: str) -> web.Response:
    content_type = "application/json" if service == "eks" else "application/x-amz-json-1.1"
    headers = {"x-amzn-RequestId": request_id}
    return web.Response(body=json.dumps(body).encode(), status=status, content_type=content_type, headers=headers)


def _error_response(error: AwsError, request_id: str, service: str) -> web.Response:
    if service == "autoscaling":
        return web.Response(body=error_xml(error, request_id), status=error.status, content_type="text/xml")
    response = _response({"__type": error.code, "message": error.message}, error.status, request_id, service)
    response.headers["x-amzn-ErrorType"] = error.code
    return response
