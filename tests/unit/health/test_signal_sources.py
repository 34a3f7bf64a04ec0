"""Each source in a parser has a row in the table of signal sources."""

import importlib
import pkgutil

from evenkeel import events
from evenkeel.domain.health.signal_sources import SIGNAL_SOURCES, signal_source
from evenkeel.events import fields, reported_faults

NO_SIGNAL_SOURCES = {fields.DRILL_SOURCE, reported_faults.SOURCE}
"""Sources of EventBridge events that are not signal sources.

Their facts name the source of the copied event, or the reporter.
"""


def sources_of_parsers() -> set[str]:
    """Return the values of all constants of the parsers whose name contains `SOURCE`."""
    names = [f"evenkeel.events.{module_info.name}" for module_info in pkgutil.iter_modules(events.__path__)]
    return {
        value
        for name_of_module in names
        for name, value in vars(importlib.import_module(name_of_module)).items()
        if "SOURCE" in name and name.isupper() and isinstance(value, str)
    }


def test_every_signal_source_of_the_parsers_is_described() -> None:
    assert sources_of_parsers() - NO_SIGNAL_SOURCES == set(SIGNAL_SOURCES)


def test_unlisted_signal_source_is_shown_by_its_own_name() -> None:
    signal = signal_source("site:prober")

    assert (signal.text, signal.is_account_wide, signal.is_on_node) == ("site:prober", False, False)
