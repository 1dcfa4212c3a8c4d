"""Errors that a user meets: one clear line, what was wrong, what is allowed, the nearest valid name."""

import difflib
import re
import traceback
from collections.abc import Callable, Iterable, Mapping, Sequence
from pathlib import Path
from typing import TypeVar

from pfl_ops.redaction import redact

K = TypeVar("K")
T = TypeVar("T")

LONGEST_ECHO = 60  # characters of a user's text in a message
LONGEST_NAME = 100  # characters of a name that becomes part of file names
LONGEST_PATH = 200  # characters of a path in a message
KNOWN = " Known: "  # in front of these names
NAMES_LISTED = 40  # known names that a message lists at most
RAY_HANDLER = "ray/_private/worker.py"  # where Ray handles SIGTERM
SYNONYMS: Mapping[str, str | None] = {
    "dnn": "mlp",
    "fedbn": None,
    "fraction": "share",
    "gpu": "cuda",
    "join_ratio": "share",
    "learning_rate": "lr",
    "method": "algorithms",
    "methods": "algorithms",
    "mlr": "linear",
    "network": "models",
    "networks": "models",
    "non-iid": None,
    "non_iid": None,
    "noniid": None,
    "niid": None,
    "stacked": "vmap",
}
"""Another word -> the name of the same thing here, though a third one is spelt more like it; None: no name here means
that ("iid" is the opposite of "non-iid")."""


class PflOpsError(Exception):
    """Anything the user can mend. The CLI prints it as one line and exits with `exit_code`.

    Attributes:
        details: what `--debug` prints above that line; None: the whole traceback.
    """

    exit_code = 2
    details: str | None = None


def escaped(text: str) -> str:
    """The text with each character that does not print (control codes, line breaks, half surrogates) as an escape."""
    if text.isprintable():
        return text
    return "".join(c if c.isprintable() else c.encode("unicode_escape").decode() for c in text)


def echo(value: object, longest: int = LONGEST_ECHO) -> str:
    """A user's text as a message repeats it: escaped, and cut to at most `longest` characters."""
    text = escaped(str(value)[: longest + 1])
    return text if len(text) <= longest else f"{text[: longest - 3]}..."


def nearest(name: str, allowed: Iterable[str]) -> str | None:
    """The allowed name that looks most like `name`, in whatever case, or is its synonym; None if nothing is close.

    >>> nearest("gpu", ["cpu", "cuda"]), nearest("non-iid", ["iid", "path"]), nearest("pth", ["iid", "path"])
    ('cuda', None, 'path')
    """
    folded: dict[str, str] = {}
    for known in allowed:
        folded.setdefault(known.casefold(), known)
    if name.casefold() in SYNONYMS and ((same := SYNONYMS[name.casefold()]) is None or same in folded):
        return same and folded[same]
    found = difflib.get_close_matches(name[: 2 * LONGEST_NAME].casefold(), list(folded), n=1, cutoff=0.5)
    return folded[found[0]] if found else None


def did_you_mean(name: str, allowed: Iterable[str], otherwise: str = "") -> str:
    """Return the sentence on the nearest of the allowed names, with a space before it; `otherwise` if none is close.

    >>> did_you_mean("flui", ["fliu", "ditto"]), did_you_mean("x", ["fliu"], " It has: fliu.")
    (" Did you mean 'fliu'?", ' It has: fliu.')
    """
    close = nearest(name, allowed)
    return f" Did you mean '{close}'?" if close else otherwise


def unknown(kind: str, name: str, allowed: Iterable[str], see: str = "", hint: str = "") -> PflOpsError:
    """The error for a name that does not exist.

    Args:
        kind: what was looked for, as a reader would say it ("algorithm", "partition").
        name: what the user wrote.
        allowed: the names that exist.
        see: a command that lists them, shown in brackets.
        hint: a sentence in place of the nearest name.
    Returns:
        "no algorithm named 'flui'. Did you mean 'fliu'? (pfl-ops list algorithms)"
    """
    names = sorted(allowed)
    close = nearest(name, names)
    more = ", ..." if len(names) > NAMES_LISTED else ""
    listed = ", ".join(map(echo, names[:NAMES_LISTED])) + more
    hint = hint or (
        f"Did you mean '{echo(close)}'?" if close else f"{KNOWN.lstrip()}{listed}." if names else "There is none."
    )
    return PflOpsError(f"no {kind} named '{echo(name)}'. {hint}" + (f" ({see})" if see else ""))


def check_name(kind: str, name: str) -> str:
    """The name itself, if it can be part of a file name on every system.

    Args:
        kind: what it names, as in messages ("study").
    Raises:
        PflOpsError: a character that is no letter, digit, '.', '_' or '-'; a first one that is no letter or digit; or
            more than `LONGEST_NAME` characters.
    """
    if not isinstance(name, str) or not re.fullmatch(r"[^\W_][\w.-]*", name) or len(name) > LONGEST_NAME:
        article = "an" if kind[0] in "aeiou" else "a"
        raise PflOpsError(
            f"the name of {article} {kind} has at most {LONGEST_NAME} letters, digits, '.', '_' and '-', and begins "
            f"with a letter or digit; got '{echo(name)}'"
        )
    return name


def sentence(line: str) -> str:
    """Return a line of a message as a sentence; a tracked key at its beginning stays as it is.

    >>> sentence("the front has one point"), sentence("train/loss is of other models")
    ('The front has one point.', 'train/loss is of other models.')
    """
    is_key = "/" in line.split(" ", 1)[0]
    return f"{line}." if is_key else f"{line[0].upper()}{line[1:]}."


def in_a_line(error: BaseException, most: int = 500) -> str:
    """Any error as one line of at most so many characters; what is no mistake of the user's with its kind in front.

    Passwords in addresses are removed: such lines are kept with runs and studies.
    """
    try:
        text = str(error)
    except Exception:  # an exception class of a plug-in may fail to print itself
        text = "(its message can't be printed)"
    text = escaped(redact(" ".join(text.split())))[:most]
    if isinstance(error, PflOpsError):
        return text
    return f"{type(error).__name__}: {text}" if text else type(error).__name__


def frames(error: BaseException) -> list[traceback.FrameSummary]:
    """Return the lines that an error came through, outermost first; those of a worker process (`from_worker`) last."""
    return [*traceback.extract_tb(error.__traceback__), *getattr(error, "worker_frames", ())]


def from_worker(error: BaseException, lines: Iterable[tuple[str, int | None, str, str | None]]) -> BaseException:
    """Return the error with the lines that it came through in a worker process: (file, number, function, text)."""
    found = [traceback.FrameSummary(file, number, function, line=text) for file, number, function, text in lines]
    error.worker_frames = found  # type: ignore[attr-defined]
    return error


def place(error: BaseException, file: str | None, anywhere: bool = False) -> str:
    """The innermost line of `file` that the error came through, as " (mine.py:17)".

    Args:
        file: the source file; None: not known.
        anywhere: name the line that raised if the error did not come through `file`.
    Returns:
        "" if there is no such line.
    """
    lines = frames(error)
    found = [frame for frame in lines if frame.filename == file] or (lines if anywhere else [])
    return f" ({Path(found[-1].filename).name}:{found[-1].lineno})" if found else ""


def ended_by_signal(error: BaseException) -> bool:
    """True for Ctrl-C, a generator's end, and SystemExit from Ray's handler of SIGTERM: they interrupt whatever code
    runs at that moment.

    Any other SystemExit is of code that called exit(), which would end the command without a line, as if it had
    succeeded; any other BaseException is an error of a user's own class.
    """
    return isinstance(error, KeyboardInterrupt | GeneratorExit) or (
        isinstance(error, SystemExit) and any(RAY_HANDLER in frame.filename for frame in frames(error))
    )


def together(wrong: Mapping[str, str]) -> PflOpsError:
    """The mistakes of several as one error: a line for each name, or one line where all mistakes are the same.

    Names that are known (`unknown`) are listed once, by the first line.

    >>> print(together({one: str(unknown("loss", one, ["mse", "nll"])) for one in ("huber", "focal")}))
    huber: no loss named 'huber'. Known: mse, nll.
    focal: no loss named 'focal'.
    """
    if len(set(wrong.values())) == 1 and len(wrong) > 1:
        return PflOpsError(f"{', '.join(wrong)}: {next(iter(wrong.values()))}")
    lines, listed = [], set[str]()
    for name, message in wrong.items():
        problem, known, names = message.partition(KNOWN)
        lines.append(f"{name}: {problem if names in listed else message}")
        listed |= {names} if known else set()
    return PflOpsError("\n".join(lines))


def for_each(names: Iterable[str], make: Callable[[str], T]) -> dict[str, T]:
    """Return what a function makes of each name; the mistakes of several are one error, see `together`.

    >>> for_each(["one", "two"], len)
    {'one': 3, 'two': 3}
    """
    made: dict[str, T] = {}
    wrong: dict[str, str] = {}
    for name in names:
        try:
            made[name] = make(name)
        except PflOpsError as error:
            wrong[name] = str(error)
    if wrong:
        raise together(wrong)
    return made


def by_key(pairs: Iterable[tuple[K, T]]) -> dict[K, list[T]]:
    """Return the values of each key, as a message lists what shares a reason; keys in the order of their first values.

    >>> by_key([("no such data", "a"), ("died", "b"), ("no such data", "c")])
    {'no such data': ['a', 'c'], 'died': ['b']}
    """
    found: dict[K, list[T]] = {}
    for key, value in pairs:
        found.setdefault(key, []).append(value)
    return found


def listed(names: Sequence[str], most: int = 5) -> str:
    """Return the first names with commas, and the number of the others.

    >>> listed(["fliu", "ditto"]), listed(["fliu", "ditto", "apfl"], most=1)
    ('fliu, ditto', 'fliu and 2 more')
    """
    return ", ".join(names[:most]) + (f" and {len(names) - most} more" if len(names) > most else "")


def format_bytes(n: int) -> str:
    """Return a size in the unit in which it has one to four digits.

    >>> format_bytes(12), format_bytes(96_000_000), format_bytes(1023 * 2**20)
    ('12 bytes', '91.6 MiB', '1,023 MiB')
    """
    if n >= 2**60:
        return "over 1,024 PiB"
    power = (max(n, 1).bit_length() - 1) // 10
    value = n / 1024**power
    number = f"{value:,.0f}" if value >= 100 else f"{value:.3g}"
    return f"{number} {('bytes', 'KiB', 'MiB', 'GiB', 'TiB', 'PiB')[power]}"


def count(n: int, what: str, verb: str = "") -> str:
    """Return a number of things in words, with "is" or "are" if that is the verb.

    >>> count(1, "run"), count(3, "study"), count(1, "run", "is"), count(0, "run", "is")
    ('1 run', '3 studies', '1 run is', '0 runs are')
    """
    several = f"{what[:-1]}ies" if what.endswith("dy") else f"{what}s"
    verb = f" {'is' if n == 1 else 'are'}" if verb else ""
    return f"{n} {what if n == 1 else several}{verb}"
