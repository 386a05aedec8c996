"""Both forms of an engine's events, and their tails that differ between releases."""

from __future__ import annotations

from typing import Any

import msgpack
import msgspec
import pytest

from ingest.wire.engine_forms import (
    Barrier,
    Group,
    RemovedForm,
    StoredForm,
    UnfitHash,
    is_store,
    read_engine_event,
)
from tests.ingest.wire.engine_batches import stored_items, stored_map, tokens


def read(event: Any) -> StoredForm | RemovedForm | Barrier:
    return read_engine_event(msgpack.packb(event))


@pytest.mark.field("B-062")
@pytest.mark.parametrize(
    "event",
    [
        stored_items([1, 2], tokens(2), 9, None, "GPU", "a", [None, "k"], 0, "full_attention", None, "LOCAL"),
        stored_items([1, 2], tokens(2), 9, 7, "GPU", "a", [None, "k"],
                     [None, None], 0, "full_attention", None, "LOCAL", "x"),
        stored_map([1, 2], tokens(2), 9, medium="GPU", lora_name="a", extra_keys=[None, "k"], group_idx=0,
                   kv_cache_spec_kind="full_attention", locality="LOCAL", later={"x": 1}),
    ],
    ids=["positional", "with images and more", "named"],
)  # fmt: skip
def test_both_forms_say_the_same(event: Any) -> None:
    form = read(event)
    assert isinstance(form, StoredForm)
    assert form.hashes == (1).to_bytes(8, "big") + (2).to_bytes(8, "big")
    assert (form.parent, form.block_size, form.medium, form.lora, form.salt) == (9, 16, "GPU", "a", None)
    assert msgpack.unpackb(form.token_ids) == tokens(2)
    assert (form.extra_keys, form.group) == ([None, "k"], Group(0, "full_attention", "LOCAL"))


def test_a_map_in_the_adapters_place_holds_the_salt() -> None:
    for event in (
        stored_items([1], tokens(1), None, None, None, {"cache_salt": "s", "x": 1}),
        stored_map([1], tokens(1), cache_salt="s"),
    ):
        form = read(event)
        assert isinstance(form, StoredForm)
        assert (form.lora, form.salt) == (None, "s")


@pytest.mark.parametrize(
    ("tail", "group"),
    [
        ([], Group(None, None, None)),
        ([None, None], Group(None, None, None)),
        ([3], Group(3, None, None)),
        ([3, "mamba"], Group(3, "mamba", None)),
        ([None, "mamba", 64], Group(None, "mamba", None)),
        ([None, 3, "mamba", 64, "REMOTE", "x"], Group(3, "mamba", "REMOTE")),
        ([[], 3, "mamba", None, "LOCAL"], Group(3, "mamba", "LOCAL")),
        ([3, None, None, "REMOTE"], Group(3, None, "REMOTE")),
    ],
)
def test_tails_are_told_apart_by_type(tail: list[Any], group: Group) -> None:
    form = read(stored_items([1], tokens(1), None, None, "GPU", None, None, *tail))
    assert isinstance(form, StoredForm)
    assert form.group == group
    gone = read(["BlockRemoved", [1], None, *tail[:5]])
    assert isinstance(gone, RemovedForm)
    assert gone.group == group._replace(locality=group.locality if len(tail) < 6 else "REMOTE")


def test_removals_and_barriers_are_read_in_both_forms() -> None:
    seven = (7).to_bytes(8, "big")
    assert read(["BlockRemoved", [7], "CPU"]) == RemovedForm(seven, "CPU", Group(None, None, None))
    named = {"type": "BlockRemoved", "block_hashes": [7], "medium": "CPU", "kv_cache_spec_kind": "mamba"}
    assert read(named) == RemovedForm(seven, "CPU", Group(None, "mamba", None))
    for name, is_effective in (("AllBlocksCleared", True), ("Ignored", False)):
        forms: tuple[Any, ...] = ([name], [name, "x", 5], {"type": name}, {"type": name, "x": 1})
        assert {read(form) for form in forms} == {Barrier(is_effective)}


@pytest.mark.field("B-064")
def test_digests_count_by_their_last_8_bytes_and_signs_do_not_matter() -> None:
    digest = bytes(24) + (2**64 - 5).to_bytes(8, "big")
    form = read(stored_items([digest, -5, 2**64 - 5], tokens(3), digest))
    assert isinstance(form, StoredForm)
    assert form.hashes == digest[-8:] * 3
    assert form.parent == 2**64 - 5


@pytest.mark.parametrize("digest", [b"", b"1234567", b"x" * 65])
def test_bytes_of_another_length_are_no_hash(digest: bytes) -> None:
    for event in (["BlockRemoved", [digest]], stored_items([1], tokens(1), digest)):
        with pytest.raises(UnfitHash):
            read(event)


@pytest.mark.parametrize(
    ("event", "is_one"),
    [
        (["BlockStored", "x"], True),
        ({"type": "BlockStored"}, True),
        (["BlockRemoved", "x"], False),
        ({"type": "BlockMoved"}, False),
        (["Later", 1], False),
        (5, False),
        ([], False),
        ({}, False),
    ],
)
def test_what_cannot_be_read_still_says_whether_it_was_a_store(event: Any, is_one: bool) -> None:
    with pytest.raises(msgspec.MsgspecError):
        read(event)
    assert is_store(msgpack.packb(event)) is is_one
