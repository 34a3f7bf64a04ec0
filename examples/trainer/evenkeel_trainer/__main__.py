"""Train: `python -m evenkeel_trainer` for each rank, in the environment that Evenkeel gives a job's pods.

It prints JSON lines and ends with an exit code:

    0     done; rank 0 wrote `result/attempt=<n>.json`
    65    checkpoints exist, but no checkpoint passed its checks; training did not start
    66    the checkpoint to resume from is damaged
    75    fenced: a later attempt took over
    76    a peer ended or is silent
    143   stopped on request; the current step was finished and saved
"""

import argparse
import json
import os
import sys
import time
from collections.abc import Mapping, Sequence
from typing import Any

from evenkeel import training
from evenkeel_trainer.group import PeerLostError, RankGroup, Rendezvous, StoppedError, join
from evenkeel_trainer.model import MICRO_SHARDS, PIECE_BYTES, MicroShardResult, ModelState, accuracy, piece_of

EXIT_PEER_LOST = 76

_GO_ON, _STOP = b"\x00", b"\x01"


def main() -> int:
    """Run one rank to its end; return its exit code."""
    options = _options(os.environ)
    run = training.attach()
    say = _Speaker(run.rank)
    say("started", jobId=run.job_id, attempt=run.attempt, worldSize=run.world_size, pid=os.getpid())
    try:
        return _train(run, options, say)
    except training.Fenced as fenced:
        say("fenced", attempt=fenced.attempt, standing=fenced.current_attempt)
        return training.EXIT_FENCED
    except training.Unproven as unproven:
        say("unproven", reason=str(unproven))
        return training.EXIT_UNPROVEN
    except training.DamagedError as damaged:
        say("damaged", reason=str(damaged))
        return training.EXIT_DAMAGED
    except StoppedError:
        say("stopped", saved=False)
        return training.EXIT_STOPPED
    except PeerLostError as lost:
        return _after_peer_lost(run, lost, say)


def _train(run: training.Run, options: argparse.Namespace, say: "_Speaker") -> int:
    group = _join(run, options)
    try:
        state, step = _begin(run, options.seed, say)
        saved_step, saved_at = step, time.monotonic()
        loss = 0.0
        while step < options.steps:
            began = time.monotonic()
            loss, is_stop = _step(run, group, state, options.seed, step)
            step += 1
            say("step", step=step, loss=round(loss, 6))
            if is_stop or step == options.steps or step % options.checkpoint_every == 0:
                seconds = max(1e-3, time.monotonic() - saved_at)
                run.save(
                    step,
                    state.shard(run.rank, run.world_size),
                    # Each step has the same batch at every size, so steps show how fast the job is.
                    metrics={"loss": loss, "throughput": (step - saved_step) / seconds},
                    extra={"seed": options.seed},
                    gather=group.gather_json,
                )
                saved_step, saved_at = step, time.monotonic()
                say("saved", step=step)
            if is_stop and step < options.steps:
                say("stopped", step=step, saved=saved_step == step)
                return training.EXIT_STOPPED
            if not options.paced_attempts or run.attempt <= options.paced_attempts:
                _pace(run, began + options.step_seconds)
        digest = state.digest()
        run.finish({"digest": digest, "steps": step, "loss": loss, "worldSize": run.world_size})
        say("done", step=step, digest=digest, loss=round(loss, 6), accuracy=accuracy(state.weights, options.seed))
        return 0
    finally:
        group.close()


def _join(run: training.Run, options: argparse.Namespace) -> RankGroup:
    host = os.environ.get("MASTER_ADDR", "127.0.0.1")
    rendezvous = Rendezvous(
        name=f"{run.job_id}/{run.attempt}",
        world_size=run.world_size,
        bind_address=os.environ.get("POD_IP") or host,
        master=(host, int(os.environ.get("MASTER_PORT") or "29500")),
    )
    return join(
        run.rank,
        rendezvous,
        rendezvous_seconds=options.rendezvous_seconds,
        patience_seconds=options.peer_seconds + options.step_seconds,
        should_stop=run.should_stop,
    )


def _begin(run: training.Run, seed: int, say: "_Speaker") -> tuple[ModelState, int]:
    resume = run.resume()
    if resume is None:
        return ModelState.fresh(seed), 0
    state = ModelState.joined(list(resume.shards()))
    say("resumed", step=resume.step, fromAttempt=resume.attempt, fromWorldSize=resume.world_size)
    return state, resume.step


def _step(run: training.Run, group: RankGroup, state: ModelState, seed: int, step: int) -> tuple[float, bool]:
    """Take one step on all ranks. If a rank was asked to stop, all ranks stop after this step."""
    shards = range(run.rank, MICRO_SHARDS, run.world_size)
    pieces = b"".join(piece_of(state.weights, seed, step, number).to_bytes() for number in shards)
    received = group.gather((_STOP if run.should_stop() else _GO_ON) + pieces)
    everything = group.spread(_in_order(received, run.world_size))
    loss = state.learn([MicroShardResult.from_bytes(_cut(everything, number)) for number in range(MICRO_SHARDS)])
    return loss, everything[:1] == _STOP


def _in_order(received: Sequence[bytes], world_size: int) -> bytes:
    """Join the pieces of all ranks in the order of their numbers; no pieces on ranks other than 0."""
    pieces = [
        _cut(received[number % world_size], number // world_size) for number in range(MICRO_SHARDS if received else 0)
    ]
    return (_STOP if any(message[:1] == _STOP for message in received) else _GO_ON) + b"".join(pieces)


def _cut(message: bytes, index: int) -> bytes:
    return message[1 + index * PIECE_BYTES : 1 + (index + 1) * PIECE_BYTES]


def _pace(run: training.Run, until: float) -> None:
    while not run.should_stop() and (seconds_left := until - time.monotonic()) > 0:
        time.sleep(min(seconds_left, 0.05))


def _after_peer_lost(run: training.Run, lost: PeerLostError, say: "_Speaker") -> int:
    """Report why the attempt ends: a fence or a stop request explains a lost peer."""
    try:
        run.check_fence()
    except training.Fenced as fenced:
        say("fenced", attempt=fenced.attempt, standing=fenced.current_attempt)
        return training.EXIT_FENCED
    if run.should_stop():
        say("stopped", saved=False)
        return training.EXIT_STOPPED
    say("peerLost", reason=str(lost))
    return EXIT_PEER_LOST


class _Speaker:
    """Prints JSON lines and flushes each, so that the log shows them at once."""

    def __init__(self, rank: int) -> None:
        self._rank = rank

    def __call__(self, event: str, **facts: Any) -> None:
        sys.stdout.write(json.dumps({"event": event, "rank": self._rank, **facts}) + "\n")
        sys.stdout.flush()


def _options(environ: Mapping[str, str]) -> argparse.Namespace:
    parser = argparse.ArgumentParser(prog="python -m evenkeel_trainer", description="Learn to tell three rings apart.")

    def option(name: str, kind: type[int] | type[float], default: str, about: str) -> None:
        variable = f"TRAINER_{name.upper().replace('-', '_')}"
        parser.add_argument(
            f"--{name}", type=kind, default=environ.get(variable, default), help=f"{about} ({variable}, {default})"
        )

    option("steps", int, "200", "number of steps of the whole training")
    option("checkpoint-every", int, "10", "steps between checkpoints")
    option("step-seconds", float, "0", "shortest duration of a step; slows a demonstration down")
    option("paced-attempts", int, "0", "number of attempts that keep to it; later attempts run faster; 0 = all")
    option("seed", int, "7", "seed of weights and data")
    option("peer-seconds", float, "30", "longest silence of a peer")
    option("rendezvous-seconds", float, "120", "longest wait for all ranks")
    options = parser.parse_args()
    if options.steps < 1 or options.checkpoint_every < 1:
        parser.error("--steps and --checkpoint-every must be at least 1")
    return options


if __name__ == "__main__":
    sys.exit(main())
