"""The library for training scripts: save checkpoints and resume from the last proved one. Standard library only.

    from evenkeel import training

    run = training.attach()
    resume = run.resume()
    if resume is not None:
        model.load(resume.shard(run.rank))
    for step in range(resume.step if resume else 0, steps):
        loss = train(step)
        if (step + 1) % 100 == 0 or run.should_stop():
            run.save(step + 1, model.dump(), metrics={"loss": loss})
        if run.should_stop():
            sys.exit(training.EXIT_STOPPED)

`python -m evenkeel.training prove <uri>` prints the newest valid checkpoint, and why newer checkpoints are not valid.
"""

from evenkeel.training.resume import Distrust, Fenced, ResumeChoice, Unproven
from evenkeel.training.run import (
    EXIT_DAMAGED,
    EXIT_FENCED,
    EXIT_STOPPED,
    EXIT_UNPROVEN,
    DamagedError,
    NotInAnAttemptError,
    NotInCheckpointError,
    Resume,
    Run,
    Saved,
    attach,
)
from evenkeel.training.storage import open_storage

__all__ = [
    "EXIT_DAMAGED",
    "EXIT_FENCED",
    "EXIT_STOPPED",
    "EXIT_UNPROVEN",
    "DamagedError",
    "Distrust",
    "Fenced",
    "NotInAnAttemptError",
    "NotInCheckpointError",
    "Resume",
    "ResumeChoice",
    "Run",
    "Saved",
    "Unproven",
    "attach",
    "open_storage",
]
