import json

from tests.unit.search.pretend import price

from outlay.search.cache import Cache, cache_folder, cache_key, own_sources


def test_a_price_is_read_back_as_it_was_kept(tmp_path):
    cache = Cache(tmp_path / "new" / "folder")
    assert cache.load("key") is None
    cache.store("key", price(1.25))
    assert cache.load("key") == price(1.25)
    assert [path.name for path in cache.folder.iterdir()] == ["key.json"]


def test_what_is_broken_or_of_another_form_is_not_used(tmp_path):
    cache = Cache(tmp_path)
    for text in ("", "{", "[]", json.dumps({"seconds": 1})):
        (tmp_path / "key.json").write_text(text)
        assert cache.load("key") is None


def test_the_key_depends_on_the_program_and_on_all_that_is_named():
    keys = {cache_key("p", ("h100", 1)), cache_key("q", ("h100", 1)), cache_key("p", ("h200", 1)), cache_key("p", ())}
    assert len(keys) == 4
    assert cache_key("p", ("h100", 1)) in keys


def test_the_library_itself_is_part_of_the_key(monkeypatch):
    before = cache_key("p", ())
    assert len(own_sources()) == 64
    monkeypatch.setattr("outlay.search.cache.own_sources", lambda: "another version")
    assert cache_key("p", ()) != before


def test_the_folder_follows_the_environment(monkeypatch, tmp_path):
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path))
    assert cache_folder() == tmp_path / "outlay" / "choose"
    monkeypatch.delenv("XDG_CACHE_HOME")
    monkeypatch.setenv("HOME", str(tmp_path))
    assert cache_folder() == tmp_path / ".cache" / "outlay" / "choose"
