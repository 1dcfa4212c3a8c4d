"""`python -m pfl_ops.bench model=cnn repeats=5 json=bench.json`: the benchmark where no MLflow and no Typer are.

Settings as `field=value`; `quick=yes` for the small scale, `json=FILE` to keep the numbers, `data_dir=DIR`.
"""

import json
import sys

from pfl_ops.errors import PflOpsError
from pfl_ops.files import write_named


def main(words: list[str]) -> int:
    """0, or 2 with one line on stderr."""
    from rich.console import Console

    from pfl_ops.bench.session import bench
    from pfl_ops.bench.settings import settings_of
    from pfl_ops.bench.table import render

    given = dict(word.partition("=")[::2] for word in words)
    file, data_dir, quick = given.pop("json", None), given.pop("data_dir", None), given.pop("quick", None)
    try:
        settings = settings_of(given, quick=quick is not None)
        report = bench(settings, data_dir=data_dir, say=lambda line: print(line, file=sys.stderr, flush=True))
        Console(width=100).print(render(report), highlight=False, markup=False)
        if file:
            write_named(file, json.dumps(report.to_dict(), indent=1))
    except PflOpsError as error:
        print(f"pfl-ops: {error}", file=sys.stderr)
        return 2
    return 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
