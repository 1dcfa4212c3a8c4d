"""Fields of the entries that a journal may hold, checked before an entry is sent."""

from typing import Annotated, Any, Literal, TypeAlias

from pydantic import BaseModel, ConfigDict, Field, TypeAdapter, ValidationError

from pfl_ops.tracking.spools.journal import DamagedJournal, JournalEntry, first_error

Whole = Annotated[int, Field(ge=-(1 << 63), lt=1 << 63)]  # what databases hold
Texts: TypeAlias = dict[str, str]


class _Fields(BaseModel):
    model_config = ConfigDict(strict=True)


class _Staged(_Fields):
    file: str
    size: Whole | None = None
    digest: str | None = None


class _Open(_Fields):
    op: Literal["open"]
    name: str
    read: bool = False


class _Finish(_Fields):
    op: Literal["finish"]
    status: Literal["FINISHED", "FAILED", "KILLED"]
    time: Whole
    read: bool = False


class _Tags(_Fields):
    op: Literal["tags", "experiment"]
    tags: Texts


class _Choose(_Fields):
    op: Literal["choose"]
    identity: str
    others: list[str] = []


class _Params(_Fields):
    op: Literal["params"]
    params: Texts


class _Metrics(_Fields):
    op: Literal["metrics"]
    points: list[Annotated[list[Any], Field(min_length=4, max_length=4)]]
    set: bool = False


class _Artifact(_Staged):
    op: Literal["artifact"]
    folder: str


class _Dataset(_Fields):
    op: Literal["dataset"]
    name: str
    digest: str
    source_type: str
    source: str
    schema_: Annotated[str, Field(alias="schema")]
    profile: str
    context: str


class _Model(_Staged):
    op: Literal["model"]
    name: str
    step: Whole


class _Bare(_Fields):
    op: Literal["supersede", "complete"]


_ENTRY: TypeAdapter[Any] = TypeAdapter(
    Annotated[
        _Open | _Finish | _Tags | _Choose | _Params | _Metrics | _Artifact | _Dataset | _Model | _Bare,
        Field(discriminator="op"),
    ]
)
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
