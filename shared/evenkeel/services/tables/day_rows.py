"""Keys and lifetime of the rows with the figures of whole days, in the fleet table.

They are not in `fleet_rows.py`, because the functions before a cordon must not load the code of costs and quotas.
"""

from datetime import date, timedelta

from evenkeel.domain.costs.day_figures import DayRow, compress_figures, day_of
from evenkeel.ports import LARGEST_ROW, Key, Row, Table
from evenkeel.ports.ledger import document_text

DAY_KEPT = timedelta(days=1100)
"""How long the figures of a day are kept: three years, with a margin."""


def day_key(day: date) -> Key:
    """Return the key `DAY#date / META`: the figures of a whole UTC day, from which reports add up."""
    return Key(Table.FLEET, f"DAY#{day}", "META")


def day_row(day_value: DayRow, version: int) -> Row:
    """Return the row. It outlives the records that it was computed from.

    Figures that would fill more than half of a row are compressed, to about an eighth of their size.
    """
    document, since = day_value.to_json(), day_value.figures.since
    if len(document_text(document)) > LARGEST_ROW / 2:
        document["figures"] = compress_figures(document["figures"])
    return Row(day_key(day_of(since)), document, version, None, since + DAY_KEPT)
