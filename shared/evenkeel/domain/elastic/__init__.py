"""When an elastic job grows or shrinks."""
