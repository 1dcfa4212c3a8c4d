"""Errors that a user meets: one clear line, what was wrong, what is allowed, the nearest valid name."""

import difflib
from collections.abc import Iterable, Mapping


class PflOpsError(Exception):
    """Anything the user can mend. The CLI prints it as one line and exits with code 2."""


def nearest(name: str, allowed: Iterable[str]) -> str | None:
    """The allowed name that looks most like `name`, or None when nothing is close."""
    found = difflib.get_close_matches(name, list(allowed), n=1, cutoff=0.5)
    return found[0] if found else None


def unknown(kind: str, name: str, allowed: Iterable[str], see: str = "") -> PflOpsError:
    """The error for a name that does not exist.

    Args:
        kind: what was looked for, as a reader would say it ("algorithm", "partition").
        name: what the user wrote.
        allowed: the names that exist.
        see: a command that lists them, shown in brackets.
    Returns:
        "no algorithm named 'flui'. Did you mean 'fliu'? (pfl-ops list algorithms)"
    """
    names = sorted(allowed)
    close = nearest(name, names)
    hint = f" Did you mean '{close}'?" if close else f" Known: {', '.join(names)}."
    return PflOpsError(f"no {kind} named '{name}'.{hint}" + (f" ({see})" if see else ""))


def in_a_line(error: BaseException, most: int = 500) -> str:
    """Any error as one line of at most so many characters; what is no mistake of the user's with its kind in front.

    Passwords in addresses are removed: such lines are kept with runs and studies.
    """
    from pfl_ops.addresses import redact  # which raises errors of this module

    text = redact(" ".join(str(error).split()))[:most]
    return text if isinstance(error, PflOpsError) else f"{type(error).__name__}: {text}"


def together(wrong: Mapping[str, str]) -> PflOpsError:
    """The mistakes of several as one error: a line for each name, or one line where all mistakes are the same."""
    if len(set(wrong.values())) == 1 and len(wrong) > 1:
        return PflOpsError(f"{', '.join(wrong)}: {next(iter(wrong.values()))}")
    return PflOpsError("\n".join(f"{name}: {message}" for name, message in wrong.items()))
