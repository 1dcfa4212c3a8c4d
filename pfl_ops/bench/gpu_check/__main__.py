"""`python -m pfl_ops.bench.gpu_check --json gpu.json`: exit code 0, or 1 if a check failed, or 2 with one line."""

import argparse
import json
import sys

from pfl_ops.errors import PflOpsError
from pfl_ops.files import write_named
from pfl_ops.system.collector import collect_rarely


def parser() -> argparse.ArgumentParser:
    """The options of the command."""
    found = argparse.ArgumentParser("python -m pfl_ops.bench.gpu_check", description="Check what runs on a GPU.")
    found.add_argument("--device", choices=("cuda", "cpu"), default="cuda", help="cpu: all checks but those of a GPU")
    found.add_argument("--json", metavar="FILE", help="write all rows to a file")
    found.add_argument("--minutes", type=float, default=9.0, help="no step begins after so many minutes (9)")
    found.add_argument("--data", metavar="FOLDER", help="with mnist.npz; default: PFL_OPS_DATA, else random data")
    found.add_argument("--only", metavar="NAMES", default="", help="some checks, with commas between them")
    found.add_argument("--quick", action="store_true", help="smallest sizes: to see that the checks themselves work")
    return found


def main(words: list[str] | None = None) -> int:
    """Run the checks, print their table, and return the exit code."""
    given = parser().parse_args(words)
    from pfl_ops.bench.gpu_check.options import FULL, QUICK
    from pfl_ops.bench.gpu_check.outcome import CheckRow, table, worst
    from pfl_ops.bench.gpu_check.session import check

    try:
        if not given.minutes > 0:
            raise PflOpsError(f"--minutes must be above 0, got {given.minutes:g}")
        report = check(
            given.device, QUICK if given.quick else FULL, minutes=given.minutes, data_dir=given.data,
            only=tuple(name.strip() for name in given.only.split(",") if name.strip()), quick=given.quick,
            say=lambda line: print(line, file=sys.stderr, flush=True),
        )  # fmt: skip
        rows = [CheckRow(**row) for row in report["rows"]]
        print(", ".join(f"{name} {value}" for name, value in report["machine"].items()))
        print(table(rows))
        print(f"{worst(rows)} in {report['seconds']:.0f} s" + (" (quick: its figures have no meaning)" * given.quick))
        if given.json:
            write_named(given.json, json.dumps(report, indent=1))
    except PflOpsError as error:
        print(f"pfl-ops: {error}", file=sys.stderr)
        return 2
    return 1 if worst(rows) == "failed" else 0


if __name__ == "__main__":
    collect_rarely()
    sys.exit(main())
