"""`evenkeel doctor`: a table of checks, each a reader of facts and a pure judgement on them. Nothing is changed."""
