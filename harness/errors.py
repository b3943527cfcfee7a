"""The exceptions whose message is for the user: it names the key or the file, and the remedy."""


class UserError(Exception):
    """Shown as one line, without a traceback; the process exits with code 2."""


class Unavailable(UserError):
    """Not the run is at fault but its surroundings, such as a full disk or a claimed folder: a later start may succeed."""


def first_line(error: BaseException) -> str:
    """The first line of an error's message that is not empty, or the name of its type."""
    return next((line.strip() for line in str(error).splitlines() if line.strip()), type(error).__name__)
