"""Exceptions whose message is meant for the user: it names the key or the file, and the remedy."""


class UserError(Exception):
    """An error that the user can mend. It is shown as one line without a traceback, and the process exits with code 2."""


class Unavailable(UserError):
    """An error of the environment and not of the run, such as a full disk or a locked folder. A later start may succeed."""


def printable(text: str) -> str:
    """The text on one line with control characters escaped. Text from elsewhere may hold line breaks or terminal commands."""
    return "".join(letter if letter.isprintable() else letter.encode("unicode_escape").decode() for letter in text)


def first_line(error: BaseException) -> str:
    """The first non-empty line of an error's message, or the name of the error's type."""
    return next((line.strip() for line in str(error).splitlines() if line.strip()), type(error).__name__)
