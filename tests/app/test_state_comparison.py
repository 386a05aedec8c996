"""A state in a file is held to what the log folds to, and where they part is told field by field."""

from __future__ import annotations

import os
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from app.checkpoint_store import CheckpointFolder, state_file_records, write_state_file
from app.cli_output import plain_console
from app.log_places import open_log
from app.state_comparison import StateFileRefused, comparison_document, print_comparison, read_state_file
from projections.checkpoint import checkpoint_facts, closing_of
from projections.events.codec import encode_record
from projections.events.held import (
    CheckpointClosed,
    CheckpointOpened,
    KeyHeld,
    KvRankHeld,
    LedgerLine,
    OwnerHeld,
    SampleHeld,
)
from replay.state_parts import Fact

GOLDEN = Path("tests/golden/run-kv-1.6.1")
Change = Callable[[list[Fact]], list[Fact]]


def checkpoint(number: int = 0) -> Path:
    return sorted((GOLDEN / "checkpoints").iterdir())[number]


def written(
    folder: Path, change: Change, closed: Callable[[list[Fact]], CheckpointClosed] | None = None
) -> Path:
    """The golden log's checkpoint with its held facts changed, digests made good unless told otherwise."""
    opened, *held, old = checkpoint_facts(state_file_records(checkpoint()))
    assert isinstance(opened, CheckpointOpened) and isinstance(old, CheckpointClosed)
    facts = change(held)
    last = closing_of(facts) if closed is None else closed(facts)
    path = folder / "other.state"
    records = (encode_record(opened.time, bytes(16), 0, 1, fact) for fact in (opened, *facts, last))
    write_state_file(path, opened.log_id, opened.time, records)
    return path


def with_first(kind: type[Any], **fields: Any) -> Change:
    """Change fields of the first fact of a kind."""

    def change(facts: list[Fact]) -> list[Fact]:
        place = next(number for number, fact in enumerate(facts) if type(fact) is kind)
        return [*facts[:place], facts[place]._replace(**fields), *facts[place + 1 :]]  # type: ignore[attr-defined]

    return change


def compared(path: Path) -> dict[str, Any]:
    with open_log(GOLDEN) as opened:
        return comparison_document(opened.reader, opened.checkpoints, read_state_file(path))


def printed(document: dict[str, Any], capsys: pytest.CaptureFixture[str]) -> str:
    print_comparison(document, plain_console())
    return capsys.readouterr().out


@pytest.mark.parametrize("number", [0, 1])
def test_a_checkpoint_of_the_log_is_the_same_state(number: int, capsys: pytest.CaptureFixture[str]) -> None:
    found = compared(checkpoint(number))
    assert (found["parts"], found["digests"], found["log_agrees"]) == ([], [], True)
    assert "the log folds to the same state" in printed(found, capsys)


def test_a_sample_that_differs_is_named_with_its_field_and_its_digest(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    found = compared(written(tmp_path, with_first(SampleHeld, kv_used_blocks=987_654)))
    assert found["digests"] == ["load"]
    [part] = found["parts"]
    assert (part["kind"], part["changed"], part["only_log"], part["only_file"]) == ("SampleHeld", 1, 0, 0)
    assert part["first"]["fields"]["kv_used_blocks"][1] == 987_654 and len(part["first"]["fields"]) == 1
    assert part["first"]["name"]["instance_id"].isdecimal()
    text = printed(found, capsys)
    assert "digests of load differ" in text and "987654 in the file" in text
    assert "warning" not in text and "note" not in text


def test_what_is_missing_in_the_file_is_told_as_in_the_log_alone(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    path = written(tmp_path, lambda facts: [fact for fact in facts if not isinstance(fact, LedgerLine)])
    [part] = compared(path)["parts"]
    assert part["part"] == "ledger line" and part["only_log"] > 0 == part["only_file"]
    assert part["first"]["found_in"] == "log"
    assert "in the log alone" in printed(compared(path), capsys)


def test_values_of_keys_are_not_shown(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    path = written(tmp_path, with_first(KeyHeld, value=b"tcp://secret:1"), lambda facts: closing())
    found = compared(path)
    assert found["parts"][0]["first"]["fields"]["value"] == ["(not shown)", "(not shown)"]
    assert "secret" not in str(found) and "secret" not in printed(found, capsys)


def closing() -> CheckpointClosed:
    """As the golden checkpoint ends: of a state with other facts, what broken memory leaves."""
    *_, old = checkpoint_facts(state_file_records(checkpoint()))
    assert isinstance(old, CheckpointClosed)
    return old


def test_a_state_whose_digests_are_of_another_one_is_compared_all_the_same(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    torn = compared(written(tmp_path, with_first(KvRankHeld, departed=True), lambda facts: closing()))
    assert torn["digests"] == [] and [part["kind"] for part in torn["parts"]] == ["KvRankHeld"]
    assert "all digests are the same" in printed(torn, capsys)
    drifted = closing()._replace(digests=tuple((name, 1) for name, _ in closing().digests))
    found = compared(written(tmp_path, lambda facts: facts, lambda facts: drifted))
    assert found["parts"] == [] and "load" in found["digests"]
    assert "do not fit what it holds" in printed(found, capsys)


def test_a_log_that_begins_at_a_checkpoint_that_lies_is_warned_of(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    liar = written(tmp_path, with_first(OwnerHeld, tick_records=77))
    name = checkpoint().name
    (tmp_path / "checkpoints").mkdir()
    liar.rename(tmp_path / "checkpoints" / name)
    with open_log(GOLDEN) as opened:
        found = comparison_document(
            opened.reader, CheckpointFolder(tmp_path / "checkpoints"), read_state_file(checkpoint(1))
        )
    assert found["log_agrees"] is False
    assert "is not the owner's state either" in printed(found, capsys)


@pytest.mark.parametrize(
    ("make", "words"),
    [
        (lambda path: path.write_bytes(b""), "name a file of DIR/aside"),
        (lambda path: path.write_bytes(b"x" * 4096), "no segment of a log"),
        (lambda path: path.write_bytes(checkpoint().read_bytes()[:-9]), "other.state: byte "),
        (lambda path: os.mkfifo(path), "no ordinary file"),
        (lambda path: path.mkdir(), "no ordinary file"),
        (lambda path: path.write_bytes(next((GOLDEN / "log").glob("*0.seg*")).read_bytes()), "other.state"),
        (lambda path: written(path.parent, lambda facts: facts, lambda facts: closing()._replace(facts=1)),
         "1 facts were written"),
        (lambda path: written(path.parent, lambda facts: [*facts, closing()]), "no whole state"),
        (lambda path: sealed(path, []), "it is no state"),
        (lambda path: sealed(path, [closing()]), "it is no state"),
        (lambda path: path.write_bytes(other_log()), "a state of another log"),
    ],
)  # fmt: skip
def test_a_file_that_is_no_state_of_the_log_is_refused_by_its_name(
    make: Callable[[Path], object], words: str, tmp_path: Path
) -> None:
    path = tmp_path / "other.state"
    make(path)
    with pytest.raises(StateFileRefused, match=words) as refused:
        compared(path)
    assert "remove the file" not in str(refused.value)


def sealed(path: Path, facts: list[Fact]) -> None:
    write_state_file(path, bytes(16), 1, (encode_record(1, bytes(16), 0, 1, fact) for fact in facts))


def other_log() -> bytes:
    return sorted(Path("tests/golden/run-1.6.1/checkpoints").iterdir())[0].read_bytes()


def test_a_state_behind_another_record_of_that_offset_is_refused(tmp_path: Path) -> None:
    opened, *rest = checkpoint_facts(state_file_records(checkpoint()))
    assert isinstance(opened, CheckpointOpened)
    path = tmp_path / "other.state"
    facts = (opened._replace(check=1), *rest)
    records = (encode_record(opened.time, bytes(16), 0, 1, fact) for fact in facts)
    write_state_file(path, opened.log_id, opened.time, records)
    with pytest.raises(StateFileRefused, match="which was cut since"):
        compared(path)
