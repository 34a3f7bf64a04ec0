"""Read resource quantities, and write them in the canonical form that the API server stores.

Source: `k8s.io/apimachinery/pkg/api/resource/quantity.go`. A text that its fast path accepts as canonical is kept, so
`1.500` stays, but `1000m` becomes `1`, `1024Mi` becomes `1Gi` and `1000` becomes `1k`.
"""

from __future__ import annotations

import re
from decimal import ROUND_UP, Context, Decimal, localcontext
from functools import lru_cache
from typing import Any, Self

RULE = r"^([+-]?[0-9.]+)([eEinumkKMGTP]*[-+]?[0-9]*)$"
LARGEST = 2**63 - 1
DECIMAL_SUFFIXES = {"n": -9, "u": -6, "m": -3, "": 0, "k": 3, "M": 6, "G": 9, "T": 12, "P": 15, "E": 18}
BINARY_SUFFIXES = {"Ki": 10, "Mi": 20, "Gi": 30, "Ti": 40, "Pi": 50, "Ei": 60}
NANO, MILLI = Decimal("1e-9"), Decimal("1e-3")
FAST_DIGITS = 18

_PARTS = re.compile(r"^([+-]?)([0-9]*)(?:\.([0-9]*))?([eEinumkKMGTP]*[-+]?[0-9]*)$")
_EXPONENT = re.compile(r"^[eE]([-+]?[0-9]+)$")
_DECIMAL_NAMES = {exponent: suffix for suffix, exponent in DECIMAL_SUFFIXES.items()}
_EXACT = Context(prec=120)


class WrittenFloat(float):
    """A JSON number with a fraction or an exponent, with its text."""

    text: str

    def __new__(cls, text: str) -> Self:
        """Read a number and keep its text."""
        number = super().__new__(cls, text)
        number.text = text
        return number


def parse_quantity(value: Any) -> Decimal:
    """Return the amount of a quantity such as `8`, `500m` or `2Ti`.

    Raises:
        ValueError: the text is not a quantity.
    """
    return _parse_with_notation(quantity_text(value))[0]


def canonical_text(value: Any) -> str:
    """Return a quantity as the API server stores it.

    Raises:
        ValueError: the text is not a quantity.
    """
    return _canonical(quantity_text(value))


def quantity_text(value: Any) -> str:
    """Return the text of a quantity, which JSON may hold as a string or a number."""
    if isinstance(value, WrittenFloat):
        return value.text
    return str(value).strip()


def format_quantity(amount: Decimal, binary: bool = False) -> str:
    """Write an amount in canonical form; with `binary`, use binary suffixes where they are exact."""
    if not amount:
        return "0"
    if binary and abs(amount) >= 1024 and amount == amount.to_integral_value():
        return _with_binary_suffix(int(amount))
    return _with_decimal_suffix(amount, with_exponent=False)


@lru_cache(maxsize=4096)
def _parse_with_notation(text: str) -> tuple[Decimal, str]:
    """Return the amount and its notation: `decimal`, `exponent` or `binary`."""
    match = _PARTS.match(text)
    if match is None or not text:
        raise ValueError(f"quantities must match the regular expression '{RULE}'")
    sign, integer, fraction, suffix = match.groups()
    if not integer and not fraction:
        raise ValueError(f"quantities must match the regular expression '{RULE}'")
    notation, factor = _suffix_factor(suffix)
    with localcontext(_EXACT):
        amount = Decimal(f"{integer or '0'}.{fraction or '0'}") * factor
        if amount:
            amount = max(amount, NANO)
            if -amount.as_tuple().exponent > 9:  # type: ignore[operator]
                amount = amount.quantize(NANO, rounding=ROUND_UP)
        if notation == "binary":
            amount = min(amount, Decimal(LARGEST))
        return (-amount if sign == "-" else amount), notation


def _suffix_factor(suffix: str) -> tuple[str, Decimal]:
    if suffix in DECIMAL_SUFFIXES:
        return "decimal", Decimal(1).scaleb(DECIMAL_SUFFIXES[suffix])
    if suffix in BINARY_SUFFIXES:
        return "binary", Decimal(2 ** BINARY_SUFFIXES[suffix])
    exponent = _EXPONENT.match(suffix)
    if exponent is None or abs(int(exponent.group(1))) > 64:
        raise ValueError("unable to parse quantity's suffix")
    return "exponent", Decimal(1).scaleb(int(exponent.group(1)))


@lru_cache(maxsize=4096)
def _canonical(text: str) -> str:
    amount, notation = _parse_with_notation(text)
    with localcontext(_EXACT):
        rounded_amount = amount.quantize(MILLI, rounding=ROUND_UP) if amount != amount.quantize(MILLI) else amount
        if rounded_amount == amount and _is_canonical(text, notation):
            return text
        if not rounded_amount:
            return "0"
        if notation == "binary":
            return format_quantity(rounded_amount, binary=True)
        return _with_decimal_suffix(rounded_amount, with_exponent=notation == "exponent")


def _is_canonical(text: str, notation: str) -> bool:
    """Whether the server's fast path accepts a text as canonical."""
    match = _PARTS.match(text)
    if match is None:
        return False
    _, integer, fraction, suffix = match.groups()
    integer, fraction = integer.lstrip("0") or "0", fraction or ""
    if notation == "binary":
        exponent = BINARY_SUFFIXES[suffix]
        fits = 15 - len(integer) - int(exponent * 3 / 10) - 1 >= 0
        return fits and not fraction and int(integer) & 7 != 0
    digits = integer + fraction
    exponent = DECIMAL_SUFFIXES[suffix] if notation == "decimal" else int(suffix[1:])
    scale = exponent - len(fraction)
    if len(digits) > FAST_DIGITS or scale < -9:
        return False
    return scale % 3 == 0 and not digits.endswith("000") and digits[0] != "0"


def _with_decimal_suffix(amount: Decimal, *, with_exponent: bool) -> str:
    sign, digits, exponent = amount.normalize(_EXACT).as_tuple()
    mantissa, power = int("".join(map(str, digits))), int(exponent)
    mantissa, power = mantissa * 10 ** (power % 3), power - power % 3
    if with_exponent:
        suffix = f"e{power}" if power else ""
    else:
        highest_power = max(_DECIMAL_NAMES)
        if power > highest_power:
            mantissa, power = mantissa * 10 ** (power - highest_power), highest_power
        suffix = _DECIMAL_NAMES[power]
    return f"{'-' if sign else ''}{mantissa}{suffix}"


def _with_binary_suffix(amount: int) -> str:
    shown, suffix = abs(amount), ""
    for name in BINARY_SUFFIXES:
        if shown % 1024:
            break
        shown, suffix = shown // 1024, name
    return f"{'-' if amount < 0 else ''}{shown}{suffix}"
