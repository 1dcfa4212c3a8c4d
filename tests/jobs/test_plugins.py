"""Plug-ins travel to trials as text; where the file is missing, the text is kept once, under its digest."""

import hashlib

import pytest

from pfl_ops import registry
from pfl_ops.jobs import plugins


@pytest.fixture
def packed(tmp_path, monkeypatch):
    """A plug-in of another machine, and a cache folder of this one."""
    monkeypatch.setenv("PFL_OPS_CACHE", str(tmp_path / "cache"))
    monkeypatch.setattr(registry, "_plugins", {})
    source = "loaded = True\n"
    return ((hashlib.sha256(source.encode()).hexdigest(), "/another/machine/mine.py", source),)


def kept(tmp_path):
    return [path for path in tmp_path.rglob("mine.py") if path.is_file()]


def test_a_plugin_without_its_file_is_kept_once(packed, tmp_path, monkeypatch):
    for _ in range(2):
        plugins.load(packed)
        assert [path.read_text() for path in kept(tmp_path)] == [packed[0][2]]
        monkeypatch.setattr(registry, "_plugins", {})  # the next process


def test_a_kept_plugin_that_was_changed_is_written_again(packed, tmp_path, monkeypatch):
    plugins.load(packed)
    (path,) = kept(tmp_path)
    path.write_text("raise SystemExit")
    monkeypatch.setattr(registry, "_plugins", {})
    plugins.load(packed)
    assert path.read_text() == packed[0][2]


def test_a_plugin_that_was_edited_after_it_was_loaded_travels_as_it_was(tmp_path, monkeypatch):
    """The benchmark has loaded it hours ago; its digest is in the hashes of the runs."""
    monkeypatch.setattr(registry, "_plugins", {})
    file = tmp_path / "edited.py"
    file.write_text("x = 1\n")
    digest = registry.load_plugin(file)
    file.write_text("x = 2\n")
    assert registry.packed_plugins() == ((digest, str(file), "x = 1\n"),)
    file.unlink()
    assert registry.packed_plugins() == ((digest, str(file), "x = 1\n"),)
