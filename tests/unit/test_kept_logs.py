import time

import pytest
from hypothesis import given
from hypothesis import strategies as st

from evenkeel.domain.kept_logs import (
    KEPT_BYTES,
    KEPT_LINES,
    escaped,
    redacted,
    secrets_of,
    shortened,
    shortened_with_times,
)

SECRETS = [
    "AWS_SECRET_ACCESS_KEY=wJalrXUtnFEMI/K7MDENG/bPxRfiCYEXAMPLEKEY",
    "key AKIAIOSFODNN7EXAMPLE is in use",
    "Authorization: Bearer abcdefghijklmnop.qrstuvwx",
    "login with hf_AbCdEfGhIjKlMnOpQrStUv",
    "wandb_api_key: 0123456789abcdef0123456789abcdef01234567",
    '{"password": "hunter2hunter2"}',
    "postgres://ana:s3cr3tpass@db:5432/x",
    "https://b.s3.amazonaws.com/k?X-Amz-Signature=deadbeefdeadbeef&X-Amz-Expires=60",
    "-----BEGIN RSA PRIVATE KEY-----\nMIIEowIBAAKCAQEA\n-----END RSA PRIVATE KEY-----",
    "jwt eyJhbGciOiJIUzI1NiJ9.eyJzdWIiOiIxMjM0In0.c2lnbmF0dXJl",
]
MASKED_PARTS = [
    "wJalrXUtnFEMI",
    "AKIAIOSFODNN7EXAMPLE",
    "abcdefghijklmnop",
    "AbCdEfGhIjKlMnOpQrStUv",
    "0123456789abcdef",
    "hunter2",
    "s3cr3tpass",
    "deadbeef",
    "MIIEowIBAAKCAQEA",
    "c2lnbmF0dXJl",
]


@pytest.mark.parametrize(("line", "secret"), list(zip(SECRETS, MASKED_PARTS, strict=True)))
def test_secret_patterns_are_masked(line: str, secret: str) -> None:
    masked_text = redacted(f"before\n{line}\nafter")

    assert secret not in masked_text
    assert masked_text.startswith("before\n")
    assert masked_text.endswith("\nafter")


def test_values_of_secret_variables_are_masked_everywhere() -> None:
    env = {"WANDB_API_KEY": "not-a-known-form", "STEPS": "1000000", "TOKEN": "abc"}

    assert secrets_of(env) == ("not-a-known-form",)
    assert redacted("using not-a-known-form for 1000000", secrets_of(env)) == "using [redacted] for 1000000"


def test_ordinary_training_output_is_untouched() -> None:
    line = "step 1200 loss=2.713 tokens/s 41000 lr 3e-4 grad_norm 0.8"

    assert redacted(line) == line


def test_control_and_bidi_characters_are_escaped() -> None:
    assert escaped("a\x1b[31mred\x07\u202eevil\u200b\x00\tb\r\nc\rd\n") == (
        "a\\x1b[31mred\\x07\\u202eevil\\u200b\\x00\tb\nc\nd\n"
    )


@given(st.text(alphabet=st.characters(), max_size=400).map(lambda text: text * 120), st.text(max_size=20))
def test_kept_log_is_bounded_and_printable(text: str, secret: str) -> None:
    kept_text, _ = shortened(text, (secret,) if len(secret) >= 6 else ())

    assert len(kept_text.encode()) <= KEPT_BYTES
    assert len(kept_text.splitlines()) <= KEPT_LINES
    assert all(character in "\n\t" or character.isprintable() for character in kept_text)


def test_secret_at_the_truncation_boundary_is_masked_completely() -> None:
    secret = "AWS_SECRET_ACCESS_KEY=" + "A1b2" * 10
    kept_text, is_cut = shortened(secret + " " + "x" * (KEPT_BYTES - 10), ())

    assert is_cut
    assert "A1b2" not in kept_text


def with_timestamps(*lines: str) -> str:
    return "".join(f"2026-11-03T10:00:{second:02d}.123456789Z {line}\n" for second, line in enumerate(lines))


def test_each_line_of_a_kept_log_has_its_time() -> None:
    text, _, times = shortened_with_times(with_timestamps("one", "10 %\r20 %", "2026-01-01T00:00:00Z own time"), ())

    assert text.splitlines() == ["one", "10 %", "20 %", "2026-01-01T00:00:00Z own time"]
    assert times == tuple(f"2026-11-03T10:00:0{second}.123" for second in (0, 1, 1, 2))


def test_secret_across_lines_is_masked_and_line_times_are_dropped() -> None:
    text, _, times = shortened_with_times(with_timestamps("one", "key: abc", "defghi", "two"), ("abc\ndefghi",))

    assert "abc" not in text
    assert "defghi" not in text
    assert times == ()


@given(st.text(alphabet="a\r\n\x85\u2028é ", max_size=200), st.integers(0, 400))
def test_log_with_times_keeps_as_much_text_as_without(text: str, repeats: int) -> None:
    log_text = text * repeats
    lines = log_text.split("\n")
    with_times = "\n".join(f"2026-11-03T10:00:00.5Z {line}" for line in lines)

    kept_log = shortened_with_times(with_times, ())

    assert kept_log.text.split("\n")[-1:] == shortened(log_text, ())[0].split("\n")[-1:]
    assert len(kept_log.times) in (0, len(kept_log.text.splitlines()))


@pytest.mark.parametrize(
    "piece", ["x", "a-", "token", "token=", "://a:", "basic ", "-----BEGIN PRIVATE KEY-----", "eyJ"]
)
def test_time_to_mask_a_log_is_linear_in_its_length(piece: str) -> None:
    began = time.process_time()
    kept_text, _ = shortened(piece * (4_000_000 // len(piece)), ())

    assert len(kept_text.encode()) <= KEPT_BYTES
    # A pattern that backtracks needs hours for such a text; a linear pattern needs less than a second.
    assert time.process_time() - began < 30
