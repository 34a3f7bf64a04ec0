"""A deployed stack in which only the invocations of a test run, so that a refusal has one cause.

It has no ticker, schedules or polled queues, and its two workflows end at once. Functions, roles, tables, buckets,
queues and the GPU cluster come from the template and the data centre.
"""

import base64
import json
import re
import time
import urllib.error
import urllib.request
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, replace
from datetime import UTC, datetime
from fnmatch import fnmatch
from functools import cache, partial
from pathlib import Path
from typing import Any, Final, NamedTuple

import yaml
from botocore.auth import SigV4Auth
from botocore.awsrequest import AWSRequest
from botocore.config import Config
from botocore.credentials import Credentials as Key

from evenkeel.adapters.cluster import KubernetesCluster
from evenkeel.adapters.dynamo_ledger import DynamoLedger
from evenkeel.adapters.hyperpod import HyperPodProvider
from evenkeel.adapters.kubernetes import KubernetesApi
from evenkeel.adapters.system import RandomIds
from evenkeel.adapters.workload_resources import JOB, OPERATED
from evenkeel.domain.health.health_policy import WatchPolicy
from evenkeel.domain.health.incidents import NodeFact
from evenkeel.domain.nodes import INCIDENT_ANNOTATION, KubernetesNode, Node, join_nodes
from evenkeel.domain.recovery.validation import FAULT_TYPES
from evenkeel.events import kubernetes_node
from evenkeel.ports import Delete, Put, Row, Table
from evenkeel.ports import Key as RowKey
from evenkeel.services.storage.retries import until_committed
from evenkeel.services.tables import fleet_rows, incident_rows, quota_rows
from evenkeel_local import PROJECT
from evenkeel_local.data_centre import CHECKPOINTS_BUCKET, FLEET, NAMESPACE, DataCentre, FleetShape
from evenkeel_local.deployment import STACK_NAME, stack_resources
from evenkeel_local.identities import Credentials, make_user
from tests import fake_kueue
from tests.local import containers
from tests.template import statements
from tests.template.documents import Json, as_list
from tests.template.statements import Permission
from tests.waiting import until

ACCESS: Final = PROJECT / "charts" / "kubernetes-access.yaml"
USERS_NAMESPACE: Final = "research-users"
"""A namespace whose jobs Evenkeel may restart."""
RESTARTERS: Final = "evenkeel:restarters"
RESTARTER_ROLE: Final = "evenkeel-restarter"
ENTRIES: Final = PROJECT / "charts" / "access-entries.json"

_ENDS_AT_ONCE: Final = json.dumps(
    {"QueryLanguage": "JSONata", "StartAt": "End", "States": {"End": {"Type": "Succeed"}}}
)
_TAIL: Final = 4000
"""Lambda returns the last 4 KB of an invocation's log; from about this size the log may be truncated."""
_REFUSED_ACTION: Final = re.compile(
    r"not authorized to perform: (?P<action>[a-z0-9-]+:[A-Za-z]+)(?: on resource: (?P<arn>arn:[^\s\"\\\\]+))?"
)
_REFUSED_VERB: Final = re.compile(r'cannot (?P<verb>[a-z]+) resource "(?P<resource>[^"]+)"')
_NO_BODY: Final = re.compile(r"\bNotAllowed: .*\b(403|Forbidden)\b")
"""S3 answers HEAD without a body: a refusal has only a status."""


NODE_GROUP: Final = "workers"
"""An EKS managed node group of one node."""


@dataclass(frozen=True)
class QuietFleetShape(FleetShape):
    """Configuration of nodes that authorize every request again and start quickly."""

    def config(self) -> dict[str, Any]:
        quick = {"boot": 0.2, "reboot": 0.5, "replace": 0.5}
        # The probes of renting request another type: none of their jobs may start on this node.
        groups = [{"name": NODE_GROUP, "count": 1, "launch": 0.2, "instanceType": "p4d.24xlarge"}]
        return {**super().config(), "authCacheSeconds": 0, "delays": {**self.delays, **quick}, "nodeGroups": groups}


@dataclass(frozen=True)
class InvocationResult:
    """Result and log of an invocation."""

    function: str
    answer: Any
    error: str
    """Message of the error that left the handler; empty without an error."""
    log: str

    @property
    def error_text(self) -> str:
        return f"{json.dumps(self.answer)}\n{self.error}\n{self.log}"

    def refuses(self, action: str) -> bool:
        """Return whether the invocation met a refusal of this action. Not every service names the resource."""
        if re.search(rf"not authorized to perform: {re.escape(action)}(?![A-Za-z])", self.error_text):
            return True
        return action == "s3:GetObject" and _NO_BODY.search(self.error_text) is not None

    def refused_verbs(self) -> set[tuple[str, str]]:
        """Return the refusals of Kubernetes: each resource with the verb."""
        text = self.error_text.replace('\\"', '"')
        return {(match["resource"], match["verb"]) for match in _REFUSED_VERB.finditer(text)}

    def refuses_verb(self, verb: str, resource: str) -> bool:
        """Return whether Kubernetes refused this verb."""
        return (resource, verb) in self.refused_verbs()

    @property
    def is_refused(self) -> bool:
        """Return whether any request was refused."""
        text = self.error_text.replace('\\"', '"')
        return any(word in text for word in ("not authorized to perform", "NotAllowed", " cannot "))


class ApiReply(NamedTuple):
    """Answer of the API."""

    status: int
    body: str

    @property
    def is_refused(self) -> bool:
        """Return whether the gateway accepted the caller; the function may still refuse the request."""
        return self.status == 403 and "not authorized to perform: execute-api:Invoke" in self.body


class PermissionBench:
    """The deployed stack, with helpers that prepare the situation of a probe."""

    def __init__(self, centre: DataCentre) -> None:
        self.centre = centre
        centre.cluster.apply(_users_namespace())
        deployer = centre.deployer
        outputs = centre.outputs
        tables = {table: outputs[f"{table.capitalize()}TableName"] for table in Table}
        self.ledger = DynamoLedger(tables, deployer.client("dynamodb"))
        self.ids = RandomIds()
        self.iam = deployer.client("iam")
        self.s3 = deployer.client("s3")
        self.sqs = deployer.client("sqs")
        self._logs = deployer.client("logs")
        self._workflows = deployer.client("stepfunctions")
        self._lambda = deployer.client("lambda", config=Config(read_timeout=70, retries={"total_max_attempts": 1}))
        watcher = make_user(deployer, "stage", [_reads(centre.cluster.cluster_arn)])
        reader = watcher.client("sagemaker", endpoint_url=centre.cluster.sagemaker_url)
        self.provider = HyperPodProvider(centre.cluster.cluster_arn, reader, reader)
        self.kubernetes = KubernetesApi(
            self.cluster_name,
            centre.cluster.kubernetes_url,
            centre.cluster.ca_pem,
            lambda _fresh: centre.cluster.admin_token,
        )
        self.cluster = KubernetesCluster(self, fleet=FLEET)
        self._physical = stack_resources(deployer)
        self._documents: dict[str, Json] = {}
        self._lacking: list[tuple[str, str, str]] = []
        self.readable: dict[str, str] = {}
        """Ids of things that were stored once, to be read."""
        self._stop_all_schedules()
        # Requests about Kueue's objects are made only in a cluster with Kueue.
        kinds = (fake_kueue.local_queues(), fake_kueue.workloads(), *fake_kueue.admission_objects())
        centre.cluster.apply(list(kinds))
        self.nodes = self._machines()
        """The nodes. Probes refer to them by their index in this list."""
        for index in range(len(self.nodes)):
            self.free_machine(index)

    @classmethod
    @contextmanager
    def started_bench(cls, run_dir: Path) -> Iterator["PermissionBench"]:
        """Start a data centre in which only the invocations of tests run."""
        with DataCentre.start(run_dir, fleet=QuietFleetShape(), ticks=False) as centre:
            yield cls(centre)

    def _stop_all_schedules(self) -> None:
        deployer = self.centre.deployer
        scheduler = deployer.client("scheduler")
        for schedule in scheduler.list_schedules()["Schedules"]:
            scheduler.delete_schedule(Name=schedule["Name"], GroupName=schedule["GroupName"])
        for mapping in self._lambda.list_event_source_mappings()["EventSourceMappings"]:
            self._lambda.update_event_source_mapping(UUID=mapping["UUID"], Enabled=False)
        for output in ("RecoverNodeArn", "RunJobArn", "BurstCapacityArn"):
            arn = self.centre.outputs[output]
            ends = self._workflows.update_state_machine(stateMachineArn=arn, definition=_ENDS_AT_ONCE, publish=True)
            # Functions start the version behind the alias. The old version would repair nodes during other probes.
            self._workflows.update_state_machine_alias(
                stateMachineAliasArn=f"{arn}:live",
                routingConfiguration=[{"stateMachineVersionArn": ends["stateMachineVersionArn"], "weight": 100}],
            )

    # ------------------------------------------------------------ invoking

    def invoke(self, function: str, payload: Json) -> InvocationResult:
        """Invoke a function as its permitted caller; return its answer and log."""
        began = int(time.time() * 1000)
        answer = self._lambda.invoke(
            FunctionName=f"{STACK_NAME}-{function}", Payload=json.dumps(payload).encode(), LogType="Tail"
        )
        body = json.loads(answer["Payload"].read() or b"null")
        log = base64.b64decode(answer.get("LogResult", "")).decode("utf-8", "replace")
        if len(log) >= _TAIL:
            log = self._whole_log(function, began)
        error = f"{body['errorType']}: {body['errorMessage']}" if answer.get("FunctionError") else ""
        return InvocationResult(function, None if error else body, error, log)

    def _whole_log(self, function: str, since: int) -> str:
        pages = self._logs.get_paginator("filter_log_events").paginate(
            logGroupName=f"/aws/lambda/{STACK_NAME}-{function}", startTime=since
        )
        return "\n".join(event["message"] for page in pages for event in page["events"])

    def start_cold(self, function: str) -> None:
        """Make the next invocation start in a new process, without the caches of the old container."""
        containers.start_cold(self._lambda, function)

    @contextmanager
    def where_kueue_admits(self, function: str) -> Iterator[None]:
        """Run a function with `Admission=kueue` in this context."""
        name = f"{STACK_NAME}-{function}"
        before = self._lambda.get_function_configuration(FunctionName=name)["Environment"]["Variables"]
        kueue = {**before, "EVENKEEL_ADMISSION": "kueue"}
        self._lambda.update_function_configuration(FunctionName=name, Environment={"Variables": kueue})
        try:
            yield
        finally:
            self._lambda.update_function_configuration(FunctionName=name, Environment={"Variables": before})

    # ------------------------------------------------------------ what a role used

    def used_permissions(self, owner: str) -> set[Permission]:
        """Return the permissions of a role that were needed so far: each alone allowed some request."""
        used = set()
        for action, resource in self.centre.engine.allowed_requests(self.role(owner)):
            allowing = [
                Permission(owner, statement["Sid"], action)
                for statement in self.deployed(owner)["Statement"]
                if action in as_list(statement["Action"])
                and any(fnmatch(resource, pattern) for pattern in as_list(statement["Resource"]))
            ]
            if len(allowing) == 1:
                used.add(allowing[0])
        return used

    # ------------------------------------------------------------ taking away

    def deployed(self, owner: str) -> Json:
        """Return a role's deployed policy, with all references resolved."""
        if owner not in self._documents:
            role = self.role(owner)
            (name,) = self.iam.list_role_policies(RoleName=role)["PolicyNames"]
            document = self.iam.get_role_policy(RoleName=role, PolicyName=name)["PolicyDocument"]
            self._documents[owner] = {"name": name, "document": document}
        stored_document: Json = self._documents[owner]["document"]
        return stored_document

    def role(self, owner: str) -> str:
        """Return the physical name of a role by its logical id."""
        return self._physical[owner]

    @contextmanager
    def without(self, *permissions: Permission) -> Iterator[None]:
        """Remove permissions of one role in this context."""
        (owner,) = {permission.owner for permission in permissions}
        less = whole = self.deployed(owner)
        for permission in permissions:
            less = statements.without(less, permission)
        self._put(owner, less)
        try:
            yield
        finally:
            self._put(owner, whole)

    def _put(self, owner: str, document: Json) -> None:
        policy_of_role = {"RoleName": self.role(owner), "PolicyName": self._documents[owner]["name"]}
        if document["Statement"]:
            self.iam.put_role_policy(**policy_of_role, PolicyDocument=json.dumps(document))
        else:
            self.iam.delete_role_policy(**policy_of_role)

    @contextmanager
    def without_verbs(self, role: str, *verbs: tuple[str, str]) -> Iterator[None]:
        """Remove verbs, as pairs (resource, verb), from a role of the access manifest in this context."""
        before = self._lacking
        self._apply_role_without(role, [*before, *((role, resource, verb) for resource, verb in verbs)])
        try:
            yield
        finally:
            self._apply_role_without(role, before)

    def _apply_role_without(self, role: str, removed_permissions: list[tuple[str, str, str]]) -> None:
        self._lacking = removed_permissions
        manifest = access_roles()[role]
        rules = manifest["rules"]
        for where, resource, verb in removed_permissions:
            if where == role:
                rules = [*rules_without(rules, resource, verb)]
        self.centre.cluster.apply([{**manifest, "rules": rules}])

    @contextmanager
    def without_groups(self, function: str, *removed_permissions: str) -> Iterator[None]:
        """Remove groups from a function's access entry in this context."""
        groups = access_entries()[function]
        arn = self.centre.roles[function]
        self.centre.cluster.put_access_entry(arn, [group for group in groups if group not in removed_permissions])
        try:
            yield
        finally:
            self.centre.cluster.put_access_entry(arn, groups)

    # ------------------------------------------------------------ preparing

    @property
    def cluster_name(self) -> str:
        """Return the name of the EKS cluster."""
        return self.centre.cluster.eks_cluster_name

    def api(self, _cluster: str) -> KubernetesApi:
        """Return the API server as the admin, in place of an adapter's connections."""
        return self.kubernetes

    def await_machine(self, index: int) -> None:
        """Wait until a node slot has a node in service and no repair runs there, and put the node at its index."""
        slot = self.nodes[index].slot

        def found() -> Node | None:
            ready = [
                node
                for node in self._machines()
                if node.kubernetes and node.kubernetes.is_ready and node.provider and node.provider.status == "Running"
            ]
            # A node that is being removed still looks ready for a moment.
            lease = self.ledger.get(fleet_rows.lease_key(slot))
            asks = lease.doc["requests"] if lease else ()
            told_to_go = [ask for ask in asks if (ask["rung"], ask["answer"]) == ("replace", "ACCEPTED")]
            gone = {ask["life"]["instanceId"] for ask in told_to_go}
            return next((node for node in ready if node.slot == slot and node.life.instance_id not in gone), None)

        self.nodes[index] = until(found, f"a machine in the node slot {slot}")  # type: ignore[assignment]  # until it is one

    def _machines(self) -> list[Node]:
        """Return the nodes of HyperPod, joined with their Kubernetes nodes."""
        nodes = join_nodes(self.cluster.nodes(self.cluster_name), self.provider.nodes(), self.cluster_name)
        return [node for node in nodes if node.provider]

    def await_node_of_group(self) -> KubernetesNode:
        """Wait until the node group has a Ready node, and return the node."""

        def found() -> KubernetesNode | None:
            nodes = self.cluster.nodes(self.cluster_name)
            return next((node for node in nodes if node.pool == NODE_GROUP and node.is_ready), None)

        return until(found, f"a node of group {NODE_GROUP}")  # type: ignore[return-value]  # until it is one

    def put(self, *rows: Row) -> None:
        """Store rows, whatever version they have."""

        def write(row: Row) -> None:
            stored = self.ledger.get(row.key)
            self.ledger.commit(Put(replace(row, version=stored.version if stored else 0)))

        for row in rows:
            until_committed(partial(write, row), f"{row.key} changed on every try")

    def forget(self, *keys: RowKey) -> None:
        """Delete rows, even while a running function writes them."""

        def delete(key: RowKey) -> None:
            row = self.ledger.get(key)
            if row is not None:
                self.ledger.commit(Delete(key, row.version))

        for key in keys:
            until_committed(partial(delete, key), f"{key} changed on every try")

    def forget_partition(self, table: Table, pk: str, prefix: str = "") -> None:
        """Remove the rows of a partition."""
        self.forget(*(row.key for row in self.ledger.partition(table, pk, prefix)))

    def forget_state(self, table: Table, state: str) -> None:
        """Delete every row of one partition of `byState`."""
        self.forget(*(row.key for row in self.ledger.by_state(table, state).rows))

    def checkpoint_uri(self, job_id: str) -> str:
        """Return a checkpoint URI for a job, in the bucket of the stack."""
        return f"s3://{CHECKPOINTS_BUCKET}/{job_id}"

    def clear_workloads(self) -> None:
        """Delete the workloads of earlier probes."""
        for path in (path for namespace in (NAMESPACE, USERS_NAMESPACE) for path in _workload_paths(namespace)):
            for item in list(self.kubernetes.items(path)):
                self.kubernetes.delete(
                    f"{path}/{item['metadata']['name']}", propagationPolicy="Background", gracePeriodSeconds=1
                )

    def name_of(self, machine: Node) -> str:
        """Return the name of a node's node object."""
        assert machine.kubernetes
        return machine.kubernetes.name

    def patch_node(self, index: int, patch: Json) -> None:
        """Change a node object as the admin."""
        self.kubernetes.patch(f"/api/v1/nodes/{self.name_of(self.nodes[index])}", patch)

    def free_machine(self, index: int) -> None:
        """Put a node in service: remove its cordon, marks and taint."""
        metadata = {"annotations": {INCIDENT_ANNOTATION: None}, "labels": {FAULT_TYPES[0]: None}}
        self.patch_node(index, {"metadata": metadata, "spec": {"unschedulable": None, "taints": None}})

    def cordon(self, index: int, incident_id: str) -> None:
        """Cordon a node for an incident."""
        self.free_machine(index)
        self.cluster.cordon(self.cluster_name, self.name_of(self.nodes[index]), incident_id)

    @contextmanager
    def with_fault_label(self, index: int) -> Iterator[None]:
        """Set the health agent's mark on a node in this context, as for an event that was not ingested yet."""
        self.patch_node(index, {"metadata": {"labels": {FAULT_TYPES[0]: "NvidiaErrorReboot"}}})
        self.forget(*(incident_rows.fact_key(fact.fact_key) for fact in self.facts_of(index)))
        try:
            yield
        finally:
            self.free_machine(index)

    def facts_of(self, index: int) -> tuple[NodeFact, ...]:
        """Return the fact of a node's present marks."""
        node = self.cluster.node(self.cluster_name, self.name_of(self.nodes[index]))
        assert node
        return kubernetes_node.node_facts(node, WatchPolicy(), datetime.now(UTC))

    def end_execution(self, name: str) -> None:
        """Start and end the workflow of an attempt."""
        arn = f"{self.centre.outputs['RunJobArn']}:live"
        self._ended(self._workflows.start_execution(stateMachineArn=arn, name=name, input="{}")["executionArn"])

    def call_by_workflow(self, output: str, function: str, payload: Json) -> Json:
        """Call a function once from a state machine under its own role. Return the status of its execution."""
        arn = self.centre.outputs[output]
        name = f"{STACK_NAME}-{function}"
        task = {"Type": "Task", "Resource": "arn:aws:states:::lambda:invoke", "End": True}
        call = {**task, "Arguments": {"FunctionName": name, "Payload": payload}}
        definition = {"QueryLanguage": "JSONata", "StartAt": "Call", "States": {"Call": call}}
        self._workflows.update_state_machine(stateMachineArn=arn, definition=json.dumps(definition))
        try:
            return self._ended(self._workflows.start_execution(stateMachineArn=arn, input="{}")["executionArn"])
        finally:
            self._workflows.update_state_machine(stateMachineArn=arn, definition=_ENDS_AT_ONCE)

    def _ended(self, execution: str) -> Json:
        def seen() -> Json | None:
            document: Json = self._workflows.describe_execution(executionArn=execution)
            return document if document["status"] != "RUNNING" else None

        ended = until(seen, "a workflow has ended")
        assert ended
        return ended

    @contextmanager
    def polled(self, function: str) -> Iterator[None]:
        """Poll the queue of a function in this context."""
        name = f"{STACK_NAME}-{function}"
        (mapping,) = self._lambda.list_event_source_mappings(FunctionName=name)["EventSourceMappings"]
        self._lambda.update_event_source_mapping(UUID=mapping["UUID"], Enabled=True)
        try:
            yield
        finally:
            self._lambda.update_event_source_mapping(UUID=mapping["UUID"], Enabled=False)

    def has_message(self, output: str, body: str) -> bool:
        """Receive the messages of a queue, and return whether this message is one of them."""
        url = self.centre.outputs[output]
        messages = self.sqs.receive_message(QueueUrl=url, MaxNumberOfMessages=10).get("Messages", ())
        for message in messages:
            self.sqs.delete_message(QueueUrl=url, ReceiptHandle=message["ReceiptHandle"])
        return any(message["Body"] == body for message in messages)

    def settle_everything(self) -> None:
        """Delete everything on which a cycle, the watch or the sweep would act."""
        for state in ("JOB#PENDING", "ATTEMPT#LIVE", "RENTAL#OPEN", "WAIT#OPEN", "WAIT#ANSWERED"):
            self.forget_state(Table.JOBS, state)
        for state in (
            "INC#OPEN",
            "INC#RECOVERING",
            "INC#BLOCKED",
            "WAIT#OPEN",
            "WAIT#ANSWERED",
            "UNRESOLVED",
            "OPEN",
            "UNHEALTHY",
        ):
            self.forget_state(Table.INCIDENTS, state)
        self.forget_partition(Table.QUOTAS, quota_rows.tree_key().pk, "CHARGE#")
        self.forget_partition(Table.QUOTAS, quota_rows.tree_key().pk, "RENTAL#")
        self.forget(fleet_rows.shortages_key())
        self.forget(fleet_rows.lock_key("watch"), fleet_rows.lock_key("sweep"), fleet_rows.hold_key())
        self.forget(
            *(fleet_rows.heartbeat_key(function) for function in ("schedule_jobs", "watch_cluster", "sweep_fleet"))
        )

    # ------------------------------------------------------------ calling the API

    def granted(self, policy: str) -> list[Json]:
        """Return the deployed statements of a caller policy."""
        arn = self.centre.outputs[f"{policy}Policy"]
        version = self.iam.get_policy(PolicyArn=arn)["Policy"]["DefaultVersionId"]
        document = self.iam.get_policy_version(PolicyArn=arn, VersionId=version)["PolicyVersion"]["Document"]
        documents: list[Json] = document["Statement"]
        return documents

    def call(self, caller: Credentials, route: str) -> ApiReply:
        """Call a route of the API (`GET /v1/status`), signed by a caller."""
        method, _, path = route.partition(" ")
        url = self.centre.api_url.removesuffix("/v1") + path
        body = b"{}" if method == "POST" else None
        request = AWSRequest(method, url, data=body)
        key = Key(caller.access_key_id, caller.secret_access_key)
        SigV4Auth(key, "execute-api", caller.region).add_auth(request)
        opener = urllib.request.build_opener(urllib.request.ProxyHandler({}))
        sent = urllib.request.Request(url, body, dict(request.headers), method=method)
        try:
            with opener.open(sent, timeout=30) as answer:
                return ApiReply(answer.status, answer.read().decode())
        except urllib.error.HTTPError as refused:
            with refused:
                return ApiReply(refused.code, refused.read().decode())


def _workload_paths(namespace: str) -> tuple[str, ...]:
    core = f"/api/v1/namespaces/{namespace}"
    return (*(kind.path(namespace) for kind in (JOB, *OPERATED)), f"{core}/services", f"{core}/pods")


def _users_namespace() -> list[Json]:
    """Return the namespace of users' jobs, with the RoleBinding that docs/operate/adoption.md asks for."""
    api = "rbac.authorization.k8s.io"
    return [
        {"apiVersion": "v1", "kind": "Namespace", "metadata": {"name": USERS_NAMESPACE}},
        {
            "apiVersion": f"{api}/v1",
            "kind": "RoleBinding",
            "metadata": {"name": "evenkeel-restarters", "namespace": USERS_NAMESPACE},
            "subjects": [{"kind": "Group", "name": RESTARTERS, "apiGroup": api}],
            "roleRef": {"kind": "ClusterRole", "name": RESTARTER_ROLE, "apiGroup": api},
        },
    ]


@cache
def _access_manifest() -> tuple[Json, ...]:
    return tuple(document for document in yaml.safe_load_all(ACCESS.read_text(encoding="utf-8")) if document)


def access_roles() -> dict[str, Json]:
    """Return the roles of the access manifest by name."""
    return {
        document["metadata"]["name"]: document
        for document in _access_manifest()
        if document["kind"] in ("Role", "ClusterRole")
    }


def access_groups() -> dict[str, str]:
    """Return which role each group is bound to, by group. A namespace of users' jobs binds one itself."""
    return {
        subject["name"]: binding["roleRef"]["name"]
        for binding in (*_access_manifest(), *_users_namespace())
        if binding["kind"].endswith("Binding")
        for subject in binding["subjects"]
    }


def access_entries() -> dict[str, list[str]]:
    """Return the groups of each function."""
    groups_by_role: dict[str, list[str]] = json.loads(ENTRIES.read_text(encoding="utf-8"))
    return groups_by_role


def verbs() -> list[tuple[str, str, str]]:
    """Return every (role, resource, verb) in the access manifest."""
    return [
        (name, resource, verb)
        for name, role in access_roles().items()
        for rule in role["rules"]
        for resource in rule["resources"]
        for verb in rule["verbs"]
    ]


def rules_without(rules: list[Json], resource: str, verb: str) -> Iterator[Json]:
    for rule in rules:
        if resource not in rule["resources"]:
            yield rule
            continue
        resources_left = [entry for entry in rule["resources"] if entry != resource]
        if resources_left:
            yield {**rule, "resources": resources_left}
        kept = [entry for entry in rule["verbs"] if entry != verb]
        if kept:
            yield {**rule, "resources": [resource], "verbs": kept}


def _reads(cluster_arn: str) -> dict[str, Any]:
    actions = ["sagemaker:DescribeCluster", "sagemaker:ListClusterNodes", "sagemaker:DescribeClusterNode"]
    return {"Effect": "Allow", "Action": actions, "Resource": cluster_arn}
