"""A state as named tensors, a few at a time, and back: what checkpoints write and read.

A tensor keeps its name; rows of clients come as `theta/clients` and `theta/values`, as often as it takes, `theta/base`
and `theta/sum` once.
"""

from collections.abc import Iterable, Iterator, Mapping

from torch import Tensor

from pfl_ops.federation.state.rows import ClientRows, State

PART = 64 << 20  # bytes that are in memory at once, or one row where that is larger


def parts(s: State, *, whole: bool, extra: Mapping[str, Tensor] | None = None) -> Iterator[dict[str, Tensor]]:
    """Yield the tensors of each part: name -> tensor [*shape], or rows [M, Q] with their clients, int64 [M].

    Args:
        whole: all rows; False: those that changed since rows were last `kept`.
        extra: further tensors, to come first.
    """
    part: dict[str, Tensor] = {}
    size = 0
    for piece in _pieces({**(extra or {}), **s}, whole):
        more = sum(t.numel() * t.element_size() for t in piece.values())
        if part and (size + more > PART or piece.keys() & part.keys()):
            yield part
            part, size = {}, 0
        part |= piece
        size += more
    yield part


def _pieces(s: State, whole: bool) -> Iterator[dict[str, Tensor]]:
    for name, value in s.items():
        if isinstance(value, ClientRows):
            for piece in value.pieces(PART, all_rows=whole):
                yield {f"{name}/{key}": t.contiguous() for key, t in piece.items()}
        else:
            yield {name: value.detach().to("cpu", copy=True).contiguous()}  # a copy: two names may share one memory


def changed_bytes(s: State) -> int:
    """Size of the parts that are not the whole, about."""
    return sum(
        len(value.changed) * value.row_bytes if isinstance(value, ClientRows) else value.numel() * value.element_size()
        for value in s.values()
    )


def restore(given: Iterable[Mapping[str, Tensor]], s: State) -> State:
    """Restore a state from its parts: `s` with its tensors replaced, and its rows [M, Q] written.

    Args:
        given: the parts of a whole state, then those of the changes, one time after the other.
        s: a fresh `init`.
    Raises:
        ValueError: they are of a state of another form; says which name.
    """
    rows = {name: value for name, value in s.items() if isinstance(value, ClientRows)}
    for value in rows.values():
        value.reset()
    plain: dict[str, Tensor] = {}
    seen: set[str] = set()
    for part in given:
        pieces: dict[str, dict[str, Tensor]] = {}
        for key, tensor in part.items():
            name, _, piece = key.partition("/")
            if piece and name in rows:
                pieces.setdefault(name, {})[piece] = tensor
            else:
                plain[key] = tensor
        for name, piece_of_rows in pieces.items():
            try:
                rows[name].take(piece_of_rows)
            except (KeyError, ValueError) as error:
                raise ValueError(f"'{name}' ({error})") from error
            seen.add(name)
    new: State = {}
    for name, value in s.items():
        if isinstance(value, ClientRows):
            if name not in seen:
                raise ValueError(f"'{name}' (no rows of that name)")
            value.kept()
            new[name] = value
        else:
            if name not in plain or plain[name].shape != value.shape or plain[name].dtype != value.dtype:
                raise ValueError(f"'{name}' (missing, or another shape or type)")
            new[name] = plain[name].to(value.device)
    return new
