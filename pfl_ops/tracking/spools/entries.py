"""Fields of the entries that a journal may hold, checked before an entry is sent."""

from functools import reduce
from operator import or_
from typing import Annotated, Any, Literal, TypeAlias

from pydantic import ConfigDict, Field, TypeAdapter, ValidationError, create_model

from pfl_ops.tracking.spools.journal import DamagedJournal, JournalEntry, first_error

Whole = Annotated[int, Field(ge=-(1 << 63), lt=1 << 63)]  # what databases hold
Texts: TypeAlias = dict[str, str]
STAGED: dict[str, Any] = {"file": str, "size": (Whole | None, None), "digest": (str | None, None)}
FIELDS: dict[str, dict[str, Any]] = {
    "open": {"name": str, "read": (bool, False)},
    "finish": {"status": Literal["FINISHED", "FAILED", "KILLED"], "time": Whole, "read": (bool, False)},
    "tags": {"tags": Texts},
    "experiment": {"tags": Texts},
    "choose": {"identity": str, "others": (list[str], [])},
    "params": {"params": Texts},
    "metrics": {"points": list[Annotated[list[Any], Field(min_length=4, max_length=4)]], "set": (bool, False)},
    "artifact": {**STAGED, "folder": str},
    "dataset": {
        **dict.fromkeys(("name", "digest", "source_type", "source"), str),
        "schema_": Annotated[str, Field(alias="schema")],  # pydantic has a method of that name
        **dict.fromkeys(("profile", "context"), str),
    },
    "model": {**STAGED, "name": str, "step": Whole},
    "supersede": {},
    "complete": {},
}
"""`op` of an entry -> its fields: their types, with the default of those that may be missing."""

_MODELS: Any = [
    create_model(op, __config__=ConfigDict(strict=True), **{"op": Literal[op], **fields})
    for op, fields in FIELDS.items()
]
_ANY_MODEL: Any = Annotated[reduce(or_, _MODELS), Field(discriminator="op")]
_ENTRY: TypeAdapter[Any] = TypeAdapter(_ANY_MODEL)
_POINTS: TypeAdapter[Any] = TypeAdapter(list[tuple[str, float, Whole, Whole]])


def check(entry: JournalEntry) -> None:
    """Check an entry's fields; fields that are not known are left alone.

    Raises:
        DamagedJournal: `op` is missing or unknown, a field is missing, or one has a wrong type or shape.
    """
    try:
        _ENTRY.validate_python(entry)
        if entry["op"] == "metrics":
            _POINTS.validate_python([tuple(point) for point in entry["points"]], strict=True)
    except ValidationError as error:
        raise DamagedJournal(f"the entry is not valid: {first_error(error)}") from error
