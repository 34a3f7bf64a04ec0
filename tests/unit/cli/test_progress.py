"""The step, loss and remaining time of a job, read from its log."""

import pytest

from evenkeel_cli.progress import Pace, TrainingProgress, read_progress, total_steps


@pytest.mark.parametrize(
    ("log", "expected"),
    [
        (
            '{"event": "step", "step": 76, "loss": 0.25}\n{"event": "saved", "step": 77}\n',
            TrainingProgress(77, None, 0.25),
        ),
        ('{"global_step": 5, "max_steps": 100, "train_loss": 1}', TrainingProgress(5, 100, 1.0)),
        ("Step 12/100, loss: 0.3\nsaved a checkpoint\n", TrainingProgress(12, 100, 0.3)),
        (" iteration      100/  500000 | lm loss: 6.6E+00 | grad norm: 1.2", TrainingProgress(100, 500000, 6.6)),
        ("{'loss': 0.31, 'learning_rate': 5e-05}", TrainingProgress(None, None, 0.31)),
        ("  41%|████      | 412/1000 [02:10<03:05,  3.17it/s]", TrainingProgress(412, 1000, None)),
        ("steps are counted later; lossless; epoch 3/9", TrainingProgress()),
        ('{"step": true, "loss": null}\n{"broken\n[1]', TrainingProgress()),
        ("", TrainingProgress()),
    ],
    ids=["json", "other names", "words", "megatron", "transformers", "tqdm", "no step", "broken", "empty"],
)
def test_newest_training_step_is_read_from_the_log(log: str, expected: TrainingProgress) -> None:
    assert read_progress(log) == expected


@pytest.mark.parametrize(
    ("command", "expected"),
    [
        ("train --steps 150 --seed 7", 150),
        ("train --max_steps=9", 9),
        ("train --steps", None),
        ("train --steps many --lr 1", None),
        ("train", None),
    ],
)
def test_total_number_of_steps_is_read_from_the_command(command: str, expected: int | None) -> None:
    assert total_steps(command.split()) == expected


def test_time_left_is_estimated_from_the_logged_steps() -> None:
    pace = Pace()

    seconds_left = [
        pace.seconds_left(1, TrainingProgress(step, 100), now)
        for step, now in ((10, 0.0), (10, 5.0), (20, 10.0), (20, 14.0))
    ]

    assert seconds_left == [None, None, 80.0, 76.0]


def test_training_pace_is_measured_separately_for_each_attempt() -> None:
    pace = Pace()
    pace.seconds_left(1, TrainingProgress(10, 100), 0.0)

    assert pace.seconds_left(2, TrainingProgress(50, 100), 10.0) is None
    assert pace.seconds_left(2, TrainingProgress(60, 100), 20.0) == 40.0


@pytest.mark.parametrize(
    "progress", [TrainingProgress(), TrainingProgress(5), TrainingProgress(None, 100), TrainingProgress(4, 100)]
)
def test_unknown_step_or_total_leaves_the_time_unknown(progress: TrainingProgress) -> None:
    pace = Pace()
    pace.seconds_left(1, TrainingProgress(5, 100), 0.0)

    assert pace.seconds_left(1, progress, 10.0) is None
