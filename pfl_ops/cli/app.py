"""The Typer application: one line for what a user can mend, a traceback for `--debug`, 130 for Ctrl-C."""

import errno
import re
import sys
import traceback
from types import TracebackType
from typing import Annotated, Any, NoReturn

import typer
from typer.core import TyperCommand, TyperGroup, TyperOption

from pfl_ops.cli.hints import flag_hint
from pfl_ops.cli.output import CLOSED, drop_output, flush, has_reader, open_missing_streams, print_what_it_can
from pfl_ops.cli.termination import sigterm_as_ctrl_c
from pfl_ops.errors import LONGEST_PATH, PflOpsError, echo, ended_by_signal, in_a_line
from pfl_ops.redaction import redact, redact_logs
from pfl_ops.system.memory import out_of_memory

DEBUG = "--debug"
LONGEST_LINE = 1000  # characters of an error
LONGEST_REASON = 200  # characters of PyTorch's account of missing memory, which ends with advice for its own users
SQLITE_FULL = "database or disk is full"
MOST_CAUSES = 20  # of an error, that are looked at


class Command(TyperCommand):
    """A command that refuses a flag given twice, of which only the last would count, and an empty one."""

    def parse_args(self, ctx: Any, args: list[str]) -> list[str]:
        """Parse the arguments into `ctx`.

        Raises:
            PflOpsError: a flag that takes one value is given twice, or one has an empty text (an unset "$URI").
        """
        values, _, order = self.make_parser(ctx).parse_args(args=list(args))
        for option in (parameter for parameter in order if isinstance(parameter, TyperOption)):
            given = values.get(str(option.name))
            if "" in (given if isinstance(given, list) else [given]):
                raise PflOpsError(f"{option.opts[0]} is empty; give a value, or leave it out")
            if order.count(option) > 1 and not (option.multiple or option.is_flag or option.count):
                raise PflOpsError(f"{option.opts[0]} is given twice; give it once")
        return super().parse_args(ctx, args)


class CommandGroup(TyperGroup):
    """The top command. Errors end here: `pfl-ops: <message>` on stderr, exit code 2, nothing on stdout."""

    def resolve_command(self, ctx: Any, args: list[str]) -> Any:
        """The command that a line names: one of two words ("partition import") goes before one of its first word."""
        pair = " ".join(args[:2])
        if pair in self.commands and len(args) > 1:
            return pair, self.commands[pair], args[2:]
        return super().resolve_command(ctx, args)

    def invoke(self, ctx: Any) -> Any:
        """Run a command; one that ends by exit() in a user's code has failed."""
        try:
            return super().invoke(ctx)
        except SystemExit as error:
            if ended_by_signal(error) or isinstance(error.__context__, BrokenPipeError):  # Rich exits then
                raise
            raise RuntimeError(f"exit() was called ({in_a_line(error)})") from error

    @sigterm_as_ctrl_c
    def main(self, *args: Any, **kwargs: Any) -> NoReturn:
        """Run a command line and exit: 0, 2 for an error the user can mend, 1 for any other, 130 for Ctrl-C."""
        given = args[0] if args else kwargs.pop("args", None)
        line = list(sys.argv[1:] if given is None else given)
        redact_logs()
        sys.excepthook = _print_uncaught
        debug = DEBUG in line  # anywhere on the line, so that it can be added to a command that just failed
        kwargs |= {"args": [a for a in line if a != DEBUG], "standalone_mode": False, "prog_name": "pfl-ops"}
        open_missing_streams()
        print_what_it_can()
        try:
            code = super().main(**kwargs)
            flush()
        except PflOpsError as error:
            code = _say(str(error), debug, error.exit_code, error.details)
        except OSError as error:
            if isinstance(error, BrokenPipeError) and not has_reader():  # it has enough, as `head` has
                drop_output()
                sys.exit(CLOSED)
            code = _say(_of_full_disk(error) or _of_system(error), debug)
        except typer.TyperException as error:  # an unknown flag, a missing argument
            code = _say(_plain(error), debug)
        except BaseException as error:
            if isinstance(error, KeyboardInterrupt | SystemExit):  # Typer's own: completion, a closed pipe
                raise
            if out_of_memory(error):
                code = _say(_of_memory(error), debug, 1)
            elif full := _of_full_disk(error):
                code = _say(full, debug)
            else:
                code = _say(f"internal error: {in_a_line(error)}; {DEBUG} shows where", debug, 1)
            raise SystemExit(code) from error  # so that a test can show it
        sys.exit(code if isinstance(code, int) else 0)


def _say(message: str, debug: bool, code: int = 2, details: str | None = None) -> int:
    """Print an error and return the exit code.

    Args:
        message: a line, or one for each of several mistakes; whatever a terminal would act on is escaped here again.
        debug: print the traceback too. details: instead of the whole traceback.
    """
    if debug:
        typer.echo(redact(traceback.format_exc() if details is None else details), err=True)
    lines = (echo(line, LONGEST_LINE) for line in redact(message).strip().split("\n"))
    typer.echo("pfl-ops: " + "\n         ".join(lines), err=True)
    return code


def _of_system(error: OSError) -> str:
    """The system's words, and the file that they are about."""
    if error.strerror is None or error.filename is None:
        return str(error)
    return f"{error.strerror}: {echo(error.filename, LONGEST_PATH)}"


def _of_full_disk(error: BaseException) -> str:
    """The advice for a full disk, which an error or one of its causes is about; "": none is.

    Optuna and MLflow say of a database without room that data are invalid, and keep SQLite's error as the cause.
    """
    cause: BaseException | None = error
    for _ in range(MOST_CAUSES):
        if cause is None:
            break
        is_full = isinstance(cause, OSError) and cause.errno in (errno.ENOSPC, errno.EDQUOT)
        if is_full or SQLITE_FULL in in_a_line(cause):
            named = is_full and getattr(cause, "filename", None)
            reason = _of_system(cause) if isinstance(cause, OSError) and named else "No space left on device"
            return f"the disk is full ({reason}); make room, and repeat the command (a study that has begun: --resume)"
        cause = cause.__cause__ or (None if cause.__suppress_context__ else cause.__context__)
    return ""


def _of_memory(error: BaseException) -> str:
    """The reason in PyTorch's words, and how to take less memory."""
    return (
        f"memory does not suffice ({in_a_line(error, LONGEST_REASON)}); train fewer clients at once (--chunk, "
        "--workers 1, or --way loop), or take a smaller --batch-size or --model; a run that has begun keeps its stacks "
        "and workers, --no-resume starts it again"
    )


def _print_uncaught(kind: type[BaseException], error: BaseException, trace: TracebackType | None) -> None:
    """Print the traceback of an error that nothing caught, without passwords."""
    sys.stderr.write(redact("".join(traceback.format_exception(kind, error, trace))))


def _plain(error: typer.TyperException) -> str:
    """Click's message in our form: no capital, no words of pydantic, a hint on an unknown flag, and where to look."""
    message = " ".join(error.format_message().split()).rstrip(".").replace(": Value error, ", ": ", 1)
    message = re.sub(r": Input should be (.+?)(, unable to parse .+)?$", r": must be \1", message)
    context = getattr(error, "ctx", None)
    if context and hasattr(error, "option_name") and hasattr(error, "possibilities"):  # no such option
        message = re.sub(r"\s*\(Possible options: .*\)$", "", message)
        flags = [flag for parameter in context.command.params for flag in (*parameter.opts, *parameter.secondary_opts)]
        wrong, whole = error.option_name, getattr(error.__context__, "option_name", None)
        if whole and not wrong.startswith("--") and whole.startswith(wrong):  # of -algo Click's parser names -a alone
            message, wrong = message.replace(wrong, whole, 1), whole
        hint = flag_hint(str(context.info_name), wrong, [flag for flag in flags if flag.startswith("--")])
        message += f". {hint}" if hint else ""
    elif context and (found := re.search(r"unexpected extra arguments?(?:\(s\))? \(([\w.]+=\S+?)[ )]", message)):
        has_set = any("--set" in parameter.opts for parameter in context.command.params)
        message += f". A setting: --set {found[1]}" if has_set else ""
    return f"{message[:1].lower()}{message[1:]} ({context.command_path if context else 'pfl-ops'} --help)"


app = typer.Typer(
    name="pfl-ops",
    cls=CommandGroup,
    invoke_without_command=True,
    pretty_exceptions_enable=False,
    context_settings={"help_option_names": ["--help", "-h"]},
    help="Simulate, tune and compare methods of personalised federated learning.",
    epilog="Start with: pfl-ops tune fliu --dataset digits",
)


def _version(wanted: bool) -> None:
    if wanted:
        import pfl_ops

        typer.echo(f"pfl-ops {pfl_ops.__version__}")
        raise typer.Exit


@app.callback()
def _top(
    context: typer.Context,
    version: Annotated[
        bool, typer.Option("--version", callback=_version, is_eager=True, help="Print the version and exit.")
    ] = False,
    debug: Annotated[
        bool, typer.Option(DEBUG, help="Show the traceback of an error; works anywhere on the line.")
    ] = False,
) -> None:
    if context.invoked_subcommand is None:
        typer.echo(context.get_help())
