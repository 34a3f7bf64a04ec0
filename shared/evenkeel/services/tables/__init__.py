"""Rows of the tables: keys, index entries and lifetimes, and how a row becomes a value."""
