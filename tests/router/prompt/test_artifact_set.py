"""Agreement of a fleet: the same files on all workers, wherever they lie, or none."""

from __future__ import annotations

from pathlib import Path

import pytest

from projections.bounds import ARTIFACT_SOURCES_MAX
from projections.events.picks import KvResult
from projections.registry.artifacts import ArtifactKind
from projections.registry.fleet import Role, Worker
from router.prompt.artifact_set import (
    ArtifactResult,
    ArtifactSet,
    ArtifactSettings,
    LoadedFiles,
    Refused,
    agreed_artifacts,
    artifacts_of_model,
    key_of,
)
from tests.router.prompt.artifact_workers import config, named, serving_worker
from tests.router.rig import fleet_of

OLD = named(b"old", "/m/tokenizer.json")
NEW = named(b"new", "/m/tokenizer.json")
CONFIG = config(b"{}", "/m/tokenizer_config.json")


def refusal(*workers: Worker) -> str:
    found = agreed_artifacts(workers)
    assert isinstance(found, Refused) and found.reason is KvResult.TOKENIZER_UNAVAILABLE
    return found.detail


@pytest.mark.req("ART-15")
def test_workers_that_name_the_same_files_agree_wherever_those_lie() -> None:
    found = agreed_artifacts(
        [
            serving_worker(1, OLD, CONFIG),
            serving_worker(2, OLD._replace(path="http://10.0.0.2/t", size=9), CONFIG, role=Role.PREFILL),
            serving_worker(3, OLD._replace(size=None), CONFIG, role=Role.DECODE),
        ]
    )
    assert isinstance(found, ArtifactSet)
    assert (found.model, found.key.tokenizer, found.key.template) == ("tiny-chat", OLD.checksum, "")
    assert [file.slot for file in found.files] == ["tokenizer", "prompt_formatter"]
    assert found.files[0].sources == ("/m/tokenizer.json", "http://10.0.0.2/t")
    assert found.files[0].size == 9


@pytest.mark.req("ART-15")
@pytest.mark.field("B-014")
def test_a_rolling_upgrade_has_no_files_until_it_is_over() -> None:
    before = [serving_worker(n, OLD, CONFIG) for n in (1, 2, 3)]
    after = [serving_worker(n, NEW, CONFIG) for n in (1, 2, 3)]
    assert isinstance(agreed_artifacts(before), ArtifactSet)
    assert refusal(*before[:2], after[2]) == "1 of 3 workers name other files than the rest"
    assert "other files" in refusal(before[0], *after[1:])
    assert isinstance(agreed_artifacts(after), ArtifactSet)


@pytest.mark.req("ART-15")
@pytest.mark.parametrize(
    "odd",
    [
        serving_worker(2),
        serving_worker(2, OLD),
        serving_worker(2, OLD, CONFIG, named(b"t", "/t", ArtifactKind.HF_CHAT_TEMPLATE)),
        serving_worker(2, OLD, named(b"{}", "/m/tokenizer_config.json", ArtifactKind.HF_CHAT_TEMPLATE)),
        serving_worker(2, OLD, CONFIG, malformed=("chat_template_file",)),
    ],
)
def test_one_worker_with_other_slots_is_enough_to_disagree(odd: Worker) -> None:
    assert "other files" in refusal(serving_worker(1, OLD, CONFIG), odd)


def test_without_workers_tokenizer_or_readable_slots_there_are_no_files() -> None:
    assert refusal() == "no worker serves the model"
    assert refusal(serving_worker(1)) == "cards name no tokenizer"
    odd = serving_worker(1, OLD, malformed=("prompt_formatter",))
    assert refusal(odd) == "cards have a malformed prompt_formatter"


def test_few_of_many_places_are_tried() -> None:
    workers = [serving_worker(n, OLD._replace(path=f"http://10.0.0.{n}/t")) for n in range(1, 65)]
    found = agreed_artifacts(workers)
    assert isinstance(found, ArtifactSet)
    assert len(found.files[0].sources) == ARTIFACT_SOURCES_MAX


def test_the_agreement_of_a_fleet_is_worked_out_once() -> None:
    fleet = fleet_of(serving_worker(1, OLD), serving_worker(2, OLD), serving_worker(3, NEW, model="other"))
    found = artifacts_of_model(fleet, "tiny-chat")
    assert isinstance(found, ArtifactSet)
    assert artifacts_of_model(fleet, "tiny-chat") is found
    assert isinstance(artifacts_of_model(fleet, "nobody's"), Refused)
    assert len(fleet.derived) == 1


@pytest.mark.req("ART-14")
def test_keys_differ_by_checksums_and_kinds_and_not_by_places() -> None:
    key = key_of(serving_worker(1, OLD, CONFIG).artifacts)
    assert key == key_of(serving_worker(2, OLD._replace(path="hf://a/b/c"), CONFIG).artifacts)
    template = named(b"x", "/t", ArtifactKind.HF_CHAT_TEMPLATE)
    as_text = key_of(serving_worker(1, OLD, template).artifacts)
    as_json = key_of(
        serving_worker(1, OLD, template._replace(kind=ArtifactKind.HF_CHAT_TEMPLATE_JSON)).artifacts
    )
    assert len({key.text, as_text.text, as_json.text}) == 3


def test_neither_contents_nor_the_token_are_ever_printed() -> None:
    assert "secret" not in repr(ArtifactSettings(hf_token="secret"))
    assert "bytes" not in repr(LoadedFiles(b"bytes", b"bytes", b"bytes", "k"))


@pytest.mark.req("MET-08")
def test_every_result_is_explained_to_operators() -> None:
    text = (Path(__file__).parents[3] / "docs" / "kv.md").read_text()
    rows = [
        line.split("`")[1] for line in text.splitlines() if line.startswith("| `") and line.count("`") >= 2
    ]
    assert {str(result) for result in ArtifactResult} <= {*rows}
