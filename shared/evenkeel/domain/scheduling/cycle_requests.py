"""Whether an earlier scheduling cycle already answered a request for a cycle.

    write ─▶ request ─────── ANSWER_MARGIN ───────▶ start of a cycle ─▶ its reads ─▶ its commit
                 └ the clocks of SQS and Lambda differ by less, and the index of waiting jobs lags by less

A request holds no data. A cycle that started long enough after the request has read all earlier writes. If the index
lags longer, the cycle of the next minute sees the write.
"""

from datetime import datetime, timedelta

ANSWER_MARGIN = timedelta(seconds=5)
"""How long before the start of a cycle a request must have been sent. Usually the index lags by less than a second, and
clocks on AWS differ by less."""


def is_answered(requested_at: datetime, cycle_started_at: datetime) -> bool:
    """Whether a finished cycle read everything that was written before a request.

    Args:
        requested_at: When the request was sent.
        cycle_started_at: When the cycle began to read.
    """
    return requested_at + ANSWER_MARGIN <= cycle_started_at
