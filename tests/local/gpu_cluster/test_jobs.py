"""Jobs and pods on the local cluster: real processes, their exits, and the reactions of the controllers."""

import json
import os
import time
from datetime import datetime
from typing import Any

import pytest

from evenkeel_local.gpu_cluster import ClusterHandle
from tests.local.gpu_cluster.kube_client import (
    JOBS,
    NODES,
    PODS,
    SERVICES,
    STRATEGIC,
    Json,
    KubeApiError,
    KubeClient,
    a_claim,
    a_job,
    a_pod,
    condition,
    eventually,
)

SLEEPS = ("python", "-c", "import time; print('up', flush=True); time.sleep(600)")
FOREGROUND = {"propagationPolicy": "Foreground"}


def phase(pod: Json) -> str:
    return str(pod["status"]["phase"])


def ended(pod: Json) -> tuple[int, str]:
    state = pod["status"]["containerStatuses"][0]["state"]["terminated"]
    return state["exitCode"], state["reason"]


def until_running(kube: KubeClient, name: str) -> Json:
    return kube.until(f"{PODS}/{name}", lambda pod: phase(pod) == "Running", f"{name} to run")


def until_over(kube: KubeClient, name: str) -> Json:
    return kube.until(f"{PODS}/{name}", lambda pod: phase(pod) in ("Succeeded", "Failed"), f"{name} to end")


def job_pods(kube: KubeClient, name: str) -> list[Json]:
    return kube.items(f"{PODS}?labelSelector=batch.kubernetes.io/job-name={name}")


# Processes


def test_pod_runs_its_command_and_succeeds(kube: KubeClient) -> None:
    kube.create(PODS, a_pod("one", "python", "-c", "print('hello')"))

    pod = until_over(kube, "one")

    assert (phase(pod), ended(pod)) == ("Succeeded", (0, "Completed"))
    assert kube.get(f"{PODS}/one/log") == "hello\n"
    assert condition(pod, "Ready") == "False"
    assert condition(pod, "PodScheduled") == "True"


@pytest.mark.parametrize(
    ("code", "expected"),
    [
        ("raise SystemExit(3)", (3, "Error")),
        ("import os; os.kill(os.getpid(), 9)", (137, "Error")),
        ("import os; os.abort()", (134, "Error")),
    ],
)
def test_pod_status_shows_the_exit_code(kube: KubeClient, code: str, expected: tuple[int, str]) -> None:
    kube.create(PODS, a_pod("one", "python", "-c", code))

    pod = until_over(kube, "one")

    assert (phase(pod), ended(pod)) == ("Failed", expected)


def test_missing_command_is_a_start_error(kube: KubeClient) -> None:
    kube.create(PODS, a_pod("one", "no-such-command"))

    assert ended(until_over(kube, "one")) == (128, "StartError")


def test_deleted_pod_is_terminated_and_then_killed(kube: KubeClient, cluster: ClusterHandle) -> None:
    deaf = (
        "import signal, time\n"
        "signal.signal(signal.SIGTERM, lambda *a: print('asked', flush=True))\n"
        "print('up', flush=True)\n"
    )
    kube.create(
        PODS, a_pod("deaf", "python", "-c", deaf + "while True: time.sleep(0.05)", terminationGracePeriodSeconds=1)
    )
    until_running(kube, "deaf")
    eventually(lambda: "up" in kube.get(f"{PODS}/deaf/log"), "the process to be up")
    pid = cluster.processes()[0]["pid"]

    began = time.monotonic()
    deleted = kube.delete(f"{PODS}/deaf")
    eventually(lambda: "asked" in kube.get(f"{PODS}/deaf/log"), "SIGTERM to arrive")
    kube.until_gone(f"{PODS}/deaf")

    assert deleted["metadata"]["deletionGracePeriodSeconds"] == 1
    assert time.monotonic() - began >= 0.9
    with pytest.raises(ProcessLookupError):
        os.kill(pid, 0)


def test_child_processes_end_with_their_pod(kube: KubeClient, cluster: ClusterHandle) -> None:
    spawn = (
        "import subprocess, time\n"
        "inner = subprocess.Popen(['sleep', '600'], start_new_session=True)\n"
        "print(inner.pid, flush=True)\n"
        "time.sleep(0.3)\n"
    )
    kube.create(PODS, a_pod("parent", "python", "-c", spawn))

    until_over(kube, "parent")
    escaped = int(kube.get(f"{PODS}/parent/log"))

    def gone() -> bool:
        try:
            os.kill(escaped, 0)
        except ProcessLookupError:
            return True
        return False

    eventually(gone, "the process that left its group to be killed")


def test_pod_without_a_command_runs_until_deleted(kube: KubeClient, cluster: ClusterHandle) -> None:
    kube.create(PODS, a_pod("pause"))

    until_running(kube, "pause")
    assert cluster.processes() == []
    kube.delete(f"{PODS}/pause")

    kube.until_gone(f"{PODS}/pause")


def test_failing_container_restarts_under_its_policy(kube: KubeClient) -> None:
    kube.create(PODS, a_pod("loop", "python", "-c", "raise SystemExit(1)", restartPolicy="Always"))

    pod = kube.until(
        f"{PODS}/loop",
        lambda pod: (
            (statuses := pod["status"].get("containerStatuses"))
            and statuses[0]["restartCount"] >= 1
            and "waiting" in statuses[0]["state"]
        ),
        "CrashLoopBackOff",
    )

    status = pod["status"]["containerStatuses"][0]
    assert status["state"]["waiting"]["reason"] == "CrashLoopBackOff"
    assert status["lastState"]["terminated"]["exitCode"] == 1
    kube.delete(f"{PODS}/loop", {"gracePeriodSeconds": 0})


def test_init_containers_run_first(kube: KubeClient) -> None:
    init = {"name": "first", "image": "a:1", "command": ["python", "-c", "open('made', 'w').write('x')"]}
    kube.create(PODS, a_pod("two", "python", "-c", "print(open('made').read())", initContainers=[init]))

    pod = until_over(kube, "two")

    assert (phase(pod), kube.get(f"{PODS}/two/log")) == ("Succeeded", "x\n")


def test_environment_variables_of_pod_spec_reach_the_process(kube: KubeClient) -> None:
    kube.create("/api/v1/namespaces/default/configmaps", {"metadata": {"name": "settings"}, "data": {"LEVEL": "7"}})
    kube.create(
        "/api/v1/namespaces/default/secrets",
        {"metadata": {"name": "key"}, "data": {"token": "czNjcmV0"}, "type": "Opaque"},
    )
    pod = a_pod("env", "python", "-c", "import os, json; print(json.dumps(dict(os.environ)))", "$(GREETING)", gpus=1)
    pod["spec"]["containers"][0].update(
        env=[
            {"name": "NAME", "valueFrom": {"fieldRef": {"fieldPath": "metadata.name"}}},
            {"name": "IP", "valueFrom": {"fieldRef": {"fieldPath": "status.podIP"}}},
            {"name": "APP", "valueFrom": {"fieldRef": {"fieldPath": "metadata.labels['app']"}}},
            {"name": "CPUS", "valueFrom": {"resourceFieldRef": {"resource": "limits.cpu"}}},
            {"name": "TOKEN", "valueFrom": {"secretKeyRef": {"name": "key", "key": "token"}}},
            {"name": "GREETING", "value": "hello $(NAME) $$(NAME) $(UNKNOWN)"},
        ],
        envFrom=[{"configMapRef": {"name": "settings"}, "prefix": "MY_"}],
    )
    pod["spec"]["containers"][0]["resources"]["limits"]["cpu"] = "1"
    kube.create(PODS, pod)

    stored = until_over(kube, "env")
    env = json.loads(kube.get(f"{PODS}/env/log"))

    assert env["NAME"] == "env"
    assert env["APP"] == "env"
    assert env["IP"] == stored["status"]["podIP"]
    assert (env["CPUS"], env["TOKEN"], env["MY_LEVEL"]) == ("1", "s3cret", "7")
    assert env["GREETING"] == "hello env $(NAME) $(UNKNOWN)"
    assert "AWS_ACCESS_KEY_ID" not in env


def test_pod_waits_for_its_config_map(kube: KubeClient) -> None:
    pod = a_pod("needy", "python", "-c", "import os; print(os.environ['A'])")
    pod["spec"]["containers"][0]["envFrom"] = [{"configMapRef": {"name": "late"}}]
    kube.create(PODS, pod)

    kube.until(
        f"{PODS}/needy",
        lambda pod: (
            (pod["status"].get("containerStatuses") or [{"state": {}}])[0]["state"].get("waiting", {}).get("reason")
            == "CreateContainerConfigError"
        ),
        "the error",
    )
    kube.create("/api/v1/namespaces/default/configmaps", {"metadata": {"name": "late"}, "data": {"A": "here"}})

    assert phase(until_over(kube, "needy")) == "Succeeded"


def test_pod_can_read_its_identity_from_its_environment(cluster: ClusterHandle, kube: KubeClient) -> None:
    cluster.put_pod_identity("default", "trainer", {"AWS_ACCESS_KEY_ID": "AKIAEXAMPLE"})
    kube.create("/api/v1/namespaces/default/serviceaccounts", {"metadata": {"name": "trainer"}})
    command = ("python", "-c", "import os; print(os.environ.get('AWS_ACCESS_KEY_ID'))")
    kube.create(PODS, a_pod("with", *command, serviceAccountName="trainer"))
    kube.create(PODS, a_pod("without", *command))

    until_over(kube, "with")
    until_over(kube, "without")

    assert kube.get(f"{PODS}/with/log") == "AKIAEXAMPLE\n"
    assert kube.get(f"{PODS}/without/log") == "None\n"


def test_followed_logs_end_with_the_container(kube: KubeClient) -> None:
    talk = "import time\nfor n in range(4):\n  print(n, flush=True)\n  time.sleep(0.2)"
    kube.create(PODS, a_pod("talker", "python", "-c", talk))
    until_running(kube, "talker")

    followed = kube.get(f"{PODS}/talker/log?follow=true")

    assert followed == "0\n1\n2\n3\n"
    assert kube.get(f"{PODS}/talker/log?tailLines=2") == "2\n3\n"
    stamped = [line.split(" ") for line in kube.get(f"{PODS}/talker/log?timestamps=true").splitlines()]
    assert [text for _, text in stamped] == ["0", "1", "2", "3"]
    times = [datetime.fromisoformat(at) for at, _ in stamped]
    assert times == sorted(set(times)), "each line has the time of its own write"
    assert kube.status_of("GET", f"{PODS}/talker/log?container=other").code == 400


# Scheduling


def test_unschedulable_pod_shows_its_reason(kube: KubeClient) -> None:
    kube.create(PODS, a_pod("big", *SLEEPS, gpus=9))

    pod = kube.until(f"{PODS}/big", lambda pod: condition(pod, "PodScheduled") == "False", "the reason")

    scheduled = next(entry for entry in pod["status"]["conditions"] if entry["type"] == "PodScheduled")
    assert scheduled["reason"] == "Unschedulable"
    assert scheduled["message"].startswith("0/3 nodes are available: 3 Insufficient nvidia.com/gpu.")
    kube.delete(f"{PODS}/big")


def test_gpu_is_allocated_to_one_pod(kube: KubeClient) -> None:
    for number in range(4):
        kube.create(PODS, a_pod(f"p{number}", *SLEEPS, gpus=8))

    def three_pods_with_nodes() -> list[str] | None:
        nodes = [pod["spec"].get("nodeName", "") for pod in kube.items(PODS)]
        return nodes if sum(1 for node in nodes if node) == 3 else None

    nodes = eventually(three_pods_with_nodes, "three of four pods to be placed")
    assert len({node for node in nodes if node}) == 3
    waiting = next(pod for pod in kube.items(PODS) if not pod["spec"].get("nodeName"))
    document = next(pod for pod in kube.items(PODS) if pod["spec"].get("nodeName"))
    kube.delete(f"{PODS}/{document['metadata']['name']}")

    until_running(kube, waiting["metadata"]["name"])


def test_job_waits_if_no_efa_interfaces_are_free(kube: KubeClient) -> None:
    def submit(name: str) -> list[str]:
        names = [f"{name}-{rank}" for rank in range(3)]
        for pod_name in names:
            pod = a_pod(pod_name, *SLEEPS, gpus=2)
            pod["spec"]["containers"][0]["resources"]["limits"]["vpc.amazonaws.com/efa"] = "16"
            kube.create(PODS, pod)
        return names

    for job in (*submit("first"), *submit("second")):
        until_running(kube, job)
    (third, *_) = submit("third")
    pod = kube.until(f"{PODS}/{third}", lambda pod: condition(pod, "PodScheduled") == "False", "the reason")

    scheduled = next(entry for entry in pod["status"]["conditions"] if entry["type"] == "PodScheduled")
    assert scheduled["message"].startswith("0/3 nodes are available: 3 Insufficient vpc.amazonaws.com/efa.")
    for rank in range(3):
        kube.delete(f"{PODS}/first-{rank}")
    until_running(kube, third)


def test_scheduler_respects_taints_cordons_selectors_and_affinity(kube: KubeClient) -> None:
    first, second, third = (node["metadata"]["name"] for node in kube.items(NODES))
    taint = {"key": "team", "value": "a", "effect": "NoSchedule"}
    kube.patch(f"{NODES}/{first}", {"spec": {"taints": [taint]}}, STRATEGIC)
    kube.patch(f"{NODES}/{second}", {"spec": {"unschedulable": True}}, STRATEGIC)
    term = {"matchFields": [{"key": "metadata.name", "operator": "In", "values": [first, second]}]}
    affinity = {"nodeAffinity": {"requiredDuringSchedulingIgnoredDuringExecution": {"nodeSelectorTerms": [term]}}}
    tolerated = [{"key": "team", "operator": "Equal", "value": "a", "effect": "NoSchedule"}]

    kube.create(PODS, a_pod("plain"))
    kube.create(PODS, a_pod("kept-out", affinity=affinity))
    kube.create(PODS, a_pod("let-in", affinity=affinity, tolerations=tolerated))
    kube.create(PODS, a_pod("by-label", nodeSelector={"kubernetes.io/hostname": second}))

    assert until_running(kube, "plain")["spec"]["nodeName"] == third
    assert until_running(kube, "let-in")["spec"]["nodeName"] == first
    for name in ("kept-out", "by-label"):
        kube.until(f"{PODS}/{name}", lambda pod: condition(pod, "PodScheduled") == "False", f"{name} to wait")
    kube.patch(f"{NODES}/{second}", {"spec": {"unschedulable": None}})
    assert until_running(kube, "by-label")["spec"]["nodeName"] == second


def test_pod_of_higher_priority_preempts_a_lower(kube: KubeClient) -> None:
    kube.create("/apis/scheduling.k8s.io/v1/priorityclasses", {"metadata": {"name": "high"}, "value": 1000})
    for number in range(3):
        kube.create(PODS, a_pod(f"low{number}", *SLEEPS, gpus=8))
        until_running(kube, f"low{number}")

    kube.create(PODS, a_pod("high", *SLEEPS, gpus=8, priorityClassName="high"))

    until_running(kube, "high")
    assert len([pod for pod in kube.items(PODS) if phase(pod) == "Running"]) == 3


# Jobs


def test_indexed_job_gives_each_rank_index_hostname_and_peers(kube: KubeClient) -> None:
    kube.create(SERVICES, {"metadata": {"name": "train"}, "spec": {"clusterIP": "None", "selector": {"app": "train"}}})
    code = "import os; print(os.environ['JOB_COMPLETION_INDEX'], os.environ['MASTER_ADDR'], os.environ['HOSTNAME'])"
    body = a_job("train", "python", "-c", code, completions=3, gpus=8, subdomain="train")
    body["spec"]["template"]["spec"]["containers"][0]["env"] = [
        {"name": "MASTER_ADDR", "value": "train-0.train.default.svc"}
    ]
    kube.create(JOBS, body)

    job = kube.until(f"{JOBS}/train", lambda job: condition(job, "Complete"), "the job to complete")

    pods = {
        pod["metadata"]["labels"]["batch.kubernetes.io/job-completion-index"]: pod for pod in job_pods(kube, "train")
    }
    master = pods["0"]["status"]["podIP"]
    for index, pod in pods.items():
        assert pod["spec"]["hostname"] == f"train-{index}"
        assert kube.get(f"{PODS}/{pod['metadata']['name']}/log") == f"{index} {master} train-{index}\n"
    assert master.startswith("127.")
    assert len({pod["status"]["podIP"] for pod in pods.values()}) == 3
    assert (job["status"]["completedIndexes"], job["status"]["succeeded"]) == ("0-2", 3)
    assert [c["type"] for c in job["status"]["conditions"]] == ["SuccessCriteriaMet", "Complete"]
    assert "finalizers" not in pods["0"]["metadata"]


def test_first_failure_ends_a_job_without_retries(kube: KubeClient) -> None:
    code = "import os, time\nif os.environ['JOB_COMPLETION_INDEX'] == '1': raise SystemExit(9)\ntime.sleep(600)"
    kube.create(JOBS, a_job("train", "python", "-c", code, completions=2))

    job = kube.until(f"{JOBS}/train", lambda job: condition(job, "Failed"), "the job to fail")

    kinds = [(c["type"], c["reason"]) for c in job["status"]["conditions"]]
    assert kinds == [("FailureTarget", "BackoffLimitExceeded"), ("Failed", "BackoffLimitExceeded")]
    assert "active" not in job["status"]
    assert all(phase(pod) == "Failed" for pod in job_pods(kube, "train"))


def test_job_retries_pods_up_to_its_limit(kube: KubeClient) -> None:
    kube.create(JOBS, a_job("train", "python", "-c", "raise SystemExit(1)", spec={"backoffLimit": 2}))

    job = kube.until(f"{JOBS}/train", lambda job: condition(job, "Failed"), "the job to fail")

    assert job["status"]["failed"] == 3


def test_failure_policy_can_fail_a_job_at_once(kube: KubeClient) -> None:
    rules = [{"action": "FailJob", "onExitCodes": {"operator": "In", "values": [42]}}]
    spec = {"backoffLimit": 5, "podFailurePolicy": {"rules": rules}}
    kube.create(JOBS, a_job("train", "python", "-c", "raise SystemExit(42)", spec=spec))

    job = kube.until(f"{JOBS}/train", lambda job: condition(job, "Failed"), "the job to fail")

    assert job["status"]["conditions"][-1]["reason"] == "PodFailurePolicy"
    assert job["status"]["failed"] == 1


def test_suspended_job_stops_its_pods_and_resumes(kube: KubeClient) -> None:
    kube.create(JOBS, a_job("train", *SLEEPS))
    kube.until(f"{JOBS}/train", lambda job: job["status"].get("ready") == 1, "the pod to be ready")

    kube.patch(f"{JOBS}/train", {"spec": {"suspend": True}})
    eventually(lambda: not job_pods(kube, "train"), "the pods to go")
    suspended = kube.until(f"{JOBS}/train", lambda job: condition(job, "Suspended") == "True", "the condition")
    kube.patch(f"{JOBS}/train", {"spec": {"suspend": False}})
    resumed = kube.until(f"{JOBS}/train", lambda job: job["status"].get("ready") == 1, "the pod to be back")

    assert "active" not in suspended["status"]
    assert condition(resumed, "Suspended") == "False"


def test_job_ends_at_its_active_deadline(kube: KubeClient) -> None:
    kube.create(JOBS, a_job("train", *SLEEPS, spec={"activeDeadlineSeconds": 1}))

    job = kube.until(f"{JOBS}/train", lambda job: condition(job, "Failed"), "the deadline")

    assert job["status"]["conditions"][-1]["reason"] == "DeadlineExceeded"


def test_job_deleted_in_the_foreground_outlives_its_pods(kube: KubeClient) -> None:
    kube.create(JOBS, a_job("train", *SLEEPS, completions=2))
    kube.until(f"{JOBS}/train", lambda job: job["status"].get("ready") == 2, "the pods to be ready")

    deleted = kube.delete(f"{JOBS}/train", FOREGROUND)
    kube.until_gone(f"{JOBS}/train")

    assert deleted["metadata"]["finalizers"] == ["foregroundDeletion"]
    assert job_pods(kube, "train") == []


@pytest.mark.parametrize(("policy", "left"), [("Background", 0), ("Orphan", 1)])
def test_propagation_policy_decides_whether_pods_of_job_are_deleted(kube: KubeClient, policy: str, left: int) -> None:
    kube.create(JOBS, a_job("train", *SLEEPS))
    kube.until(f"{JOBS}/train", lambda job: job["status"].get("ready") == 1, "the pod to be ready")

    kube.delete(f"{JOBS}/train", {"propagationPolicy": policy})
    kube.until_gone(f"{JOBS}/train")

    if left:
        pods = job_pods(kube, "train")
        assert [phase(pod) for pod in pods] == ["Running"]
        assert "ownerReferences" not in pods[0]["metadata"]
        kube.delete(f"{PODS}/{pods[0]['metadata']['name']}")
    eventually(lambda: not job_pods(kube, "train"), "the pods to go")


def test_terminating_rank_is_replaced_only_after_its_end(kube: KubeClient) -> None:
    deaf = (
        "import signal, time; signal.signal(signal.SIGTERM, signal.SIG_IGN); print('up', flush=True)\ntime.sleep(600)"
    )
    body = a_job("train", "python", "-c", deaf, spec={"backoffLimit": 3}, terminationGracePeriodSeconds=1)
    kube.create(JOBS, body)
    pod = eventually(lambda: next((p for p in job_pods(kube, "train") if phase(p) == "Running"), None), "the pod")
    eventually(lambda: "up" in kube.get(f"{PODS}/{pod['metadata']['name']}/log"), "the process to be up")

    kube.delete(f"{PODS}/{pod['metadata']['name']}")
    during = kube.until(f"{JOBS}/train", lambda job: job["status"].get("terminating") == 1, "the count")
    names_during = [item["metadata"]["name"] for item in job_pods(kube, "train")]

    def replaced() -> Any:
        return next((p for p in job_pods(kube, "train") if p["metadata"]["name"] != pod["metadata"]["name"]), None)

    eventually(replaced, "the replacement")

    assert "active" not in during["status"]
    assert names_during == [pod["metadata"]["name"]]


def test_deleted_namespace_deletes_its_objects(kube: KubeClient) -> None:
    kube.create("/api/v1/namespaces", {"metadata": {"name": "team"}})
    kube.create("/apis/batch/v1/namespaces/team/jobs", a_job("train", *SLEEPS))
    eventually(lambda: kube.items("/api/v1/namespaces/team/pods"), "the pod")
    maps = "/api/v1/namespaces/team/configmaps"
    kube.create(maps, {"metadata": {"name": "held", "finalizers": ["evenkeel.io/held"]}})

    kube.delete("/api/v1/namespaces/team")
    refused = kube.status_of("POST", maps, {"metadata": {"name": "late"}})
    kube.until(f"{maps}/held", lambda obj: obj["metadata"].get("deletionTimestamp"), "the deletion")
    kube.patch(f"{maps}/held", {"metadata": {"finalizers": None}})
    kube.until_gone("/api/v1/namespaces/team")

    assert refused.code == 403
    assert refused.status["details"]["causes"][0]["reason"] == "NamespaceTerminating"


# Volumes, termination messages, anti-affinity


def test_claim_is_shared_at_its_mount_path(kube: KubeClient) -> None:
    def with_volume(name: str, code: str, *words: str) -> Json:
        pod = a_pod(name, "python", "-c", code, *words)
        pod["spec"]["volumes"] = [
            {"name": "fsx", "persistentVolumeClaim": {"claimName": "fsx"}},
            {"name": "settings", "configMap": {"name": "settings"}},
        ]
        pod["spec"]["containers"][0]["volumeMounts"] = [
            {"name": "fsx", "mountPath": "/fsx"},
            {"name": "settings", "mountPath": "/etc/settings"},
        ]
        pod["spec"]["containers"][0]["env"] = [{"name": "URI", "value": "file:///fsx/run"}]
        return pod

    kube.create("/api/v1/namespaces/default/configmaps", {"metadata": {"name": "settings"}, "data": {"level": "7"}})
    write = "import os, pathlib, sys; p = pathlib.Path(os.environ['URI'].removeprefix('file://')); p.mkdir(); "
    write += "(p / 'a').write_text(open(sys.argv[1]).read())"
    kube.create(PODS, with_volume("writer", write, "/etc/settings/level"))
    waiting = kube.until(f"{PODS}/writer", lambda pod: condition(pod, "PodScheduled") == "False", "it to wait")
    kube.create("/api/v1/namespaces/default/persistentvolumeclaims", a_claim("fsx"))
    assert phase(until_over(kube, "writer")) == "Succeeded"
    kube.create(PODS, with_volume("reader", "import sys; print(open(sys.argv[1][6:]).read())", "--dir=/fsx/run/a"))

    assert phase(until_over(kube, "reader")) == "Succeeded"
    assert kube.get(f"{PODS}/reader/log") == "7\n"
    assert 'persistentvolumeclaim "fsx" not found' in str(waiting["status"]["conditions"])


def test_failed_container_keeps_its_termination_message(kube: KubeClient) -> None:
    pod = a_pod("talker", "python", "-c", "print('first'); raise SystemExit('the disk is full')")
    pod["spec"]["containers"][0]["terminationMessagePolicy"] = "FallbackToLogsOnError"
    kube.create(PODS, pod)

    ended_pod = until_over(kube, "talker")

    terminated = ended_pod["status"]["containerStatuses"][0]["state"]["terminated"]
    assert terminated["message"].splitlines()[-1] == "the disk is full"


def test_pods_with_anti_affinity_share_no_node(kube: KubeClient) -> None:
    rule = {"topologyKey": "kubernetes.io/hostname", "labelSelector": {"matchLabels": {"app": "apart"}}}
    affinity = {"podAntiAffinity": {"requiredDuringSchedulingIgnoredDuringExecution": [rule]}}
    kube.create(JOBS, a_job("apart", completions=4, affinity=affinity))

    def three_pods_with_nodes() -> list[Json] | None:
        pods = kube.items(f"{PODS}?labelSelector=app=apart")
        documents = [pod for pod in pods if condition(pod, "PodScheduled") == "False"]
        return pods if len(pods) == 4 and len(documents) == 1 else None

    pods = eventually(three_pods_with_nodes, "three to be placed and one to wait")

    nodes = [pod["spec"]["nodeName"] for pod in pods if "nodeName" in pod["spec"]]
    assert len(set(nodes)) == 3
    assert any("anti-affinity rules" in str(pod["status"]["conditions"]) for pod in pods)


# ResourceQuotas


def limit_namespace(kube: KubeClient, **hard: str) -> None:
    names = {name.replace("_", "."): amount for name, amount in hard.items()}
    kube.create("/api/v1/namespaces/default/resourcequotas", {"metadata": {"name": "team"}, "spec": {"hard": names}})


def a_pod_with_cpu(name: str, cpu: str) -> Json:
    pod = a_pod(name)
    pod["spec"]["containers"][0]["resources"] = {"requests": {"cpu": cpu, "memory": "1Gi"}}
    return pod


def test_pod_without_requests_is_refused_under_a_quota(kube: KubeClient) -> None:
    limit_namespace(kube, requests_cpu="4", memory="8Gi")

    with pytest.raises(KubeApiError, match=r"must specify memory for: main; requests\.cpu for: main"):
        kube.create(PODS, a_pod("bare"))


def test_pods_beyond_a_quota_are_refused_until_others_end(kube: KubeClient) -> None:
    limit_namespace(kube, cpu="4")
    kube.create(PODS, a_pod_with_cpu("first", "3"))

    with pytest.raises(KubeApiError, match="exceeded quota: team, requested: cpu=2, used: cpu=3, limited: cpu=4"):
        kube.create(PODS, a_pod_with_cpu("second", "2"))
    kube.delete(f"{PODS}/first")
    eventually(lambda: kube.items(PODS) == [], "the first pod to be gone")

    assert kube.create(PODS, a_pod_with_cpu("second", "2"))["status"]["phase"] == "Pending"
