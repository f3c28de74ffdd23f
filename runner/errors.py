"""Errors that are no bugs."""


class UserError(Exception):
    """Something that the user can change; the message is one line that says what is wrong and what to do.

    The command line prints it without a traceback and exits with status 2. Anything else that escapes is a bug.
    """


class DeviceError(Exception):
    """The device cannot go on with a step; one line that says why and what may help."""
