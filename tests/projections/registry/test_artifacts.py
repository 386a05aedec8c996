"""Files of a card: kinds, shapes of a slot, hostile cards, and what becomes of them in a worker."""

from __future__ import annotations

import gzip
import json
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from projections.bounds import CARD_RETAINED_BYTES_MAX
from projections.checkpoint import checkpoint_records, fold_from_checkpoint
from projections.events.discovery import Keyspace
from projections.identity import WorkerKey
from projections.notices import DiscoveryNotice
from projections.registry.artifacts import (
    NO_ARTIFACTS,
    PATH_CHARACTERS_MAX,
    Artifact,
    ArtifactKind,
    CardArtifacts,
    artifacts_of,
    is_checksum,
)
from projections.registry.records import CardRecord, parse_card
from projections.registry.subset import subset_of
from tests.projections.fleet_script import NS, Script, card, instance_key

RECORDINGS = Path(__file__).parents[2] / "recordings"
ONE = "blake3:" + "1a" * 32
TWO = "blake3:" + "2b" * 32


def file(path: object = "/m/tokenizer.json", checksum: object = ONE, **more: Any) -> dict[str, Any]:
    return {"path": path, "checksum": checksum, **more}


@pytest.mark.req("ART-01", "ART-02")
def test_the_cards_of_real_fleets_name_their_files() -> None:
    found, forms = set(), set()
    for path in sorted(RECORDINGS.glob("etcd-watch-*.jsonl.gz")):
        for line in gzip.decompress(path.read_bytes()).decode().splitlines():
            value = json.loads(line).get("value") or ""
            if '"card_json"' not in value:
                continue
            record = parse_card(value.encode())
            assert isinstance(record, CardRecord)
            read = record.card.artifacts
            found.add(tuple((slot, file.kind.label, file.checksum, file.size) for slot, file in read.slots()))
            forms |= {file.path.partition(":")[0].partition("/")[0] for _, file in read.slots()}
            assert read.malformed == () and "tokenizer" not in record.card.faults
            assert record.card.kv_event_publishing_enabled is not None
    assert forms == {"", "http"}
    assert found == {
        (
            (
                "tokenizer",
                "hf_tokenizer_json",
                "blake3:431b77fb4024ea508048a123c2bef85dc51ee2dc7a59bc2387d1461745c6ccf0",
                112_172,
            ),
            (
                "prompt_formatter",
                "hf_tokenizer_config_json",
                "blake3:8d45a9d47cfcc045500eed7f49bc434aea281309e2ac8b4319c6dfb5d21a3849",
                2_264,
            ),
        )
    }


@pytest.mark.req("ART-02")
@pytest.mark.parametrize(
    ("slot", "name", "kind"),
    [
        ("tokenizer", "hf_tokenizer_json", ArtifactKind.HF_TOKENIZER_JSON),
        ("tokenizer", "tik_token_model", ArtifactKind.TIK_TOKEN_MODEL),
        ("tokenizer", "hf_chat_template", ArtifactKind.OTHER),
        ("tokenizer", "of_next_year", ArtifactKind.OTHER),
        ("prompt_formatter", "hf_tokenizer_config_json", ArtifactKind.HF_TOKENIZER_CONFIG_JSON),
        ("prompt_formatter", "hf_chat_template_jinja", ArtifactKind.HF_CHAT_TEMPLATE),
        ("chat_template_file", "hf_chat_template", ArtifactKind.HF_CHAT_TEMPLATE),
        ("chat_template_file", "hf_chat_template_jinja", ArtifactKind.HF_CHAT_TEMPLATE),
        ("chat_template_file", "hf_chat_template_json", ArtifactKind.HF_CHAT_TEMPLATE_JSON),
        ("chat_template_file", "hf_tokenizer_config_json", ArtifactKind.OTHER),
    ],
)
@pytest.mark.parametrize("nested", [False, True])
def test_kinds_of_each_slot(slot: str, name: str, kind: ArtifactKind, nested: bool) -> None:
    member = {"is_custom": True, "file": file(size=7)} if nested else file(size=7)
    read = artifacts_of({slot: {name: member}})
    assert getattr(read, slot) == Artifact(kind, "/m/tokenizer.json", ONE, 7)
    assert read.malformed == ()


def test_an_absent_slot_and_null_are_alike() -> None:
    assert artifacts_of({}) is NO_ARTIFACTS
    assert artifacts_of({"tokenizer": None, "prompt_formatter": None}) is NO_ARTIFACTS


@pytest.mark.req("ART-02", "RED-12")
@pytest.mark.parametrize(
    "raw",
    [
        "hf_tokenizer_json",
        [],
        7,
        {},
        {"hf_tokenizer_json": file(), "tik_token_model": file()},
        {str(n): file() for n in range(5_000)},
        {"hf_tokenizer_json": None},
        {"hf_tokenizer_json": [file()]},
        {"hf_tokenizer_json": file(path="")},
        {"hf_tokenizer_json": file(path=7)},
        {"hf_tokenizer_json": file(path="/m/\x00")},
        {"hf_tokenizer_json": file(path="/m/\n- evil")},
        {"hf_tokenizer_json": file(path="/m/\ud800")},
        {"hf_tokenizer_json": file(path="x" * (PATH_CHARACTERS_MAX + 1))},
        {"hf_tokenizer_json": file(checksum=None)},
        {"hf_tokenizer_json": file(checksum=ONE.upper())},
        {"hf_tokenizer_json": file(checksum=ONE[:-1])},
        {"hf_tokenizer_json": file(checksum=ONE + "\n")},
        {"hf_tokenizer_json": file(checksum="sha256:" + "1a" * 32)},
        {"hf_tokenizer_json": {"file": {"file": file()}}},
    ],
)
def test_a_slot_of_another_shape_reads_as_absent_and_is_named(raw: object) -> None:
    read = artifacts_of({"tokenizer": raw})
    assert read == CardArtifacts(malformed=("tokenizer",))


@pytest.mark.parametrize("size", [None, "7", -1, 1.5, True, (), 1 << 70])
def test_a_size_that_is_none_reads_as_absent(size: object) -> None:
    read = artifacts_of({"tokenizer": {"hf_tokenizer_json": file(size=size)}})
    assert read.tokenizer is not None and read.tokenizer.size is None


def test_a_malformed_slot_is_told_with_the_card_and_the_worker_stays() -> None:
    script = Script()
    script.worker(7, tokenizer={"hf_tokenizer_json": "x"})
    (worker,) = script.fleet.workers.values()
    assert worker.artifacts == CardArtifacts(malformed=("tokenizer",))
    (told,) = [n for n in script.notices if isinstance(n, DiscoveryNotice) and n.kind.label == "malformed"]
    assert "tokenizer" in told.identity


def test_files_and_flags_of_a_card_hang_on_its_worker_also_after_a_checkpoint() -> None:
    script = Script()
    script.worker(
        7,
        tokenizer={"hf_tokenizer_json": file()},
        chat_template_file={"hf_chat_template": {"is_custom": False, "file": file("hf://a/b/c", TWO)}},
        lora={"name": "adapter", "max_gpu_lora_count": 4},
        runtime={"kv_event_publishing_enabled": False},
    )
    key = WorkerKey(NS, 7)
    worker = script.fleet.workers[key]
    assert [slot for slot, _ in worker.artifacts.slots()] == ["tokenizer", "chat_template_file"]
    assert (worker.lora_name, worker.kv_event_publishing_enabled) == ("adapter", False)
    again = fold_from_checkpoint(checkpoint_records(script.fold, b"l" * 16))
    assert again.state.registry.fleet.workers[key] == worker


def test_a_base_card_says_no_adapter_and_an_odd_flag_is_unsaid() -> None:
    script = Script()
    script.worker(7, lora={"name": ["x"]}, runtime={"kv_event_publishing_enabled": "yes"})
    (worker,) = script.fleet.workers.values()
    assert (worker.artifacts, worker.lora_name, worker.kv_event_publishing_enabled) == (
        NO_ARTIFACTS,
        None,
        None,
    )


def test_a_card_above_the_kept_size_has_no_files_but_keeps_its_flags() -> None:
    script = Script()
    slots: dict[str, Any] = {"tokenizer": {"hf_tokenizer_json": file()}}
    value = card(
        7,
        runtime={"kv_event_publishing_enabled": True},
        lora={"name": "a"},
        user_data="x" * CARD_RETAINED_BYTES_MAX,
        **slots,
    )
    script.worker(7)
    script.put(Keyspace.CARDS, instance_key(7), value, revision=2)
    (worker,) = script.fleet.workers.values()
    assert worker.artifacts == NO_ARTIFACTS
    assert (worker.kv_event_publishing_enabled, worker.lora_name) == (True, "a")


def test_the_subset_of_a_card_names_no_path() -> None:
    value = card(7, tokenizer={"hf_tokenizer_json": file("http://10.0.0.9/secret")})
    assert b"10.0.0.9" not in subset_of(parse_card(value))


def test_a_summary_has_checksums_and_no_path() -> None:
    read = artifacts_of(
        {"tokenizer": {"hf_tokenizer_json": file("http://10.0.0.9/x")}, "prompt_formatter": 7}
    )
    assert read.summary() == "tokenizer 1a1a1a1a1a1a, prompt_formatter malformed"
    assert NO_ARTIFACTS.summary() == "none"


def test_labels_of_kinds_are_spelled_as_in_cards() -> None:
    assert ArtifactKind.HF_TOKENIZER_CONFIG_JSON.label == "hf_tokenizer_config_json"
    assert is_checksum(ONE) and not is_checksum(ONE[7:])


_JSON = st.recursive(
    st.none() | st.booleans() | st.integers() | st.text(max_size=8) | st.sampled_from([ONE, "path", "file"]),
    lambda inner: (
        st.lists(inner, max_size=3)
        | st.dictionaries(
            st.sampled_from(["path", "checksum", "size", "file", "hf_tokenizer_json", "x"]), inner, max_size=3
        )
    ),
    max_leaves=12,
)


@given(_JSON, _JSON, _JSON)
def test_no_shape_raises(tokenizer: Any, formatter: Any, template: Any) -> None:
    read = artifacts_of(
        {"tokenizer": tokenizer, "prompt_formatter": formatter, "chat_template_file": template}
    )
    for _, artifact in read.slots():
        assert is_checksum(artifact.checksum) and artifact.path
