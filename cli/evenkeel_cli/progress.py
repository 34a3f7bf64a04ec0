"""Read the progress of a training job from its log: step, number of steps, loss, and the time left.

Training logs have no standard. Values that the log lacks stay unknown.
"""

import json
import re
from collections.abc import Sequence
from typing import Any, NamedTuple

Json = dict[str, Any]

_STEP_NAMES = ("step", "global_step", "iteration", "iter")
_TOTAL_NAMES = ("steps", "total_steps", "max_steps", "train_iters")
_LOSS_NAMES = ("loss", "train_loss", "lm_loss", "lm loss")
_STEP = re.compile(
    r"\b(?:global_)?(?:step|iter(?:ation)?)\b['\"]?[\s:=#\[]*(\d{1,12})(?:\s*(?:/|of)\s*(\d{1,12}))?", re.IGNORECASE
)
_BAR = re.compile(r"\b(\d{1,12})/(\d{1,12}) \[")
"""A progress bar of tqdm: `412/1000 [02:10<03:05, 3.17it/s]`."""
_LOSS = re.compile(r"\bloss\b['\"]?\s*[:=]?\s*([-+]?\d+\.?\d*(?:[eE][-+]?\d+)?)", re.IGNORECASE)
_TOTAL_OPTIONS = ("--steps", "--max-steps", "--max_steps", "--total-steps", "--total_steps", "--train-iters")
MAX_LINES = 200
"""Lines of a log that are searched, from the end."""


class TrainingProgress(NamedTuple):
    """The progress of a job that its log states; None = the log does not say."""

    step: int | None = None
    steps: int | None = None
    """The last step."""
    loss: float | None = None

    def to_json(self) -> Json:
        """Return the values by name."""
        return self._asdict()


def read_progress(text: str) -> TrainingProgress:
    """Return the newest step, number of steps and loss of a log with JSON lines or with `step 12/100, loss: 0.3`."""
    training_progress = TrainingProgress()
    for line in reversed(text.splitlines()[-MAX_LINES:]):
        stated_progress = _json_line_progress(line) or _text_line_progress(line)
        training_progress = TrainingProgress(
            stated_progress.step if training_progress.step is None else training_progress.step,
            stated_progress.steps if training_progress.steps is None else training_progress.steps,
            stated_progress.loss if training_progress.loss is None else training_progress.loss,
        )
        if None not in training_progress:
            break
    return training_progress


def _json_line_progress(line: str) -> TrainingProgress | None:
    if not line.lstrip().startswith("{"):
        return None
    try:
        document = json.loads(line)
    except ValueError:
        return None
    if not isinstance(document, dict):
        return None
    step, steps = (_first_number(document, names, int) for names in (_STEP_NAMES, _TOTAL_NAMES))
    return TrainingProgress(step, steps, _first_number(document, _LOSS_NAMES, float))


def _first_number(document: Json, names: Sequence[str], kind: Any) -> Any:
    candidates = (document.get(name) for name in names)
    return next(
        (kind(value) for value in candidates if isinstance(value, int | float) and not isinstance(value, bool)), None
    )


def _text_line_progress(line: str) -> TrainingProgress:
    step, loss = _STEP.search(line) or _BAR.search(line), _LOSS.search(line)
    total = step[2] if step else None
    return TrainingProgress(
        int(step[1]) if step else None, int(total) if total else None, float(loss[1]) if loss else None
    )


def total_steps(words: Sequence[str]) -> int | None:
    """Return the number of steps that an option in the command of a job states; None without such an option."""
    for number, word in enumerate(words):
        name, equals, value = word.partition("=")
        if name in _TOTAL_OPTIONS:
            value = value if equals else next(iter(words[number + 1 :]), "")
            if value.isascii() and value.isdigit():
                return int(value)
    return None


class Pace:
    """Measures the pace of one attempt from the steps that were seen since the watch began."""

    def __init__(self) -> None:
        """Begin without a known pace."""
        self._attempt = 0
        self._first: tuple[int, float] | None = None
        self._last: tuple[int, float] | None = None

    def seconds_left(self, attempt: int, progress: TrainingProgress, now: float) -> float | None:
        """Return the seconds until the last step at the pace so far; None if unknown.

        Args:
            attempt: The attempt. The pace of an earlier attempt says nothing about this attempt.
            progress: The progress that its log states now.
            now: Seconds of a monotonic clock.
        """
        if attempt != self._attempt:
            self._attempt, self._first, self._last = attempt, None, None
        if progress.step is None:
            return None
        if self._last is None or progress.step != self._last[0]:
            self._last = (progress.step, now)
            self._first = self._first or self._last
        if self._first is None or progress.steps is None or progress.step <= self._first[0]:
            return None
        (first_step, first_at), (last_step, last_at) = self._first, self._last
        pace = (last_at - first_at) / (last_step - first_step)
        return max(0.0, (progress.steps - last_step) * pace - (now - last_at))
