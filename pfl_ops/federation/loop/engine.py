"""The digest of the engine's own code: what runs record beside the results version."""

import hashlib
from functools import cache
from pathlib import Path

import pfl_ops
from pfl_ops.code.syntax import syntax
from pfl_ops.data.store import remember, remembered

PARTS = (
    "federation/**/*.py",
    "federation/training/descent.cpp",
    "data/*.py",
    "models/base.py",
    "algorithms/base.py",
    "metrics.py",
    "rng.py",
    "config/samples.py",
)


@cache
def digest() -> str:
    """Return the SHA-256 of the engine's code without its words (`syntax`), 64 hexadecimal digits."""
    root = Path(pfl_ops.__file__).parent
    sources = {str(file.relative_to(root)): file.read_bytes() for part in PARTS for file in sorted(root.glob(part))}
    content = hashlib.sha256(repr(sorted(sources.items())).encode()).hexdigest()
    found = remembered("engine", content)
    if not isinstance(found, str):
        code = {
            name: syntax(source.decode()) if name.endswith(".py") else source.decode()
            for name, source in sources.items()
        }
        found = hashlib.sha256(repr(sorted(code.items())).encode()).hexdigest()
        remember("engine", content, found)
    return found
