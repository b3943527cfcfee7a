"""The exceptions whose message is for the user: it names the key or the file, and the remedy."""


class UserError(Exception):
    """Shown as one line, without a traceback; the process exits with code 2."""


class Unavailable(UserError):
    """Not the run is at fault but its surroundings, such as a full disk or a claimed folder: a later start may succeed."""


def printable(text: str) -> str:
    """A text on one line without control characters: a stranger's may hold line breaks, or commands to a terminal."""
    return "".join(letter if letter.isprintable() else letter.encode("unicode_escape").decode() for letter in text)


def first_line(error: BaseException) -> str:
    """The first line of an error's message that is not empty, or the name of its type."""
    return next((line.strip() for line in str(error).splitlines() if line.strip()), type(error).__name__)
