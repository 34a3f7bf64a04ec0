"""`python -m bench.queues_plot FIGURES.json [BEFORE.json] > plot.svg`: decisions per second over pending jobs."""

from __future__ import annotations

import json
import math
import sys
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

WIDTH, HEIGHT, LEFT, BOTTOM, TOP, RIGHT = 640, 320, 70, 45, 20, 150
LINES = ((False, "classical", "#1f6feb"), (True, "fair sharing", "#d1571f"))


def svg(now: Sequence[dict[str, Any]], before: Sequence[dict[str, Any]]) -> str:
    """Draw both rules; dashed lines show the earlier figures."""
    max_speed = 2000 * math.ceil(max(document["nominationsPerSecond"] for document in (*now, *before)) / 2000)
    return "\n".join(
        (
            f'<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 {WIDTH} {HEIGHT}" font-family="sans-serif">',
            "<style>text{font-size:12px}</style>",
            f'<rect width="{WIDTH}" height="{HEIGHT}" fill="white"/>',
            *_axes(max_speed),
            *_lines(now, max_speed, ""),
            *_lines(before, max_speed, ' stroke-dasharray="5 4"'),
            "</svg>\n",
        )
    )


def _x(queued: int) -> float:
    return LEFT + (math.log10(queued) - 3) / 3 * (WIDTH - LEFT - RIGHT)


def _y(speed: float, max_speed: int) -> float:
    return HEIGHT - BOTTOM - speed / max_speed * (HEIGHT - BOTTOM - TOP)


def _axes(max_speed: int) -> Iterator[str]:
    for speed in range(0, max_speed + 1, 2000):
        y = _y(speed, max_speed)
        yield f'<path d="M{LEFT} {y:.1f}H{WIDTH - RIGHT}" stroke="#ddd"/>'
        yield f'<text x="{LEFT - 8}" y="{y + 4:.1f}" text-anchor="end">{speed:,}</text>'
    for power in range(3, 7):
        yield f'<text x="{_x(10**power):.1f}" y="{HEIGHT - BOTTOM + 18}" text-anchor="middle">{10**power:,}</text>'
    middle = LEFT + (WIDTH - LEFT - RIGHT) / 2
    yield f'<text x="{middle}" y="{HEIGHT - 8}" text-anchor="middle">jobs that wait in 100 queues</text>'
    yield f'<text x="{LEFT}" y="{TOP - 6}">decisions per second, one core</text>'


def _lines(figures: Sequence[dict[str, Any]], max_speed: int, style: str) -> Iterator[str]:
    for fair, name, colour in LINES:
        points = [
            (figure["queued"], figure["nominationsPerSecond"]) for figure in figures if figure["fairSharing"] is fair
        ]
        if not points:
            continue
        coordinates = [(_x(queued), _y(speed, max_speed)) for queued, speed in points]
        path = " ".join(f"{x:.1f},{y:.1f}" for x, y in coordinates)
        yield f'<polyline points="{path}" fill="none" stroke="{colour}" stroke-width="2"{style}/>'
        yield from (f'<circle cx="{x:.1f}" cy="{y:.1f}" r="3" fill="{colour}"/>' for x, y in coordinates)
        label = f"{name}, before" if style else name
        x, y = coordinates[-1][0] + 8, coordinates[-1][1] + (15 if style else -1)
        yield f'<text x="{x:.1f}" y="{y:.1f}" fill="{colour}">{label}</text>'


def main(words: Sequence[str]) -> int:
    """Draw the figures of the files that are named."""
    now, before = ([*(json.loads(Path(word).read_text(encoding="utf-8"))["nominations"] for word in words), []])[:2]
    sys.stdout.write(svg(now, before))
    return 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
