"""The data centre: engine, local GPU cluster, the deployed template, the ticker, and their permissions.

    engine ── identities ── GPU cluster ── sam deploy ── Kubernetes access ── ticker
      IAM on    one for       the engine     the real      the manifest of      invokes the scheduled
                each role     knows the      template      charts/, entries     functions each second
                              callers                      of each role

Everything is on loopback, on free ports, under one run folder, and ends with `stop()`.
"""

from __future__ import annotations

import functools
import json
import os
import shutil
from collections.abc import Callable, Mapping
from contextlib import ExitStack
from dataclasses import dataclass, field
from datetime import UTC, datetime
from pathlib import Path
from types import TracebackType
from typing import Any, Final, Self

import yaml

from evenkeel_client.client import ApiClient, warn_on_stderr
from evenkeel_client.context import ApiContext, StaticKey
from evenkeel_local import ACCOUNT_ID, PROJECT, REGION, gpu_cluster
from evenkeel_local.deployment import STACK_NAME, Outputs, deploy
from evenkeel_local.engine import Engine
from evenkeel_local.identities import Credentials, create_deployer, make_user, policy_statements
from evenkeel_local.ticker import Ticker, ticker_statements

CHECKPOINTS_BUCKET: Final = "evenkeel-checkpoints"
PAGES_QUEUE: Final = "evenkeel-pages"
FLEET: Final = "laptop"
NAMESPACE: Final = "evenkeel-jobs"
SERVICE_ACCOUNT: Final = "trainer"
TRAINING_PLAN: Final = "p5-thirty-days"
"""The training plan of the HyperPod nodes. By default it ends 30 days after the start of the data centre."""
_OPERATOR: Final = "operator"
_WATCH: Final = "WatchClusterFunction"
SCHEDULED: Final = {_WATCH: 1.0, "SweepFleetFunction": 2.0, "ScheduleJobsFunction": 2.0}
"""The scheduled functions, with the seconds between two invocations. On AWS, they run once a minute."""
SPOT_NOTICE_SECONDS: Final = 15.0
"""Two minutes on AWS, where a save also takes longer."""
KARPENTER_REPAIR_SECONDS: Final = 8.0
"""Ten minutes in production."""

Say = Callable[[str], None]


@dataclass(frozen=True)
class FleetShape:
    """The hardware of the data centre."""

    nodes: int = 5
    instance_type: str = "ml.p5.48xlarge"
    group: str = "p5-workers"
    node_recovery: str = "None"
    duplicate_events: bool = True
    burst_cluster: str = ""
    """Name of a second EKS cluster, in which Karpenter launches all nodes; empty if there is none."""
    plan_remaining_seconds: int | None = None
    """Time from the start of the data centre to the end of the training plan; None: about 30 days."""
    node_groups: tuple[Mapping[str, Any], ...] = ()
    """EKS node groups beside the HyperPod cluster, as the configuration of the local cluster spells them."""
    delays: Mapping[str, float] = field(
        default_factory=lambda: {
            "boot": 1.0,
            "reboot": 3.0,
            "replace": 4.0,
            "heartbeat": 0.5,
            "nodeMonitorGrace": 2.0,
            "agentDetect": 0.3,
            "eventDelay": 0.1,
            "autoRecovery": 6.0,
        }
    )

    def config(self) -> dict[str, Any]:
        """Return the local cluster's configuration."""
        taint = {"key": "evenkeel.io/awaiting-validation", "value": "true", "effect": "NoSchedule"}
        return {
            "account": ACCOUNT_ID,
            "region": REGION,
            "clusterName": "research-train",
            "eksClusterName": "research-eks",
            "nodeRecovery": self.node_recovery,
            "nodeProvisioningMode": "Continuous",
            "duplicateEvents": self.duplicate_events,
            "trainingPlans": [
                {
                    "name": TRAINING_PLAN,
                    "instanceType": self.instance_type,
                    "totalInstanceCount": self.nodes,
                    "remainingSeconds": self.plan_remaining_seconds,
                }
            ],
            "instanceGroups": [
                {
                    "name": self.group,
                    "instanceType": self.instance_type,
                    "count": self.nodes,
                    "taints": [taint],
                    "trainingPlan": TRAINING_PLAN,
                }
            ],
            "karpenter": {
                "spotNotice": SPOT_NOTICE_SECONDS,
                "nodeRepair": {"AcceleratedHardwareReady": KARPENTER_REPAIR_SECONDS},
            },
            "trainingOperators": True,
            "nodeGroups": [dict(group) for group in self.node_groups],
            "delays": dict(self.delays),
        }

    def burst_config(self) -> dict[str, Any]:
        """Return the configuration of the second cluster. It has no node until Karpenter launches one."""
        return {
            **self.config(),
            "clusterName": "unused",
            "clusterId": "b7r2u9s4t1xy",
            "eksClusterName": self.burst_cluster,
            "trainingPlans": [],
            "instanceGroups": [],
            "nodeGroups": [],
        }


@dataclass(frozen=True)
class StackSettings:
    """How a data centre deploys Evenkeel."""

    mode: str = "act"
    """`observe`, `recommend` or `act`."""
    policy: str = "local"
    """`local` (seconds) or `production`."""
    admission: str = "evenkeel"
    """`evenkeel` or `kueue`; Kueue itself is not installed."""
    drills_may_act: bool = True
    """Whether drill events (`evenkeel.drill`) are accepted and may lead to actions."""

    def parameters(self) -> dict[str, str]:
        """Return the parameters of the stack that these settings decide."""
        return {
            "Mode": self.mode,
            "Admission": self.admission,
            "DrillsMayAct": str(self.drills_may_act).lower(),
            "Policy": self.policy,
        }


class DataCentre:
    """A running data centre. Use it as a context manager, or call `stop()`."""

    def __init__(self, run_dir: Path) -> None:
        self.run_dir = run_dir
        self._open = ExitStack()
        self.engine: Engine
        self.cluster: gpu_cluster.ClusterHandle
        self.burst_cluster: gpu_cluster.ClusterHandle | None = None
        """The second cluster, if the fleet has one."""
        self.deployer: Credentials
        self.operator: Credentials
        self.ticker: Ticker | None = None
        self.up_since = ""
        self.node_count = 0
        self._cluster_data: Path | None = None
        self.outputs: Outputs = {}
        self.roles: dict[str, str] = {}

    @classmethod
    def start(
        cls,
        run_dir: Path,
        *,
        fleet: FleetShape | None = None,
        stack: StackSettings | None = None,
        ticks: bool = True,
        keeps_cluster: bool = False,
        forks_workers: bool = True,
        say: Say = lambda _text: None,
    ) -> Self:
        """Start everything; on any failure, also Ctrl-C, stop everything.

        Args:
            run_dir: Folder for logs, state and the pods' files. Emptied first.
            fleet: The hardware.
            stack: How Evenkeel is deployed.
            keeps_cluster: Whether the GPU cluster saves its state, so that it can restart.
            forks_workers: Whether functions start as forks, without importing their layer; see `Engine.start`.
            ticks: Whether the scheduled functions run each second; otherwise they run only if a test invokes them.
            say: Receives progress messages.
        """
        shutil.rmtree(run_dir, ignore_errors=True)
        run_dir.mkdir(parents=True)
        centre = cls(run_dir)
        centre._cluster_data = run_dir / "gpu-cluster-state" if keeps_cluster else None
        try:
            centre._start_engine(say, forks_workers=forks_workers)
            centre._start_gpu_cluster(fleet or FleetShape(), say)
            centre._deploy(stack or StackSettings(), say)
            centre._grant_access(say)
            if ticks:
                centre._start_ticking()
        except BaseException:
            centre.stop()
            raise
        return centre

    def _start_engine(self, say: Say, *, forks_workers: bool) -> None:
        say("starting the AWS emulator, with IAM enforced")
        self.engine = self._open.enter_context(Engine.start(self.run_dir / "engine", forks_workers=forks_workers))
        self.deployer = create_deployer(self.engine)
        location = {"LocationConstraint": REGION}
        self.deployer.client("s3").create_bucket(Bucket=CHECKPOINTS_BUCKET, CreateBucketConfiguration=location)

    def _start_gpu_cluster(self, fleet: FleetShape, say: Say) -> None:
        self.node_count = fleet.nodes + sum(int(group["count"]) for group in fleet.node_groups)
        say(f"starting the GPU cluster ({fleet.nodes} nodes, {fleet.instance_type})")
        identity = make_user(self.deployer, SERVICES_USER, _CLUSTER_STATEMENTS)
        config = fleet.config()
        if fleet.burst_cluster:
            say(f"starting the second cluster, {fleet.burst_cluster}")
            self.burst_cluster = self._open.enter_context(
                gpu_cluster.start(
                    fleet.burst_config(),
                    self.run_dir / "burst-cluster",
                    engine_endpoint=self.engine.endpoint_url,
                    credentials=identity,
                )
            )
            other = {"name": fleet.burst_cluster, "endpoint": self.burst_cluster.kubernetes_url}
            config["otherEksClusters"] = [{**other, "caPem": self.burst_cluster.ca_pem}]
        self._start_cluster = functools.partial(
            gpu_cluster.start,
            config,
            self.run_dir / "gpu-cluster",
            engine_endpoint=self.engine.endpoint_url,
            credentials=identity,
            data_dir=self._cluster_data,
        )
        self.cluster = self._start_cluster()
        self._open.callback(self._stop_cluster)

    def _deploy(self, stack: StackSettings, say: Say) -> None:
        users = f"arn:aws:iam::{self.engine.account_id}:user"
        self.outputs = deploy(
            self.engine,
            self.deployer,
            {
                "FleetName": FLEET,
                "HyperPodClusterArn": self.cluster.cluster_arn,
                "KubernetesClusters": ",".join(cluster.eks_cluster_name for cluster in self.clusters),
                **stack.parameters(),
                "SageMakerEndpoint": self.cluster.sagemaker_url,
                "EksEndpoint": self.cluster.eks_url,
                "AutoScalingEndpoint": self.cluster.eks_url,
                "CheckpointBuckets": f"arn:aws:s3:::{CHECKPOINTS_BUCKET}",
                # The operator is created below, after its API. The deployer is here because it sends events again.
                "OperatorPrincipals": f"{users}/{_OPERATOR},{users}/deployer",
                "LocalEngine": "true",
            },
            run_dir=self.run_dir,
            progress=say,
        )

    def _grant_access(self, say: Say) -> None:
        """Grant the rights of pods, pages, the deployed functions and the operator."""
        say("granting Kubernetes access")
        self._grant_kubernetes_access()
        self._put_pod_identity(NAMESPACE, "trainer")
        self._subscribe_to_pages()
        on_call = policy_statements(self.deployer, self.outputs["EvenkeelOnCallPolicy"])
        tests_itself = _doctor_statement([f"{STACK_NAME}-{function}:live" for function in self.roles])
        routes = _api_statement(self.outputs["ApiId"])
        self.up_since = datetime.now(UTC).isoformat(timespec="seconds")
        self.operator = make_user(self.deployer, _OPERATOR, [routes, tests_itself, *_ENGINE_PARAMETERS, *on_call])

    def _start_ticking(self) -> None:
        periods = {f"{self.outputs[name]}:live": seconds for name, seconds in SCHEDULED.items()}
        invoker = make_user(self.deployer, "ticker", ticker_statements(list(periods)))
        self.ticker = self._open.enter_context(
            Ticker(invoker, periods, long_running_functions=[f"{self.outputs[_WATCH]}:live"])
        )

    @property
    def clusters(self) -> tuple[gpu_cluster.ClusterHandle, ...]:
        """All Kubernetes clusters, the committed one first."""
        return (self.cluster, *([self.burst_cluster] if self.burst_cluster else []))

    def _stop_cluster(self) -> None:
        """Stop the current cluster."""
        self.cluster.stop()

    def restart_cluster(self) -> None:
        """Restart the GPU cluster after it died, at the same addresses and from its saved state."""
        self.cluster.stop()
        self.cluster = self._start_cluster(after=self.cluster)

    def restart_ticker(self) -> None:
        """Restart the ticker."""
        if self.ticker is not None:
            self.ticker.stop()
        self._start_ticking()

    def stop(self) -> None:
        """End everything that `start` began. Idempotent: yes."""
        self._open.close()

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, _kind: type[BaseException] | None, _error: BaseException | None, _at: TracebackType | None
    ) -> None:
        self.stop()

    @property
    def api_url(self) -> str:
        """The base URL of the API; it ends in `/v1`."""
        return f"{self.engine.api_url(self.outputs['ApiId'], self.outputs['ApiStage'])}/v1"

    def state(self) -> dict[str, Any]:
        """Return the addresses and outputs of this data centre, without secrets."""
        return {
            "pid": os.getpid(),
            "upSince": self.up_since,
            "engineUrl": self.engine.endpoint_url,
            "apiUrl": self.api_url,
            "controlUrl": self.cluster.control_url,
            "kubernetesUrl": self.cluster.kubernetes_url,
            "runDir": str(self.run_dir),
            "pids": {"engine": self.engine.pid, "gpuCluster": self.cluster.pid},
            "outputs": self.outputs,
        }

    def client(self, *, warn: Callable[[str], None] = warn_on_stderr) -> ApiClient:
        """Return an API client with the operator's key. `warn` gets one text for each source of stale facts."""
        key = StaticKey(self.operator.access_key_id, self.operator.secret_access_key)
        url = self.cluster.control_url
        context = ApiContext(FLEET, self.api_url, REGION, key=key, control_url=url, source="the data centre")
        return ApiClient(context, warn=warn)

    def context(self) -> dict[str, Any]:
        """Return the context of the command line: the API's address and the operator's key."""
        return {
            "name": FLEET,
            "url": self.api_url,
            "region": REGION,
            "controlUrl": self.cluster.control_url,
            "stack": STACK_NAME,
            "awsEndpointUrl": self.engine.endpoint_url,
            "sagemakerEndpointUrl": self.cluster.sagemaker_url,
            "credentials": {
                "accessKeyId": self.operator.access_key_id,
                "secretAccessKey": self.operator.secret_access_key,
            },
        }

    def make_namespace(self, namespace: str) -> None:
        """Create the namespace of a team, with the access that functions need (docs/operate/teams.md).

        Its service account has the name and the permissions of the stack's service account.
        """
        self._apply_access(namespace)
        self._put_pod_identity(namespace, f"trainer-{namespace}")

    def _apply_access(self, namespace: str) -> None:
        manifest = (PROJECT / "charts" / "kubernetes-access.yaml").read_text(encoding="utf-8")
        documents = [document for document in yaml.safe_load_all(manifest.replace(NAMESPACE, namespace)) if document]
        for cluster in self.clusters:
            cluster.apply(documents)

    def _grant_kubernetes_access(self) -> None:
        """Apply the access manifest and the access entry of each function's role, as docs/deploy.md says."""
        self._apply_access(NAMESPACE)
        groups: dict[str, list[str]] = json.loads((PROJECT / "charts" / "access-entries.json").read_text("utf-8"))
        for pair in self.outputs["KubernetesRoleArns"].split(","):
            function, _, role = pair.partition("=")
            self.roles[function] = role
            for cluster in self.clusters:
                cluster.put_access_entry(role, groups[function])

    def _subscribe_to_pages(self) -> None:
        """Subscribe a queue to the pages, so that tests can read them."""
        url = self.deployer.client("sqs").create_queue(QueueName=PAGES_QUEUE)["QueueUrl"]
        arn = f"arn:aws:sqs:{REGION}:{ACCOUNT_ID}:{PAGES_QUEUE}"
        subscribe_queue(self.deployer, url, arn, self.outputs["PageTopicArn"])

    def _put_pod_identity(self, namespace: str, user: str) -> None:
        trainer = make_user(self.deployer, user, _TRAINER_STATEMENTS)
        for cluster in self.clusters:
            cluster.put_pod_identity(namespace, SERVICE_ACCOUNT, trainer.environment())


def subscribe_queue(deployer: Credentials, url: str, arn: str, topic: str) -> str:
    """Subscribe a queue to a topic; return the ARN of the subscription."""
    statement = {"Effect": "Allow", "Principal": {"Service": "sns.amazonaws.com"}, "Action": "sqs:SendMessage"}
    policy = json.dumps({"Version": "2012-10-17", "Statement": [{**statement, "Resource": arn}]})
    deployer.client("sqs").set_queue_attributes(QueueUrl=url, Attributes={"Policy": policy})
    sns = deployer.client("sns")
    answer = sns.subscribe(TopicArn=topic, Protocol="sqs", Endpoint=arn, ReturnSubscriptionArn=True)
    return str(answer["SubscriptionArn"])


SERVICES_USER: Final = "aws-services"
"""The IAM user of the GPU cluster. The engine lets users with the prefix `aws-` put events of AWS services."""
_QUESTIONS: Final = ["iam:SimulatePrincipalPolicy", "iam:GetAccessKeyLastUsed", "lambda:ListFunctions"]
_CLUSTER_STATEMENTS: Final[list[dict[str, Any]]] = [
    {"Effect": "Allow", "Action": [*_QUESTIONS, "events:PutEvents"], "Resource": "*"},
]
_BUCKET_ARN: Final = f"arn:aws:s3:::{CHECKPOINTS_BUCKET}"
_TRAINER_STATEMENTS: Final[list[dict[str, Any]]] = [
    {"Effect": "Allow", "Action": "s3:ListBucket", "Resource": _BUCKET_ARN},
    {"Effect": "Allow", "Action": ["s3:GetObject", "s3:PutObject"], "Resource": f"{_BUCKET_ARN}/*"},
]
_BUS: Final = f"arn:aws:events:{REGION}:{ACCOUNT_ID}"
_ENGINE_PARAMETERS: Final[list[dict[str, Any]]] = [
    # The ARN of a rule contains its bus here. On AWS, the ARN of a rule on the default bus does not.
    {"Effect": "Allow", "Action": "events:DescribeRule", "Resource": f"{_BUS}:rule/default/{STACK_NAME}-*"},
    # The engine does not have the condition key `events:source`.
    {"Effect": "Allow", "Action": "events:PutEvents", "Resource": f"{_BUS}:event-bus/default"},
]
"""Permissions of the stack's policy, written so that the engine understands them."""


def _doctor_statement(names: list[str]) -> dict[str, Any]:
    """Return the permission that `evenkeel doctor` needs besides the stack's policy: to invoke the functions."""
    arns = [f"arn:aws:lambda:{REGION}:{ACCOUNT_ID}:function:{name}" for name in names]
    return {"Effect": "Allow", "Action": "lambda:InvokeFunction", "Resource": arns}


def _api_statement(api_id: str) -> dict[str, Any]:
    arn = f"arn:aws:execute-api:{REGION}:{ACCOUNT_ID}:{api_id}/*"
    return {"Effect": "Allow", "Action": "execute-api:Invoke", "Resource": arn}
