"""The one kind of error that is the user's to mend."""


class UserError(Exception):
    """Something that the user can change; the message is one line that says what is wrong and what to do.

    The command line prints it without a traceback and exits with status 2. Anything else that escapes is a bug.
    """
