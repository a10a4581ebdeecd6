"""A module of an application whose import fails, not by an ImportError."""

raise RuntimeError("on purpose")
