"""The cache of session keys: its size and its lifetime."""

from __future__ import annotations

from qmd.message_security.key_cache import KeyCache


def test_a_key_is_kept_for_its_lifetime() -> None:
    cache: KeyCache[str] = KeyCache(3, lifetime_s=10)
    cache.add("a", "key", 100.0)

    assert cache.get("a", 109.9) == "key"
    assert cache.get("a", 110.0) is None
    assert len(cache) == 0
    assert cache.get("b", 100.0) is None


def test_the_older_half_makes_room() -> None:
    cache: KeyCache[int] = KeyCache(4)
    for at in range(5):
        cache.add(at, at, float(at))

    assert [cache.get(at, 5.0) for at in range(5)] == [None, None, 2, 3, 4]


def test_old_keys_are_swept() -> None:
    cache: KeyCache[int] = KeyCache(4, lifetime_s=10)
    cache.add("old", 1, 0.0)
    cache.add("new", 2, 5.0)

    cache.sweep(12.0)

    assert len(cache) == 1
    assert cache.get("new", 12.0) == 2
    cache.add("newest", 3, 15.0)
    assert len(cache) == 1, "a key that is added removes those that are too old"
    cache.clear()
    assert len(cache) == 0
