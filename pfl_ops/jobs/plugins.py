"""The user's files on their way to other processes: another machine may not have them."""

from pfl_ops.registry import Packed, load_packed


def load(packed: tuple[Packed, ...]) -> None:
    """Load what `packed_plugins` packed; sources are kept in the cache folder."""
    from pfl_ops.data.store import cache_folder

    load_packed(packed, cache_folder() / "plugins")
