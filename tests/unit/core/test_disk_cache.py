"""Entries of a cache, and what lies beside them and is somebody else's."""

import os

import pytest

from outlay.core import disk_cache
from outlay.core.disk_cache import DiskCache, cache_folder, key_of


def files(cache):
    return {path.name: path.read_bytes() for path in cache.folder.iterdir()}


def test_an_entry_is_read_back_as_it_was_stored(tmp_path):
    cache = DiskCache(tmp_path / "new" / "folder")
    assert cache.load("key") is None
    cache.store("key", {"text": "module", "sizes": [1, 2]})
    assert cache.load("key") == {"text": "module", "sizes": [1, 2]}
    assert list(files(cache)) == ["key.outlay"]


HARM = {
    "emptied": lambda content: b"",
    "cut off": lambda content: content[:-3],
    "longer": lambda content: content + b"x",
    "changed": lambda content: content[:-1] + bytes([content[-1] ^ 1]),
}


@pytest.mark.parametrize("harm", HARM.values(), ids=HARM)
def test_what_was_cut_off_or_changed_counts_as_not_there_and_is_replaced(harm, tmp_path):
    cache = DiskCache(tmp_path)
    cache.store("key", ["something"])
    whole = (tmp_path / "key.outlay").read_bytes()
    (tmp_path / "key.outlay").write_bytes(harm(whole))
    assert cache.load("key") is None
    cache.store("key", ["something"])
    assert cache.load("key") == (["something"] if harm(whole) else None)  # an empty file has no mark of ours


def test_an_entry_that_unpacks_to_more_than_any_of_ours_is_not_read(monkeypatch, tmp_path):
    cache = DiskCache(tmp_path)
    cache.store("key", "x" * 1000)
    assert cache.load("key") == "x" * 1000
    monkeypatch.setattr(disk_cache, "_LONGEST", 1000)  # with its two quotes the entry has 1,002
    assert cache.load("key") is None


def test_what_others_put_there_is_neither_read_nor_written_over_nor_removed(tmp_path):
    cache = DiskCache(tmp_path, max_bytes=0)
    (tmp_path / "theirs.outlay").write_bytes(b"their own")
    (tmp_path / "notes.txt").write_bytes(b"notes")
    (tmp_path / "linked.outlay").symlink_to(tmp_path / "notes.txt")
    os.mkfifo(tmp_path / "pipe.outlay")
    for key in ("theirs", "linked", "pipe"):
        assert cache.load(key) is None
        cache.store(key, [1])
    (tmp_path / "pipe.outlay").unlink()
    assert files(cache) == {"theirs.outlay": b"their own", "notes.txt": b"notes", "linked.outlay": b"notes"}


def test_what_was_not_used_for_longest_goes_first(tmp_path):
    one = DiskCache(tmp_path / "one")
    one.store("key", "x" * 10)
    (size,) = [len(content) for content in files(one).values()]
    cache = DiskCache(tmp_path / "three", max_bytes=3 * size)
    for at, key in enumerate("abc"):
        cache.store(key, key * 10)
        os.utime(cache.folder / f"{key}.outlay", (at, at))
    cache.load("a")
    cache.store("d", "d" * 10)
    assert sorted(files(cache)) == ["a.outlay", "c.outlay", "d.outlay"]


def test_a_folder_that_cannot_be_written_is_warned_of_and_stops_nothing(tmp_path):
    (tmp_path / "file").write_text("")
    cache = DiskCache(tmp_path / "file" / "below")
    cache.store("key", [1])
    assert cache.load("key") is None
    with pytest.warns(
        UserWarning, match=r"compiled programs are not kept: .*below: Not a directory.*\n.*XDG_CACHE_HOME"
    ):
        cache.warn_if_read_only()


def test_the_folder_follows_the_environment(monkeypatch, tmp_path):
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path))
    assert cache_folder() == tmp_path / "outlay" / "compiled"
    monkeypatch.setenv("HOME", str(tmp_path))
    for value in ("", "not/absolute"):
        monkeypatch.setenv("XDG_CACHE_HOME", value)
        assert cache_folder() == tmp_path / ".cache" / "outlay" / "compiled"


def test_a_key_depends_on_every_part():
    assert len({key_of("a", "b"), key_of("ab"), key_of("a", "c"), key_of("a")}) == 4
