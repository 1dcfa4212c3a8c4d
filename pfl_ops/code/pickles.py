"""Digests of a notebook's values: the same in each kernel, as long as the values are."""

import hashlib
import io
from types import CodeType, FunctionType, MemberDescriptorType
from typing import Any, TypeVar

from pfl_ops.code.definitions import MAIN, is_readable
from pfl_ops.code.loaded import content_of, unwrapped
from pfl_ops.code.values import in_order

OF_PROCESS = (
    "__dict__", "__weakref__", "__module__", "__doc__", "__signature__", "_abc_impl",
    "__firstlineno__", "__static_attributes__",  # Python 3.13
)  # fmt: skip
"""Attributes of a class that its text does not say, or that are made from others."""


def pickled(value: Any) -> tuple[str, list[Any]] | None:
    """Return the SHA-256 of a value, and the user's functions and classes in it, whose code its pickle names or holds
    with the number of its kernel; None if it can't be pickled."""
    import cloudpickle
    import torch

    held: list[Any] = []
    begun = set[type]()

    class Pickler(cloudpickle.Pickler):
        def persistent_id(self, thing: Any) -> Any:
            return in_order(thing) if type(thing) in (set, frozenset) and len(thing) > 1 else None

        def reducer_override(self, thing: Any) -> Any:
            if type(thing) is torch.Tensor and thing.layout is torch.strided:  # its pickle holds an address
                flat = thing.detach().cpu().contiguous().reshape(-1).view(torch.uint8)
                return tuple, ((str(thing.dtype), tuple(thing.shape), flat.numpy().tobytes()),)
            behind = unwrapped(thing)
            if isinstance(behind, type | FunctionType) and is_readable(behind):
                held.append(behind)
                return str, (f"{behind.__module__} {behind.__qualname__}",)
            if isinstance(thing, type) and thing.__module__ == MAIN:  # a data class, say, without functions
                if thing in begun:  # a member of an enumeration names its class
                    return str, (thing.__qualname__,)
                begun.add(thing)
                parts = {name: part for name, part in vars(thing).items() if not _is_of_process(name, part)}
                return tuple, ((thing.__qualname__, thing.__bases__, parts),)
            if isinstance(thing, TypeVar):
                return str, (repr(thing),)
            if isinstance(thing, CodeType):
                return str, (content_of(thing),)
            return super().reducer_override(thing)

    file = io.BytesIO()
    try:
        Pickler(file).dump(value)
    except Exception:  # each type has its own
        return None
    return hashlib.sha256(file.getvalue()).hexdigest(), held


def _is_of_process(name: str, part: Any) -> bool:
    """True for an attribute of a class that is another one in each process, or that is made from the others."""
    made = name.startswith("__pydantic_") and name != "__pydantic_fields__"
    return made or name in OF_PROCESS or isinstance(part, MemberDescriptorType)
