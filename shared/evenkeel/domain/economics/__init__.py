"""Formulas and forecasts: money, failure rates, checkpoint intervals, spares, commitments and expected durations."""
