"""The exceptions whose message is meant for the user: it names the key or the file and what to do."""


class UserError(Exception):
    """Shown as one line, without a traceback; the process exits with code 2."""


class Unavailable(UserError):
    """The surroundings refuse (a full disk, a folder that another process holds), not the run: a later start may succeed."""


def first_line(error: BaseException) -> str:
    """The first line of its message that says something; the name of its type if none does."""
    return next((line.strip() for line in str(error).splitlines() if line.strip()), type(error).__name__)
