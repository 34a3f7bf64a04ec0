"""The network and its data: tell three rings apart from the coordinates of a point.

The same seed gives the same weights to the last bit, for any number of ranks: all arithmetic runs in one fixed order.
A step cuts its batch into `MICRO_SHARDS` pieces and computes the gradient of each piece alone. It adds the pieces in
the order of their numbers, never in the order of their arrival.
"""

import hashlib
import math
import random
import struct
from collections.abc import Sequence
from dataclasses import dataclass

MICRO_SHARDS = 12
SAMPLES_A_MICRO_SHARD = 4
HIDDEN = 16
CLASSES = 3
LEARNING_RATE = 0.15
MOMENTUM = 0.9

# The weights are a flat vector: hidden units (2 inputs and a bias each), then outputs (HIDDEN inputs and a bias each).
_OUTPUT_AT = HIDDEN * 3
PARAMETERS = _OUTPUT_AT + CLASSES * (HIDDEN + 1)

_PIECE = struct.Struct(f"<{PARAMETERS + 1}d")
PIECE_BYTES = _PIECE.size


@dataclass(frozen=True)
class MicroShardResult:
    """Loss and gradient of one micro-shard, both summed over its samples."""

    loss: float
    gradient: tuple[float, ...]

    def to_bytes(self) -> bytes:
        return _PIECE.pack(self.loss, *self.gradient)

    @classmethod
    def from_bytes(cls, content: bytes) -> "MicroShardResult":
        loss, *gradient = _PIECE.unpack(content)
        return cls(loss, tuple(gradient))


@dataclass
class ModelState:
    """State of the training: weights and their momentum."""

    weights: list[float]
    velocity: list[float]

    @classmethod
    def fresh(cls, seed: int) -> "ModelState":
        source = random.Random(f"{seed}/weights")
        return cls([source.uniform(-1.0, 1.0) for _ in range(PARAMETERS)], [0.0] * PARAMETERS)

    def learn(self, pieces: Sequence[MicroShardResult]) -> float:
        """Take one step along the sum of the pieces, in their order; return the mean loss."""
        samples = MICRO_SHARDS * SAMPLES_A_MICRO_SHARD
        loss = 0.0
        total = [0.0] * PARAMETERS
        for piece in pieces:
            loss += piece.loss
            total = [so_far + added for so_far, added in zip(total, piece.gradient, strict=True)]
        self.velocity = [MOMENTUM * v - LEARNING_RATE * g / samples for v, g in zip(self.velocity, total, strict=True)]
        self.weights = [w + v for w, v in zip(self.weights, self.velocity, strict=True)]
        return loss / samples

    def digest(self) -> str:
        """Return the SHA-256 of the weights, bit by bit."""
        return "sha256:" + hashlib.sha256(_pack(self.weights)).hexdigest()

    def shard(self, rank: int, world_size: int) -> bytes:
        """Return this rank's slice of weights and momentum."""
        values = self.weights + self.velocity
        return _pack(values[len(values) * rank // world_size : len(values) * (rank + 1) // world_size])

    @classmethod
    def joined(cls, shards: Sequence[bytes]) -> "ModelState":
        """Join the slices of all ranks."""
        content = b"".join(shards)
        values = list(struct.unpack(f"<{2 * PARAMETERS}d", content))
        return cls(values[:PARAMETERS], values[PARAMETERS:])


def piece_of(weights: Sequence[float], seed: int, step: int, micro_shard: int) -> MicroShardResult:
    """Compute loss and gradient of one micro-shard of one step's batch."""
    source = random.Random(f"{seed}/{step}/{micro_shard}")
    loss = 0.0
    gradient = [0.0] * PARAMETERS
    for _ in range(SAMPLES_A_MICRO_SHARD):
        x, y, ring = _sample(source)
        hidden, probabilities = _forward(weights, x, y)
        loss -= math.log(max(probabilities[ring], 1e-300))
        _backward(weights, (x, y), hidden, [p - (k == ring) for k, p in enumerate(probabilities)], gradient)
    return MicroShardResult(loss, tuple(gradient))


def accuracy(weights: Sequence[float], seed: int, samples: int = 300) -> float:
    """Return the share of unseen points that the weights place in the right ring."""
    source = random.Random(f"{seed}/unseen")
    right = 0
    for _ in range(samples):
        x, y, ring = _sample(source)
        _, probabilities = _forward(weights, x, y)
        right += probabilities.index(max(probabilities)) == ring
    return right / samples


def _sample(source: random.Random) -> tuple[float, float, int]:
    ring = source.randrange(CLASSES)
    radius = 0.5 + ring + source.uniform(-0.3, 0.3)
    angle = source.uniform(0.0, 2 * math.pi)
    return radius * math.cos(angle), radius * math.sin(angle), ring


def _forward(weights: Sequence[float], x: float, y: float) -> tuple[list[float], list[float]]:
    hidden = [
        math.tanh(weights[3 * unit] * x + weights[3 * unit + 1] * y + weights[3 * unit + 2]) for unit in range(HIDDEN)
    ]
    scores = []
    for k in range(CLASSES):
        at = _OUTPUT_AT + k * (HIDDEN + 1)
        score = weights[at + HIDDEN]
        for unit in range(HIDDEN):
            score += weights[at + unit] * hidden[unit]
        scores.append(score)
    top = max(scores)
    powers = [math.exp(score - top) for score in scores]
    total = powers[0] + powers[1] + powers[2]
    return hidden, [power / total for power in powers]


def _backward(
    weights: Sequence[float],
    point: tuple[float, float],
    hidden: list[float],
    errors: list[float],
    gradient: list[float],
) -> None:
    """Add one sample's gradient."""
    for k, error in enumerate(errors):
        at = _OUTPUT_AT + k * (HIDDEN + 1)
        for unit in range(HIDDEN):
            gradient[at + unit] += error * hidden[unit]
        gradient[at + HIDDEN] += error
    for unit in range(HIDDEN):
        back = 0.0
        for k, error in enumerate(errors):
            back += error * weights[_OUTPUT_AT + k * (HIDDEN + 1) + unit]
        slope = back * (1.0 - hidden[unit] * hidden[unit])
        gradient[3 * unit] += slope * point[0]
        gradient[3 * unit + 1] += slope * point[1]
        gradient[3 * unit + 2] += slope


def _pack(values: Sequence[float]) -> bytes:
    return struct.pack(f"<{len(values)}d", *values)
