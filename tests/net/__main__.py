"""See the package."""

import sys
from pathlib import Path

from tests.net.compare import compare
from tests.net.record import record

match sys.argv[1:]:
    case ["record", folder, *only]:
        record(Path(folder), only)
    case ["compare", old, new]:
        sys.exit(compare(Path(old), Path(new)))
    case _:
        sys.exit("usage: python -m tests.net record FOLDER [JOB ...] | compare OLD NEW")
