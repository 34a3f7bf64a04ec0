"""Series of signals, and the trust in checkpoints that follows from a set of signals."""

from datetime import timedelta
from random import Random

from hypothesis import given
from hypothesis import strategies as st

from evenkeel.domain.health.assessment import checkpoint_trust, merge_signal, series_of
from evenkeel.domain.health.faults import CheckpointTrust, default_catalogue
from evenkeel.domain.health.incidents import Signal
from tests.fakes.system import A_MOMENT


def a_signal(second: float, key: str = "xid:79", source: str = "kubernetes.node") -> Signal:
    at = A_MOMENT + timedelta(seconds=second)
    return Signal(fault_key=key, source=source, first_at=at, last_at=at)


def merged_signals(*signals: Signal) -> tuple[Signal, ...]:
    merged: tuple[Signal, ...] = ()
    for signal in signals:
        merged = merge_signal(merged, signal)
    return merged


def test_fault_codes_form_one_series_until_a_three_minute_pause() -> None:
    within = merged_signals(a_signal(0), a_signal(180), a_signal(100, "xid:48"))
    after = merged_signals(a_signal(0), a_signal(181))

    assert len(series_of(within)) == 1
    assert len(within) == 2
    assert len(series_of(after)) == len(after) == 2


@given(st.lists(st.integers(0, 2000), min_size=1, max_size=12), st.randoms(use_true_random=False))
def test_signals_merge_equally_in_any_order(seconds: list[int], chance: Random) -> None:
    shuffled = list(seconds)
    chance.shuffle(shuffled)

    assert merged_signals(*map(a_signal, seconds)) == merged_signals(*map(a_signal, shuffled))


def test_checkpoint_trust_follows_the_strictest_fault_of_an_incident() -> None:
    signals = merged_signals(a_signal(0, "xid:48"), a_signal(5, "xid:79"))

    assert checkpoint_trust(signals, default_catalogue()) == (CheckpointTrust.SUSPECT_SINCE_FIRST_SIGNAL, A_MOMENT)


def test_distrust_starts_with_the_signal_series_of_its_fault() -> None:
    signals = merged_signals(a_signal(-7200, "xid:63"), a_signal(-10, "xid:31"), a_signal(0, "xid:48"))

    assert checkpoint_trust(signals, default_catalogue())[1] == A_MOMENT - timedelta(seconds=10)


def test_vague_signal_with_a_known_cause_adds_no_distrust() -> None:
    signals = merged_signals(a_signal(0, "xid:154/gpu_reset_required"), a_signal(0, "xid:79"))

    assert checkpoint_trust(signals, default_catalogue())[0] is CheckpointTrust.TRUSTED


def test_repeated_signals_are_dropped_first() -> None:
    repeated_signals = [a_signal(600 * number, "node:not_ready") for number in range(80)]

    signals = merged_signals(*repeated_signals, a_signal(80_000, "xid:48"))

    assert len(signals) == 60
    assert signals[-1].fault_key == "xid:48"
