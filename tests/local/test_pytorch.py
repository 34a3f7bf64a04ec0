"""The PyTorch example on the data centre: a node fails in the middle of a step, and the job resumes."""

import json
from pathlib import Path

import pytest

from evenkeel_local.data_centre import DataCentre
from evenkeel_local.drills import TrainingWork, await_all_nodes_ready, read_object
from tests import torch_gang
from tests.local.training import TrainingJob
from tests.torch_gang import EXAMPLE, Gang, state_of
from tests.waiting import until

pytestmark = [pytest.mark.pytorch, pytest.mark.drills]

STEPS, SAVE_EVERY = 120, 5
OPTIONS = ("--steps", str(STEPS), "--save-every", str(SAVE_EVERY))
PACED = f"""
import os, sys, time
sys.path.insert(0, {str(EXAMPLE)!r})
import train
inner = train.batch

def batch(step, rank):
    time.sleep(0.2 if os.environ["EVENKEEL_ATTEMPT"] == "1" else 0)
    return inner(step, rank)

train.batch = batch
train.end(train.main())
"""
"""The example with slow steps in the first attempt, so that a fault hits one of them."""


def test_pytorch_job_reaches_the_same_state_after_a_node_fault(data_centre: DataCentre, tmp_path: Path) -> None:
    python = torch_gang.find()
    assert python
    script = tmp_path / "paced.py"
    script.write_text(PACED)
    variables = torch_gang.environment(python) | {"PROCESSES_PER_POD": "1", "GLOO_SOCKET_IFNAME": "lo"}
    exports = " ".join(f"{name}='{value}'" for name, value in variables.items())
    pod = f'export {exports} SCRATCH="$PWD"; exec sh {EXAMPLE / "pod.sh"} {script} {" ".join(OPTIONS)}'
    undisturbed = Gang(tmp_path, pods=2, processes_per_pod=1)
    assert undisturbed.run(1, EXAMPLE / "train.py", *OPTIONS).codes == [0, 0]
    client = data_centre.client()
    await_all_nodes_ready(client, data_centre)

    job = TrainingJob.submit(
        data_centre, "pytorch", TrainingWork(nodes=2, steps=STEPS), command=["sh", "-c", pod], args=[]
    )
    until(lambda: len(job.saved_steps(1)) >= 2, "two checkpoints", 120)
    fault = data_centre.cluster.control("POST", "faults", {"fault": "gpu-xid79", "node": job.node(1)})
    ended = job.end()
    data_centre.cluster.control("DELETE", f"faults/{fault['faultId']}")
    await_all_nodes_ready(client, data_centre)

    last = job.attempt(ended["currentAttempt"])
    content = read_object(data_centre, job.uri, f"attempt={last['attempt']}/step={STEPS:09d}/manifest.json")
    assert (ended["state"], job.attempt(1)["state"]) == ("SUCCEEDED", "LOST")
    assert last["resumeFrom"]["step"] == max(job.saved_steps(1))
    assert 0 < last["resumeFrom"]["step"] < STEPS
    assert state_of(json.loads(content or "{}")) == undisturbed.state(1, STEPS)
