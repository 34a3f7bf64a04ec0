"""The PyTorch example under the real torchrun: proven DCP checkpoints, lost ranks, stops and fences.

`tests/torch_gang.py` finds the interpreter. Without it, these tests are not selected.
"""

import hashlib
import signal
from collections.abc import Iterator
from pathlib import Path

import pytest

from evenkeel.training.layout import Checkpoint
from evenkeel.training.resume import pin
from evenkeel.training.storage import open_storage
from tests.torch_gang import EXAMPLE, Gang

pytestmark = pytest.mark.pytorch

STEPS, SAVE_EVERY, LAST_BEFORE_FAULT, FAULT_STEP = 30, 10, 10, 17
OPTIONS = ("--steps", str(STEPS), "--save-every", str(SAVE_EVERY))
SCRIPT = EXAMPLE / "train.py"
FAULTY = f"""
import os, sys, time
sys.path.insert(0, {str(EXAMPLE)!r})
import train
attach, inner, runs = train.training.attach, train.batch, []

def remember():
    runs.append(attach())
    return runs[0]

def batch(step, rank):
    if (step, rank) == ({FAULT_STEP}, 1):
        os.kill(os.getppid() if "TO_LAUNCHER" in os.environ else os.getpid(), int(os.environ["FAULT"]))
        while not runs[0].should_stop():
            time.sleep(0.01)
    return inner(step, rank)

train.training.attach, train.batch = remember, batch
train.end(train.main())
"""
"""The example with a fault: rank 1 sends a signal to itself or to torchrun during a step, and waits for it."""
KILL, TERM = {"FAULT": str(int(signal.SIGKILL))}, {"FAULT": str(int(signal.SIGTERM))}


def faulty(gang: Gang) -> Path:
    script = gang.folder / "faulty.py"
    script.write_text(FAULTY)
    return script


@pytest.fixture
def gang(tmp_path: Path) -> Iterator[Gang]:
    gang_of_test = Gang(tmp_path)
    yield gang_of_test
    gang_of_test.end()


@pytest.fixture(scope="module")
def undisturbed(tmp_path_factory: pytest.TempPathFactory) -> Iterator[dict[str, str]]:
    """The final state of two ranks without a fault."""
    gang = Gang(tmp_path_factory.mktemp("undisturbed"))
    ended = gang.run(1, SCRIPT, *OPTIONS)
    assert ended.codes == [0], ended.log
    yield gang.state(1, STEPS)
    gang.end()


@pytest.mark.parametrize(
    "shape", [pytest.param((1, 2), id="one pod of two ranks"), pytest.param((2, 1), id="two pods of one rank")]
)
def test_training_reaches_the_same_state_after_a_rank_is_killed(
    shape: tuple[int, int], gang: Gang, undisturbed: dict[str, str]
) -> None:
    gang.pods, gang.processes_per_pod = shape

    first = gang.run(1, faulty(gang), *OPTIONS, **KILL)
    second = gang.run(2, SCRIPT, *OPTIONS)

    assert 0 not in first.codes, first.log
    assert second.codes == [0] * gang.pods, second.log
    point = open_storage(gang.uri).read_fence().fence
    assert point is not None
    assert point.pin.resume_from is not None
    assert (point.pin.resume_from.step, point.grade) == (LAST_BEFORE_FAULT, "PROVED")
    assert f"saved step {LAST_BEFORE_FAULT}," not in second.log
    assert gang.state(2, STEPS) == undisturbed
    assert len(undisturbed) == 2


@pytest.mark.parametrize(
    "signalled", [pytest.param({}, id="a rank"), pytest.param({"TO_LAUNCHER": "1"}, id="torchrun")]
)
def test_stop_request_saves_the_current_step_of_both_ranks(
    signalled: dict[str, str], gang: Gang, undisturbed: dict[str, str]
) -> None:
    first = gang.run(1, faulty(gang), *OPTIONS, **TERM, **signalled)
    second = gang.run(2, SCRIPT, *OPTIONS)

    assert first.codes == [143], first.log
    assert gang.manifest(1, FAULT_STEP + 1)["worldSize"] == 2
    assert (second.codes, gang.state(2, STEPS)) == ([0], undisturbed), second.log


def test_training_resumes_on_another_number_of_ranks(gang: Gang) -> None:
    gang.run(1, faulty(gang), *OPTIONS, **KILL)
    gang.processes_per_pod = 1

    second = gang.run(2, SCRIPT, *OPTIONS)

    assert second.codes == [0], second.log
    assert gang.manifest(1, LAST_BEFORE_FAULT)["worldSize"] == 2
    assert gang.manifest(2, STEPS)["worldSize"] == 1


def test_fenced_attempt_exits_with_the_code_for_fenced(gang: Gang) -> None:
    pin(open_storage(gang.uri), 2)

    late = gang.run(1, SCRIPT, *OPTIONS)

    assert late.codes == [75], late.log
    assert open_storage(gang.uri).checkpoints() == []


def test_attempt_exits_with_the_code_for_a_damaged_checkpoint(gang: Gang) -> None:
    assert gang.run(1, SCRIPT, "--steps", str(SAVE_EVERY)).codes == [0]
    ((key, _),) = [
        (shard["key"], shard)
        for shard in gang.manifest(1, SAVE_EVERY)["shards"]
        if shard["key"].endswith("__1_0.distcp")
    ]
    open_storage(gang.uri).put(key, b"rotten", hashlib.sha256(b"rotten").hexdigest())

    named = gang.run(2, SCRIPT, *OPTIONS, EVENKEEL_RESUME_FROM=Checkpoint(step=SAVE_EVERY, attempt=1).manifest_key)

    assert named.codes == [66], named.log
