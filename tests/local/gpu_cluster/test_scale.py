"""A thousand nodes and ten thousand pods: listed in time, and in bounded memory."""

import os
import time
import uuid
from pathlib import Path

import pytest

from evenkeel_local import gpu_cluster
from tests.local.gpu_cluster.conftest import QUICK
from tests.local.gpu_cluster.kube_client import NODES, PODS, Json, KubeClient, a_pod, eventually

NODE_COUNT, POD_COUNT, PAGE = 1000, 10_000, 500
# Listing takes about 1 s. A list that copies the whole store for each page takes minutes.
PAGE_LOOP_SECONDS = 20.0


def resident_bytes(pid: int) -> int:
    fields = Path(f"/proc/{pid}/statm").read_text().split()
    return int(fields[1]) * 4096


def processor_seconds(pid: int) -> float:
    """Return the processor time of the server and this client. On an idle machine, a loop takes about as long.

    Other processes of the suite run at the same time, so the wall clock would measure them too.
    """
    fields = Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()
    return (int(fields[11]) + int(fields[12])) / os.sysconf("SC_CLK_TCK") + time.process_time()


def pages(kube: KubeClient, path: str) -> list[Json]:
    items: list[Json] = []
    token = ""
    while True:
        page = kube.get(f"{path}?limit={PAGE}" + (f"&continue={token}" if token else ""))
        items += page["items"]
        token = page["metadata"].get("continue", "")
        if not token:
            return items


def copy_of_pod(like: Json, number: int) -> Json:
    return {**like, "metadata": {**like["metadata"], "name": f"p{number}", "uid": str(uuid.uuid4())}}


@pytest.mark.exhaustive
def test_large_cluster_is_listed_in_one_page_loop(tmp_path: Path) -> None:
    # No periodic work runs during the loops: it would count more, the longer they wait for a processor.
    delays = {**QUICK["delays"], "heartbeat": 600.0, "nodeMonitorGrace": 1800.0, "podGc": 600.0}
    config = {"instanceGroups": [{"name": "p5-workers", "count": NODE_COUNT}], "delays": delays}
    with gpu_cluster.start(config, tmp_path / "run") as handle:
        kube = KubeClient(handle.kubernetes_url, handle.ca_pem, handle.admin_token)
        eventually(lambda: len(kube.items(NODES)) == NODE_COUNT, "the nodes", 30)
        like = kube.create(PODS, a_pod("like", schedulerName="nobody"))
        snapshot = handle.control("GET", "snapshot")
        snapshot["objects"] += [
            {"type": ["", "pods"], "object": copy_of_pod(like, number)} for number in range(POD_COUNT)
        ]
        handle.control("PUT", "snapshot", snapshot, timeout=60)

        began = processor_seconds(handle.pid)
        listed = pages(kube, PODS)
        took = processor_seconds(handle.pid) - began
        memory = resident_bytes(handle.pid)
        kube.close()

    assert len(listed) == POD_COUNT + 1
    assert took < PAGE_LOOP_SECONDS
    assert memory < 2**30
