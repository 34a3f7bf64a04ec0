"""`python -m bench.scale_plot FIGURES.json … > plot.svg`: modelled seconds of each case over the nodes of the fleet."""

from __future__ import annotations

import json
import math
import sys
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

WIDTH, HEIGHT, LEFT, BOTTOM, TOP, RIGHT = 640, 340, 70, 45, 25, 150
LOWEST, DECADES = 0.1, 4
AIM_SECONDS = 5.0
LINES = (
    ("event to cordon", "#1f6feb"),
    ("storm", "#d1571f"),
    ("watch", "#2e7d32"),
    ("cycle", "#7b1fa2"),
    ("sweep", "#00838f"),
    ("settle", "#795548"),
)


def svg(figures: Sequence[Mapping[str, Any]]) -> str:
    """Draw the cases of the sizes with as many jobs as nodes; the dashed line is the aim."""
    square = [figure for figure in figures if figure["nodes"] == figure["jobs"] and figure["p99Seconds"]]
    return "\n".join(
        (
            f'<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 {WIDTH} {HEIGHT}" font-family="sans-serif">',
            "<style>text{font-size:12px}</style>",
            f'<rect width="{WIDTH}" height="{HEIGHT}" fill="white"/>',
            *_axes(),
            *_lines(square),
            "</svg>\n",
        )
    )


def _x(nodes: int) -> float:
    return LEFT + (math.log10(nodes) - 2) / 2 * (WIDTH - LEFT - RIGHT)


def _y(seconds: float) -> float:
    return HEIGHT - BOTTOM - math.log10(max(LOWEST, seconds) / LOWEST) / DECADES * (HEIGHT - BOTTOM - TOP)


def _axes() -> Iterator[str]:
    for power in range(DECADES + 1):
        seconds = LOWEST * 10**power
        yield f'<path d="M{LEFT} {_y(seconds):.1f}H{WIDTH - RIGHT}" stroke="#ddd"/>'
        yield f'<text x="{LEFT - 8}" y="{_y(seconds) + 4:.1f}" text-anchor="end">{seconds:g}</text>'
    yield f'<path d="M{LEFT} {_y(AIM_SECONDS):.1f}H{WIDTH - RIGHT}" stroke="#999" stroke-dasharray="5 4"/>'
    yield f'<text x="{LEFT + 4}" y="{_y(AIM_SECONDS) - 4:.1f}" fill="#777">5 s</text>'
    for nodes in (100, 1_000, 2_000, 10_000):
        yield f'<text x="{_x(nodes):.1f}" y="{HEIGHT - BOTTOM + 18}" text-anchor="middle">{nodes:,}</text>'
    middle = LEFT + (WIDTH - LEFT - RIGHT) / 2
    yield f'<text x="{middle}" y="{HEIGHT - 8}" text-anchor="middle">nodes, and as many jobs</text>'
    yield f'<text x="{LEFT}" y="{TOP - 10}">modelled seconds on AWS, p99</text>'


def _lines(figures: Sequence[Mapping[str, Any]]) -> Iterator[str]:
    labels: list[float] = []
    for name, colour in sorted(LINES, key=lambda line: -_last(figures, line[0])):
        points = [(figure["nodes"], figure["p99Seconds"]) for figure in figures if figure["case"] == name]
        if not points:
            continue
        coordinates = [(_x(nodes), _y(seconds)) for nodes, seconds in points]
        path = " ".join(f"{x:.1f},{y:.1f}" for x, y in coordinates)
        yield f'<polyline points="{path}" fill="none" stroke="{colour}" stroke-width="2"/>'
        yield from (f'<circle cx="{x:.1f}" cy="{y:.1f}" r="3" fill="{colour}"/>' for x, y in coordinates)
        x, y = coordinates[-1][0] + 8, max(coordinates[-1][1] + 4, labels[-1] + 14 if labels else 0)
        labels.append(y)
        yield f'<text x="{x:.1f}" y="{y:.1f}" fill="{colour}">{name}</text>'


def _last(figures: Sequence[Mapping[str, Any]], name: str) -> float:
    values = [float(figure["p99Seconds"]) for figure in figures if figure["case"] == name]
    return values[-1] if values else 0.0


def main(words: Sequence[str]) -> int:
    """Draw the figures of the files that are named."""
    files = [json.loads(Path(word).read_text(encoding="utf-8"))["results"] for word in words]
    sys.stdout.write(svg([figure for figures in files for figure in figures]))
    return 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
