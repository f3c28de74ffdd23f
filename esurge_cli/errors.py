"""How a run ends before its end."""

from __future__ import annotations


class RunFailed(Exception):  # noqa: N818 - the word of the contract
    """The run cannot go on, through no fault of the command line: one line, exit status 1."""


class OutputClosed(Exception):  # noqa: N818 - it is no error
    """Whoever read the results has seen enough: a quiet end."""
