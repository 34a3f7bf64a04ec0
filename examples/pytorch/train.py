"""Train with PyTorch on all ranks of a job, and resume from the last proven checkpoint.

Copy this file and `pod.sh`, and replace `build` and `batch` with your model and your data. The rest is the training
contract: https://docs.pytorch.org/docs/stable/distributed.checkpoint.html writes the files of a checkpoint, and
Evenkeel's library proves them, fences older attempts and names the step to resume from.

    EVENKEEL_CHECKPOINT_URI=/tmp/checkpoints EVENKEEL_ATTEMPT=1 torchrun --standalone --nproc-per-node=2 train.py
"""

import argparse
import contextlib
import os
import sys
import tempfile
from collections.abc import Sequence
from datetime import timedelta
from pathlib import Path
from typing import Any

import torch
import torch.distributed as dist
import torch.distributed.checkpoint as dcp
from torch.distributed.checkpoint.state_dict import get_state_dict, set_state_dict
from torch.distributed.fsdp import fully_shard

from evenkeel import training

SCRATCH = os.environ.get("SCRATCH", "/dev/shm")  # noqa: S108 - each pod has its own, in memory
"""Folder of the pod with room for one checkpoint. Its ranks share it."""


def build(steps: int) -> tuple[torch.nn.Module, torch.optim.Optimizer, torch.optim.lr_scheduler.LRScheduler]:
    """Return the model, the optimizer and the schedule. All ranks must begin with the same weights."""
    torch.manual_seed(7)
    model = torch.nn.Sequential(
        torch.nn.Linear(16, 64), torch.nn.ReLU(), torch.nn.Dropout(0.1), torch.nn.Linear(64, 1)
    ).to(device())
    fully_shard(model)
    optimizer = torch.optim.AdamW(model.parameters(), lr=0.01)
    return model, optimizer, torch.optim.lr_scheduler.CosineAnnealingLR(optimizer, steps)


def batch(step: int, rank: int) -> tuple[torch.Tensor, torch.Tensor]:
    """Return the inputs and targets of a rank in a step.

    Data and random state follow from the step, so a checkpoint needs neither. If yours do not, save them too.
    """
    torch.manual_seed(step * 10_000 + rank)
    inputs = torch.randn(32, 16)
    return inputs.to(device()), inputs.square().sum(dim=1, keepdim=True).to(device())


def main() -> int:
    """Run one rank to its end. Return its exit code."""
    parser = argparse.ArgumentParser(description="Train a small model with FSDP2 and DCP.")
    parser.add_argument("--steps", type=int, default=200)
    parser.add_argument("--save-every", type=int, default=20)
    options = parser.parse_args()
    run = training.attach()
    dist.init_process_group(timeout=timedelta(minutes=5))  # no rank waits for a lost peer for longer
    try:
        code = train(run, options.steps, options.save_every)
    except training.Fenced:
        return training.EXIT_FENCED
    except training.Unproven:
        return training.EXIT_UNPROVEN
    except training.DamagedError:
        return training.EXIT_DAMAGED
    dist.destroy_process_group()
    return code


def train(run: training.Run, steps: int, save_every: int) -> int:
    """Train from the last proven checkpoint to the last step. Return the exit code."""
    model, optimizer, schedule = build(steps)
    resume = run.resume()
    if resume is not None:
        load(resume, model, optimizer, schedule)
    for step in range(resume.step if resume else 0, steps):
        inputs, targets = batch(step, run.rank)
        loss = torch.nn.functional.mse_loss(model(inputs), targets)
        loss.backward()
        optimizer.step()
        optimizer.zero_grad()
        schedule.step()
        must_stop = agree(run.should_stop())
        if must_stop or (step + 1) % save_every == 0 or step + 1 == steps:
            save(run, step + 1, loss.item(), model, optimizer, schedule)
            if run.rank == 0:
                print(f"saved step {step + 1}, loss {loss.item():.4f}", flush=True)
        if must_stop and step + 1 < steps:
            return training.EXIT_STOPPED
    return 0


def save(
    run: training.Run,
    step: int,
    loss: float,
    model: torch.nn.Module,
    optimizer: torch.optim.Optimizer,
    schedule: torch.optim.lr_scheduler.LRScheduler,
) -> None:
    """Let DCP write this rank's files to the scratch folder, and save them as one proven checkpoint."""
    weights, moments = get_state_dict(model, optimizer)
    state = {"model": weights, "optimizer": moments, "schedule": schedule.state_dict()}
    with tempfile.TemporaryDirectory(dir=SCRATCH) as folder:
        dcp.save(state, storage_writer=dcp.FileSystemWriter(folder))
        run.save_files(step, Path(folder).iterdir(), metrics={"loss": loss}, gather=gather)


def load(
    resume: training.Resume,
    model: torch.nn.Module,
    optimizer: torch.optim.Optimizer,
    schedule: torch.optim.lr_scheduler.LRScheduler,
) -> None:
    """Load a checkpoint, which any number of ranks may have written."""
    folder = Path(SCRATCH) / f"resume-{os.environ.get('TORCHELASTIC_RUN_ID')}-{os.environ.get('GROUP_RANK', '0')}"
    if os.environ.get("LOCAL_RANK", "0") == "0":  # one download for each pod
        resume.download(folder)
    dist.barrier()
    weights, moments = get_state_dict(model, optimizer)
    state: dict[str, Any] = {"model": weights, "optimizer": moments, "schedule": schedule.state_dict()}
    dcp.load(state, storage_reader=dcp.FileSystemReader(folder))
    set_state_dict(model, optimizer, model_state_dict=weights, optim_state_dict=moments)
    schedule.load_state_dict(state["schedule"])


def gather(record: dict[str, Any]) -> Sequence[dict[str, Any]]:
    """Return the records of all ranks, in rank order."""
    everyone: list[Any] = [None] * dist.get_world_size()
    dist.all_gather_object(everyone, record)
    return everyone


def agree(flag: bool) -> bool:
    """Whether the flag is set on any rank. SIGTERM may reach one rank a step earlier than another."""
    shared = torch.tensor(int(flag), device=device())
    dist.all_reduce(shared, dist.ReduceOp.MAX)
    return bool(shared.item())


def device() -> torch.device:
    """Return the GPU of this rank, or the CPU."""
    return torch.device("cuda", int(os.environ["LOCAL_RANK"])) if torch.cuda.is_available() else torch.device("cpu")


def end(code: int) -> None:
    """Exit, and tell `pod.sh` the code, because torchrun hides it. The first code of a pod counts."""
    if path := os.environ.get("EXIT_CODE_FILE"):
        with contextlib.suppress(FileExistsError), Path(path).open("x") as file:
            file.write(str(code))
    sys.exit(code)


if __name__ == "__main__":
    end(main())
