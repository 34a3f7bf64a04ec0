"""The data centre: engine, local GPU cluster, the deployed template, the ticker, and who may do what.

    engine ── identities ── GPU cluster ── sam deploy ── Kubernetes access ── ticker
      IAM on    one a role    asks the       the real      the manifest of      invokes the scheduled
                              engine who     template      charts/, entries     functions each second
                              calls                        of each role

Everything is on loopback, on free ports, under one run folder, and ends with `stop()`.
"""

from __future__ import annotations

import json
import os
import shutil
import signal
import sys
import time
from collections.abc import Callable, Mapping
from contextlib import ExitStack
from dataclasses import dataclass, field
from pathlib import Path
from types import TracebackType
from typing import Any, Final, Self

import yaml

from evenkeel_cli.client import Client
from evenkeel_cli.context import Context, StaticKey
from evenkeel_local import ACCOUNT_ID, PROJECT, REGION, gpu_cluster
from evenkeel_local.deployment import STACK_NAME, Outputs, deploy
from evenkeel_local.engine import Engine
from evenkeel_local.identities import Credentials, bootstrap, make_user
from evenkeel_local.processes import Child, ProcessMark, interruptible
from evenkeel_local.ticker import Ticker, ticker_statements

CHECKPOINTS_BUCKET: Final = "evenkeel-checkpoints"
FLEET: Final = "laptop"
NAMESPACE: Final = "evenkeel-jobs"
SERVICE_ACCOUNT: Final = "trainer"
_OPERATOR: Final = "operator"
SCHEDULED: Final = ("WatchClusterFunction", "SweepFleetFunction", "ScheduleJobsFunction")
TICK_SECONDS: Final = 1.0
UP_SECONDS: Final = 240.0
SPOT_NOTICE_SECONDS: Final = 15.0
"""Two minutes in life, where a save takes longer too."""
KARPENTER_REPAIR_SECONDS: Final = 8.0
"""Ten minutes in life."""

Say = Callable[[str], None]


@dataclass(frozen=True)
class FleetShape:
    """The hardware of the data centre."""

    nodes: int = 5
    instance_type: str = "ml.p5.48xlarge"
    group: str = "p5-workers"
    node_recovery: str = "None"
    duplicate_events: bool = True
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
            "instanceGroups": [
                {"name": self.group, "instanceType": self.instance_type, "count": self.nodes, "taints": [taint]}
            ],
            "karpenter": {
                "spotNotice": SPOT_NOTICE_SECONDS,
                "nodeRepair": {"AcceleratedHardwareReady": KARPENTER_REPAIR_SECONDS},
            },
            "delays": dict(self.delays),
        }


class DataCentre:
    """A running data centre. Use it as a context manager, or call `stop()`."""

    def __init__(self, run_dir: Path) -> None:
        self.run_dir = run_dir
        self._open = ExitStack()
        self.engine: Engine
        self.cluster: gpu_cluster.ClusterHandle
        self.deployer: Credentials
        self.operator: Credentials
        self.node_count = 0
        self.outputs: Outputs = {}
        self.roles: dict[str, str] = {}

    @classmethod
    def start(
        cls,
        run_dir: Path,
        *,
        fleet: FleetShape | None = None,
        mode: str = "act",
        policy: str = "local",
        drills_may_act: bool = True,
        admission: str = "evenkeel",
        ticks: bool = True,
        say: Say = lambda _text: None,
    ) -> Self:
        """Bring everything up; on any failure, Ctrl-C included, bring down what was up.

        Args:
            run_dir: Folder for logs, state and the pods' files. Emptied first.
            fleet: The hardware.
            mode: `observe` or `act`.
            policy: `local` (seconds) or `production`.
            admission: `evenkeel` or `kueue`, which is not part of it.
            drills_may_act: Whether events of the source `evenkeel.drill` come in, and may lead to acts.
            ticks: Whether the scheduled functions run each second; without, only when somebody invokes them.
            say: Is told in a few words what happens next.
        """
        shutil.rmtree(run_dir, ignore_errors=True)
        run_dir.mkdir(parents=True)
        centre = cls(run_dir)
        try:
            centre._bring_up(
                fleet or FleetShape(), mode, policy, drills_may_act=drills_may_act, admission=admission, say=say
            )
            if ticks:
                centre._start_ticking()
        except BaseException:
            centre.stop()
            raise
        return centre

    def _bring_up(
        self, fleet: FleetShape, mode: str, policy: str, *, drills_may_act: bool, admission: str, say: Say
    ) -> None:
        say("starting the engine (IAM enforced)")
        self.engine = self._open.enter_context(Engine.start(self.run_dir / "engine"))
        self.deployer = bootstrap(self.engine)
        self._make_checkpoints_bucket()
        self.node_count = fleet.nodes
        say(f"starting the GPU cluster ({fleet.nodes} nodes, {fleet.instance_type})")
        self.cluster = gpu_cluster.start(
            fleet.config(),
            self.run_dir / "gpu-cluster",
            engine_endpoint=self.engine.endpoint_url,
            credentials=make_user(self.deployer, SERVICES_USER, _CLUSTER_STATEMENTS),
        )
        self._open.callback(self.cluster.stop)
        self.outputs = deploy(
            self.engine,
            self.deployer,
            {
                "FleetName": FLEET,
                "HyperPodClusterArn": self.cluster.cluster_arn,
                "KubernetesClusters": self.cluster.eks_cluster_name,
                "Mode": mode,
                "Admission": admission,
                "DrillsMayAct": str(drills_may_act).lower(),
                "Policy": policy,
                "SageMakerEndpoint": self.cluster.sagemaker_url,
                "EksEndpoint": self.cluster.eks_url,
                "CheckpointBuckets": f"arn:aws:s3:::{CHECKPOINTS_BUCKET}",
                # Made below, when the API that it may call exists.
                "OperatorPrincipals": f"arn:aws:iam::{self.engine.account_id}:user/{_OPERATOR}",
                "LocalEngine": "true",
            },
            run_dir=self.run_dir,
            progress=say,
        )
        say("granting Kubernetes access")
        self._grant_kubernetes_access()
        self._give_pods_their_identity()
        self.operator = make_user(self.deployer, _OPERATOR, [_may_call_the_api(self.outputs["ApiId"])])
        (self.run_dir / "state.json").write_text(json.dumps(self.state(), indent=2), encoding="utf-8")

    def _start_ticking(self) -> None:
        functions = [self.outputs[name] for name in SCHEDULED]
        invoker = make_user(self.deployer, "ticker", ticker_statements(functions))
        self._open.enter_context(Ticker(invoker, functions, every_seconds=TICK_SECONDS))

    def stop(self) -> None:
        """End everything that `start` began. Idempotent: yes."""
        self._open.close()
        (self.run_dir / "state.json").unlink(missing_ok=True)

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, _kind: type[BaseException] | None, _error: BaseException | None, _at: TracebackType | None
    ) -> None:
        self.stop()

    @property
    def api_url(self) -> str:
        """The API's base, which ends in `/v1`."""
        return f"{self.engine.api_url(self.outputs['ApiId'], self.outputs['ApiStage'])}/v1"

    def state(self) -> dict[str, Any]:
        """Return what others need to find this data centre: addresses and the outputs, no secrets."""
        return {
            "pid": os.getpid(),
            "engineUrl": self.engine.endpoint_url,
            "apiUrl": self.api_url,
            "controlUrl": self.cluster.control_url,
            "kubernetesUrl": self.cluster.kubernetes_url,
            "runDir": str(self.run_dir),
            "outputs": self.outputs,
        }

    def client(self) -> Client:
        """Return the command line's client, as the operator."""
        key = StaticKey(self.operator.access_key_id, self.operator.secret_access_key)
        return Client(
            Context(
                FLEET, self.api_url, REGION, key=key, control_url=self.cluster.control_url, source="the data centre"
            )
        )

    def context(self) -> dict[str, Any]:
        """Return the command line's context: where the API is, and the operator's own key."""
        return {
            "name": FLEET,
            "url": self.api_url,
            "region": REGION,
            "controlUrl": self.cluster.control_url,
            "credentials": {
                "accessKeyId": self.operator.access_key_id,
                "secretAccessKey": self.operator.secret_access_key,
            },
        }

    def _make_checkpoints_bucket(self) -> None:
        self.deployer.client("s3").create_bucket(
            Bucket=CHECKPOINTS_BUCKET, CreateBucketConfiguration={"LocationConstraint": REGION}
        )

    def make_namespace(self, namespace: str) -> None:
        """Make a team a namespace of its own, as docs/operate/teams.md says: with what functions may do in it.

        Its service account has the name of the stack's own, and an identity with as much.
        """
        self._apply_access(namespace)
        trainer = make_user(self.deployer, f"trainer-{namespace}", _TRAINER_STATEMENTS)
        self.cluster.put_pod_identity(namespace, SERVICE_ACCOUNT, trainer.environment())

    def _apply_access(self, namespace: str) -> None:
        manifest = (PROJECT / "charts" / "kubernetes-access.yaml").read_text(encoding="utf-8")
        documents = yaml.safe_load_all(manifest.replace(NAMESPACE, namespace))
        self.cluster.apply([document for document in documents if document])

    def _grant_kubernetes_access(self) -> None:
        """Apply the access manifest, and give each function's role its access entry, as docs/deploy.md says."""
        self._apply_access(NAMESPACE)
        groups: dict[str, list[str]] = json.loads((PROJECT / "charts" / "access-entries.json").read_text("utf-8"))
        for pair in self.outputs["KubernetesRoleArns"].split(","):
            function, _, role = pair.partition("=")
            self.roles[function] = role
            self.cluster.put_access_entry(role, groups[function])

    def _give_pods_their_identity(self) -> None:
        trainer = make_user(self.deployer, "trainer", _TRAINER_STATEMENTS)
        self.cluster.put_pod_identity(NAMESPACE, SERVICE_ACCOUNT, trainer.environment())


SERVICES_USER: Final = "aws-services"
"""The GPU cluster's: the engine lets it put events as AWS's services do, since its name begins with `aws-`."""
_CLUSTER_STATEMENTS: Final[list[dict[str, Any]]] = [
    {
        "Effect": "Allow",
        "Action": ["iam:SimulatePrincipalPolicy", "iam:GetAccessKeyLastUsed", "lambda:ListFunctions"],
        "Resource": "*",
    },
    {"Effect": "Allow", "Action": "events:PutEvents", "Resource": "*"},
]

_TRAINER_STATEMENTS: Final[list[dict[str, Any]]] = [
    {"Effect": "Allow", "Action": "s3:ListBucket", "Resource": f"arn:aws:s3:::{CHECKPOINTS_BUCKET}"},
    {
        "Effect": "Allow",
        "Action": ["s3:GetObject", "s3:PutObject"],
        "Resource": f"arn:aws:s3:::{CHECKPOINTS_BUCKET}/*",
    },
]


def _may_call_the_api(api_id: str) -> dict[str, Any]:
    arn = f"arn:aws:execute-api:{REGION}:{ACCOUNT_ID}:{api_id}/*"
    return {"Effect": "Allow", "Action": "execute-api:Invoke", "Resource": arn}


# ---------------------------------------------------------------- kept up: `evenkeel dev`


def up(root: Path, foreground: bool = False) -> int:
    """Bring a data centre up and keep it up: until Ctrl-C in the foreground, else until `down`.

    Returns:
        An exit code: 0 up, 1 it failed, 5 one is up already.
    """
    run_dir = root / ".evenkeel" / "dev"
    if status(root)["isUp"]:
        print("A data centre is up already. Look: evenkeel dev status. End it: evenkeel dev down.", file=sys.stderr)
        return 5
    if foreground:
        return _keep_up(root, run_dir)
    log = root / ".evenkeel" / "dev.log"
    log.unlink(missing_ok=True)
    child = Child.start(
        [sys.executable, "-m", "evenkeel_local.data_centre", str(root)], log=log, detached=True, cwd=root
    )
    deadline, told = time.monotonic() + UP_SECONDS, 0
    while time.monotonic() < deadline:
        lines = log.read_text(encoding="utf-8", errors="replace").splitlines() if log.exists() else []
        for line in lines[told:]:
            print(line, file=sys.stderr)
        told = len(lines)
        if status(root)["isUp"]:
            return 0
        if not child.is_running():
            break
        time.sleep(0.1)
    print(f"The data centre did not come up: see {log}.", file=sys.stderr)
    child.mark.stop_group()
    return 1


def _keep_up(root: Path, run_dir: Path) -> int:
    pid_file, context, kubectl = (root / ".evenkeel" / name for name in ("dev.pid", "context.json", "kubeconfig"))
    began = time.monotonic()

    def say(text: str) -> None:
        print(f"  {time.monotonic() - began:5.1f}s  {text}", file=sys.stderr, flush=True)

    try:
        with interruptible(), DataCentre.start(run_dir, say=say) as centre:
            _write_private(context, centre.context())
            _write_private(kubectl, centre.cluster.kubeconfig())
            mark = ProcessMark.of(os.getpid())
            if mark is not None:
                mark.write(pid_file)
            say(f"up: {centre.api_url}")
            say("try: evenkeel status · evenkeel drill faults · end it with Ctrl-C or evenkeel dev down")
            signal.pause()
    except KeyboardInterrupt:
        say("ending everything")
    finally:
        pid_file.unlink(missing_ok=True)
        context.unlink(missing_ok=True)
        kubectl.unlink(missing_ok=True)
    return 0


def _write_private(file: Path, document: dict[str, Any]) -> None:
    """Write a file that only its owner may read, from its first moment on."""
    file.unlink(missing_ok=True)
    with os.fdopen(os.open(file, os.O_WRONLY | os.O_CREAT | os.O_EXCL, 0o600), "w", encoding="utf-8") as out:
        json.dump(document, out)


def down(root: Path) -> int:
    """End the data centre that `up` started, and everything in it. Idempotent: yes. Returns 0."""
    mark = ProcessMark.read(root / ".evenkeel" / "dev.pid")
    if mark is None or not mark.is_alive():
        return 0
    os.kill(mark.pid, signal.SIGTERM)
    deadline = time.monotonic() + 30
    while mark.is_alive() and time.monotonic() < deadline:
        time.sleep(0.05)
    if mark.is_alive():
        mark.stop_group()
    return 0


def kubeconfig(root: Path) -> dict[str, Any]:
    """Return a kubeconfig of the GPU cluster that is up, as its administrator."""
    document: dict[str, Any] = json.loads((root / ".evenkeel" / "kubeconfig").read_text(encoding="utf-8"))
    return document


def status(root: Path) -> dict[str, Any]:
    """Return whether one is up, and its addresses."""
    mark = ProcessMark.read(root / ".evenkeel" / "dev.pid")
    state = root / ".evenkeel" / "dev" / "state.json"
    if mark is None or not mark.is_alive() or not state.exists():
        return {"isUp": False}
    return {"isUp": True, "stack": STACK_NAME, **json.loads(state.read_text(encoding="utf-8"))}


if __name__ == "__main__":
    sys.exit(_keep_up(Path(sys.argv[1]), Path(sys.argv[1]) / ".evenkeel" / "dev"))
