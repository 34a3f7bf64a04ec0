"""Kubernetes quantities, exactly: `1500m`, `64Gi`, `2e3`. CPU counts in thousandths, everything else in whole units.

Source: https://kubernetes.io/docs/reference/kubernetes-api/common-definitions/quantity/. An amount that 64 bits cannot
    hold is unlimited, as in Kueue.
"""

import functools
import re
from fractions import Fraction

CPU = "cpu"
UNLIMITED = 2**100
"""An amount without limit: larger than any sum or difference of 64-bit amounts."""
_LARGEST = 2**63 - 1

_SUFFIXES = {
    "": Fraction(1),
    **{suffix: Fraction(10) ** (3 * (power - 3)) for power, suffix in enumerate(("n", "u", "m"))},
    **{suffix: Fraction(10) ** (3 * (power + 1)) for power, suffix in enumerate(("k", "M", "G", "T", "P", "E"))},
    **{suffix: Fraction(1024) ** (power + 1) for power, suffix in enumerate(("Ki", "Mi", "Gi", "Ti", "Pi", "Ei"))},
}
_QUANTITY = re.compile(r"([+-]?(?:\d+\.?\d*|\.\d+))(?:[eE]([+-]?\d{1,3})|([numkMGTPE]|[KMGTPE]i)?)", re.ASCII)


@functools.lru_cache(maxsize=1024)  # all jobs repeat the same few amounts
def parse(text: str | float) -> Fraction:
    """Return a quantity's value.

    Raises:
        ValueError: The text is not a quantity.
    """
    match = _QUANTITY.fullmatch(str(text).strip())
    if match is None:
        raise ValueError(f"{text!r} is not a quantity")
    number, exponent, suffix = match.groups()
    return Fraction(number) * (Fraction(10) ** int(exponent) if exponent else _SUFFIXES[suffix or ""])


def amount(resource: str, quantity: str | float | Fraction) -> int:
    """Return a quantity in the resource's smallest unit, rounded up; unlimited if 64 bits cannot hold it."""
    value = quantity if isinstance(quantity, Fraction) else parse(quantity)
    if resource == CPU:
        value *= 1000
    units = -(-value.numerator // value.denominator)
    return UNLIMITED if units >= (_LARGEST // 1000 * 1000 if resource == CPU else _LARGEST) else max(units, -_LARGEST)


def text(resource: str, units: int) -> str:
    """Write an amount as a quantity; `unlimited` if it has no limit."""
    if units >= _LARGEST:
        return "unlimited"
    if resource != CPU:
        return str(units)
    return str(units // 1000) if units % 1000 == 0 else f"{units}m"


_IN_BYTES = ("memory", "ephemeral-storage", "storage", "hugepages-")
_BINARY = ("Ei", "Pi", "Ti", "Gi", "Mi", "Ki")


def short_text(resource: str, quantity: str) -> str:
    """Shorten a quantity that `text` wrote: bytes get the largest binary suffix that keeps them exact."""
    if not resource.startswith(_IN_BYTES) or not quantity.isdecimal():
        return quantity
    units = int(quantity)
    for suffix in _BINARY:
        size = int(_SUFFIXES[suffix])
        if units and units % size == 0:
            return f"{units // size}{suffix}"
    return quantity
