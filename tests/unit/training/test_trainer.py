"""The example trainer with real processes as ranks: interruptions do not change the weights."""

import contextlib
import json
import os
import random
import signal
import socket
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any, Self

import pytest

from evenkeel.training.layout import Checkpoint
from evenkeel.training.resume import pin
from evenkeel.training.storage import open_storage
from evenkeel_trainer.group import PeerLostError, RankGroup, Rendezvous, StoppedError, join
from evenkeel_trainer.model import MICRO_SHARDS, PARAMETERS, ModelState, piece_of

STEPS = 40
ENDLESS = ("--steps", "1000000", "--step-seconds", "0.05")
PATIENCE_SECONDS = 60


def wait_until(what: str, holds: Callable[[], bool]) -> None:
    deadline = time.monotonic() + PATIENCE_SECONDS
    while not holds():
        assert time.monotonic() < deadline, f"waited {PATIENCE_SECONDS} s for {what}"
        time.sleep(0.01)


def free_port() -> int:
    with socket.create_server(("127.0.0.1", 0)) as probe:
        port: int = probe.getsockname()[1]
    return port


class TrainerAttempt:
    """The ranks of one attempt. Ranks that still run at the end of the test are killed."""

    def __init__(self, folder: Path, number: int, world_size: int, *options: str, **variables: str) -> None:
        self._log = folder / f"log-{number}-{world_size}"
        self._log.mkdir(parents=True)
        port = free_port()
        self.ranks = [
            self._start(rank, "--steps", str(STEPS), *options, environ={
                "EVENKEEL_JOB_ID": "job-rings",
                "EVENKEEL_ATTEMPT": str(number),
                "EVENKEEL_CHECKPOINT_URI": f"file://{folder}/checkpoints",
                "WORLD_SIZE": str(world_size),
                "JOB_COMPLETION_INDEX": str(rank),
                "MASTER_ADDR": "127.0.0.1",
                "MASTER_PORT": str(port),
                **variables,
            })
            for rank in range(world_size)
        ]  # fmt: skip

    def _start(self, rank: int, *options: str, environ: dict[str, str]) -> subprocess.Popen[bytes]:
        inherited = {name: os.environ[name] for name in ("PATH", "HOME", "PYTHONPATH") if name in os.environ}
        with (self._log / f"{rank}").open("wb") as log:
            return subprocess.Popen(
                [sys.executable, "-m", "evenkeel_trainer", *options],
                env=inherited | environ,
                stdout=log,
                stderr=subprocess.STDOUT,
            )

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        for rank in self.ranks:
            with contextlib.suppress(ProcessLookupError):
                rank.kill()
            rank.wait(timeout=PATIENCE_SECONDS)

    def events(self, rank: int = 0, kind: str = "") -> list[dict[str, Any]]:
        lines = (self._log / f"{rank}").read_text().splitlines(keepends=True)
        all_events = [json.loads(line) for line in lines if line.startswith("{") and line.endswith("\n")]
        return [event for event in all_events if event["event"] == kind or not kind]

    def wait_for_step(self, step: int) -> None:
        wait_until(f"step {step}", lambda: any(event["step"] >= step for event in self.events(kind="step")))

    def exit_codes(self) -> list[int]:
        return [rank.wait(timeout=PATIENCE_SECONDS) for rank in self.ranks]

    def digests(self) -> set[str]:
        """Wait for the end, and return the digests that the ranks report."""
        assert self.exit_codes() == [0] * len(self.ranks), [self.events(rank) for rank in range(len(self.ranks))]
        return {self.events(rank, "done")[0]["digest"] for rank in range(len(self.ranks))}


@pytest.fixture(scope="module")
def undisturbed() -> str:
    """Return the digest of the weights of an undisturbed run, computed in this process."""
    state = ModelState.fresh(7)
    for step in range(STEPS):
        state.learn([piece_of(state.weights, 7, step, number) for number in range(MICRO_SHARDS)])
    return state.digest()


@pytest.mark.parametrize("world_size", [1, 2, 3, 4])
def test_weights_do_not_depend_on_the_number_of_ranks(tmp_path: Path, undisturbed: str, world_size: int) -> None:
    with TrainerAttempt(tmp_path, 1, world_size) as attempt:
        assert attempt.digests() == {undisturbed}

    done_event = attempt.events(kind="done")[0]
    assert done_event["step"] == STEPS
    result = json.loads(open_storage(f"{tmp_path}/checkpoints").get("result/attempt=1.json") or b"")
    assert (result["digest"], result["steps"]) == (undisturbed, STEPS)


def test_trainer_learns_to_classify(tmp_path: Path) -> None:
    with TrainerAttempt(tmp_path, 1, 2, "--steps", "150") as attempt:
        attempt.digests()

    losses = [event["loss"] for event in attempt.events(kind="step")]
    assert losses[-1] < losses[0] / 4
    assert attempt.events(kind="done")[0]["accuracy"] > 0.95


@pytest.mark.parametrize(("world_size", "next_world_size"), [(2, 2), (3, 2), (1, 4)])
def test_killed_trainer_resumes_to_the_same_weights(
    tmp_path: Path, undisturbed: str, world_size: int, next_world_size: int
) -> None:
    moment = random.randint(6, STEPS - 10)
    with TrainerAttempt(tmp_path, 1, world_size, "--checkpoint-every", "5", "--step-seconds", "0.1") as first:
        first.wait_for_step(moment)
        for rank in first.ranks:
            rank.kill()
        assert first.exit_codes() == [-signal.SIGKILL] * world_size

    with TrainerAttempt(tmp_path, 2, next_world_size, "--checkpoint-every", "5") as second:
        assert second.digests() == {undisturbed}, f"killed at step {moment}"

    resumed = second.events(kind="resumed")[0]
    assert (resumed["fromAttempt"], resumed["fromWorldSize"]) == (1, world_size)
    assert resumed["step"] >= moment - moment % 5 - 5, f"killed at step {moment}"


def test_stop_request_of_one_rank_stops_all_after_a_save(tmp_path: Path, undisturbed: str) -> None:
    with TrainerAttempt(tmp_path, 1, 3, "--checkpoint-every", "1000", "--step-seconds", "0.1") as first:
        first.wait_for_step(5)
        first.ranks[2].terminate()
        assert first.exit_codes() == [143, 143, 143]

    stop_events = [first.events(rank, "stopped")[0] for rank in range(3)]
    assert len({event["step"] for event in stop_events}) == 1
    with TrainerAttempt(tmp_path, 2, 2) as second:
        assert second.digests() == {undisturbed}
    assert second.events(kind="resumed")[0]["step"] == stop_events[0]["step"]


def test_older_of_two_attempts_ends_at_its_next_save(tmp_path: Path, undisturbed: str) -> None:
    with TrainerAttempt(tmp_path, 1, 2, *ENDLESS, "--checkpoint-every", "5") as older:
        older.wait_for_step(6)
        with TrainerAttempt(tmp_path, 2, 2, "--checkpoint-every", "5", "--step-seconds", "0.05") as newer:
            assert older.exit_codes() == [75, 75]
            assert newer.digests() == {undisturbed}

    fenced_at = older.events(kind="step")[-1]["step"]
    assert fenced_at % 5 == 0, "end at the step of a save"
    assert older.events(kind="fenced")[0]["standing"] == 2
    late_checkpoint = Checkpoint(step=fenced_at, attempt=1)
    assert open_storage(f"{tmp_path}/checkpoints").get(late_checkpoint.manifest_key) is None


def test_fenced_attempt_ends_before_it_trains(tmp_path: Path) -> None:
    pin(open_storage(f"{tmp_path}/checkpoints"), 2)

    with TrainerAttempt(tmp_path, 1, 1) as attempt:
        assert attempt.exit_codes() == [75]

    assert attempt.events(kind="step") == []


def test_attempt_with_a_damaged_checkpoint_ends_before_it_trains(tmp_path: Path) -> None:
    with TrainerAttempt(tmp_path, 1, 1, "--checkpoint-every", "4") as attempt:
        attempt.exit_codes()
    choice = pin(open_storage(f"{tmp_path}/checkpoints"), 2)
    assert choice.resume_from
    shard = (tmp_path / "checkpoints" / choice.resume_from.manifest).parent / "shard-0-of-1.bin"
    shard.write_bytes(bytes(len(shard.read_bytes())))

    with TrainerAttempt(tmp_path, 2, 1) as attempt:
        assert attempt.exit_codes() == [66]

    assert attempt.events(kind="step") == []


@pytest.mark.parametrize("lost", [0, 1])
def test_rank_with_a_dead_peer_ends_at_once(tmp_path: Path, lost: int) -> None:
    with TrainerAttempt(tmp_path, 1, 3, *ENDLESS) as attempt:
        attempt.wait_for_step(3)
        attempt.ranks[lost].kill()
        codes = attempt.exit_codes()

    assert codes == [-signal.SIGKILL if rank == lost else 76 for rank in range(3)]


def test_rank_with_a_silent_peer_ends_after_its_timeout(tmp_path: Path) -> None:
    with TrainerAttempt(tmp_path, 1, 2, *ENDLESS, "--peer-seconds", "0.5") as attempt:
        attempt.wait_for_step(3)
        attempt.ranks[1].send_signal(signal.SIGSTOP)
        assert attempt.ranks[0].wait(timeout=PATIENCE_SECONDS) == 76

    assert "silent" in attempt.events(kind="peerLost")[0]["reason"]


def test_rank_stopped_after_its_peer_died_exits_as_stopped(tmp_path: Path) -> None:
    with TrainerAttempt(tmp_path, 1, 2, *ENDLESS) as attempt:
        attempt.wait_for_step(3)
        attempt.ranks[0].send_signal(signal.SIGSTOP)
        attempt.ranks[0].terminate()
        attempt.ranks[1].kill()
        attempt.ranks[0].send_signal(signal.SIGCONT)
        assert attempt.exit_codes()[0] == 143


@pytest.mark.parametrize("rank", [0, 1])
def test_rank_without_peers_times_out(tmp_path: Path, rank: int) -> None:
    variables = {"JOB_COMPLETION_INDEX": str(rank), "WORLD_SIZE": "2"}

    with TrainerAttempt(tmp_path, 1, 1, "--rendezvous-seconds", "0.3", **variables) as attempt:
        assert attempt.exit_codes() == [76]


def test_stop_request_ends_the_wait_for_other_ranks(tmp_path: Path) -> None:
    with TrainerAttempt(tmp_path, 1, 1, WORLD_SIZE="2") as attempt:
        wait_until("the rank to start", lambda: bool(attempt.events(kind="started")))
        attempt.ranks[0].terminate()
        assert attempt.exit_codes() == [143]


def test_trainer_options_are_read_from_the_environment(tmp_path: Path) -> None:
    with TrainerAttempt(tmp_path, 1, 1, TRAINER_CHECKPOINT_EVERY="20") as attempt:
        attempt.digests()

    assert [event["step"] for event in attempt.events(kind="saved")] == [20, 40]


@pytest.fixture
def join_group() -> Iterator[Callable[..., RankGroup]]:
    """Join a group on a free port of loopback; every group is closed at the end."""
    port = free_port()
    groups: list[RankGroup] = []

    def join_as(name: str, rank: int, world_size: int = 2, rendezvous_seconds: float = 20) -> RankGroup:
        group = join(
            rank,
            Rendezvous(name, world_size, bind_address="127.0.0.1", master=("127.0.0.1", port)),
            rendezvous_seconds=rendezvous_seconds,
            patience_seconds=5,
            should_stop=stop.is_set,
        )
        groups.append(group)
        return group

    stop = threading.Event()
    yield join_as
    for group in groups:
        group.close()


def test_rank_of_another_attempt_is_refused(join_group: Callable[..., RankGroup]) -> None:
    with ThreadPoolExecutor(3) as pool:
        other_attempt = pool.submit(join_group, "job-rings/1", 1, rendezvous_seconds=1)
        joining_rank_0 = pool.submit(join_group, "job-rings/2", 0)
        with pytest.raises(PeerLostError, match="does not answer"):
            other_attempt.result(timeout=30)
        joining_rank_1 = pool.submit(join_group, "job-rings/2", 1)
        group_of_rank_0, group_of_rank_1 = joining_rank_0.result(timeout=30), joining_rank_1.result(timeout=30)

    group_of_rank_1.gather(b"from one")
    assert group_of_rank_0.gather(b"from zero") == [b"from zero", b"from one"]


def test_broadcast_of_rank_0_reaches_every_rank(join_group: Callable[..., RankGroup]) -> None:
    with ThreadPoolExecutor(3) as pool:
        groups = list(pool.map(lambda rank: join_group("job-rings/1", rank, 3), range(3)))
        received = list(pool.map(lambda group: group.spread(b"x" * 100_000 if group.rank == 0 else b""), groups))

    assert received == [b"x" * 100_000] * 3


def test_momentum_is_saved_with_the_weights() -> None:
    state = ModelState.fresh(1)
    for step in range(3):
        state.learn([piece_of(state.weights, 1, step, number) for number in range(MICRO_SHARDS)])

    restored = ModelState.joined([state.shard(rank, 5) for rank in range(5)])

    assert (restored.weights, restored.velocity) == (state.weights, state.velocity)
    assert len(restored.weights) == PARAMETERS


def test_stop_request_ends_a_connection_attempt_to_rank_0() -> None:
    with pytest.raises(StoppedError):
        join(
            1,
            Rendezvous("job-rings/1", 2, bind_address="127.0.0.1", master=("127.0.0.1", free_port())),
            rendezvous_seconds=20,
            patience_seconds=5,
            should_stop=lambda: True,
        )
