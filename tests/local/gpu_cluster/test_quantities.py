"""Resource quantities as properties: the canonical form keeps the amount, and is stored only once."""

from __future__ import annotations

from decimal import ROUND_UP, Context, Decimal, localcontext

import pytest
from hypothesis import given
from hypothesis import strategies as st

from evenkeel_local.gpu_cluster import quantities

SUFFIXES = st.sampled_from([*quantities.DECIMAL_SUFFIXES, *quantities.BINARY_SUFFIXES, "e3", "E6", "e-3", "e+2"])
DIGITS = st.text("0123456789", min_size=1, max_size=9)


@st.composite
def texts(draw: st.DrawFn) -> str:
    """Return a quantity as a client may write it."""
    fraction = draw(st.one_of(st.just(""), DIGITS.map(lambda digits: f".{digits}")))
    return draw(st.sampled_from(["", "-", "+"])) + draw(DIGITS) + fraction + draw(SUFFIXES)


@given(texts())
def test_canonical_form_of_a_quantity_keeps_its_amount(text: str) -> None:
    amount = quantities.parse_quantity(text)

    stored = quantities.parse_quantity(quantities.canonical_text(text))

    with localcontext(Context(prec=120)):
        assert stored == amount.quantize(quantities.MILLI, rounding=ROUND_UP)


@given(texts())
def test_canonical_form_of_a_quantity_is_idempotent(text: str) -> None:
    once = quantities.canonical_text(text)

    assert quantities.canonical_text(once) == once


@given(st.integers(1, 2**50), st.booleans())
def test_amount_is_written_with_the_largest_exact_suffix(amount: int, binary: bool) -> None:
    text = quantities.format_quantity(Decimal(amount), binary=binary)

    number = int(text.rstrip("kKMGTPEi"))
    assert quantities.parse_quantity(text) == amount
    assert number % 1000 or not text.endswith(("k", "M", "G", "T", "P"))
    assert number % 1024 or not text.endswith("i") or text.endswith("Ei")


@pytest.mark.parametrize("text", ["", "-", ".", "1KiB", "1 Gi", "0x8", "--1", "1e", "1mm", "Gi", "NaN", "1e3k"])
def test_invalid_quantity_is_refused(text: str) -> None:
    with pytest.raises(ValueError, match="quantit"):
        quantities.canonical_text(text)


@pytest.mark.parametrize(
    ("text", "stored"),
    [("1.500", "1.500"), ("+8", "+8"), ("08", "08"), ("1.0", "1"), ("1500u", "2m"), ("-1000m", "-1"), ("1e-3", "1e-3")],
)
def test_common_quantities_are_stored_in_canonical_form(text: str, stored: str) -> None:
    assert quantities.canonical_text(text) == stored
