"""The ceilings of all stores are compared with the disk that they share."""

from pathlib import Path

import pytest
from structlog.testing import capture_logs

from app.config_load import check_data
from app.data_ceilings import Ceilings, ceilings_of, say_overcommitted
from ingest.log.segment_files import Disk
from projections.bounds import GIB, MIB

CONFIG = check_data(
    {
        "log": {"retention": {"bytes": "25%"}, "raw": {"bytes": "10GiB"}},
        "checkpoints": {"bytes": "10GiB"},
        "audit": {"bytes": "5GiB"},
    },
    extras=frozenset(),
)[0]


ASIDE = 2 * GIB  # two states that disagreed
DERIVED = GIB + ASIDE  # and steps


class DiskOf(Disk):
    def __init__(self, total: int) -> None:
        self.total = total
        self.asked: list[Path] = []

    def total_bytes(self, folder: Path) -> int:
        self.asked.append(folder)
        return self.total


def test_shares_are_of_the_file_system_and_the_reserve_counts() -> None:
    assert ceilings_of(CONFIG, 100 * GIB) == Ceilings(
        25 * GIB, 10 * GIB, 10 * GIB, 5 * GIB, DERIVED, 64 * MIB
    )
    assert ceilings_of(CONFIG, 100 * GIB).sum_bytes == 50 * GIB + DERIVED + 64 * MIB


def test_raw_frames_that_are_not_kept_take_nothing() -> None:
    config = check_data({"log": {"raw": {"enabled": False}}}, extras=frozenset())[0]
    assert ceilings_of(config, 100 * GIB).raw == 0


def test_a_spool_counts_where_the_log_is_on_kafka() -> None:
    kafka = {"bootstrap_servers": ["kafka:9092"], "spool_bytes": "2GiB"}
    config = check_data({"log": {"kind": "kafka", "kafka": kafka}}, extras=frozenset({"kafka"}))[0]
    assert ceilings_of(config, 100 * GIB) == Ceilings(0, 0, 10 * GIB, 0, ASIDE, 0, 2 * GIB)
    assert ceilings_of(config, 100 * GIB).sum_bytes == 12 * GIB + ASIDE
    assert ceilings_of(CONFIG, 100 * GIB).spool == 0


@pytest.mark.parametrize("audit", [{"enabled": False}, {"url": "postgresql://db/audit"}])
def test_an_audit_that_is_written_elsewhere_takes_nothing(audit: dict[str, object]) -> None:
    config = check_data({"audit": audit}, extras=frozenset())[0]
    assert ceilings_of(config, 100 * GIB).audit == 0


def test_a_shadow_without_a_database_has_its_files_counted() -> None:
    config = check_data({"audit": {"enabled": False}}, extras=frozenset())[0]
    assert ceilings_of(config, 100 * GIB).derived == DERIVED + 128 * MIB


@pytest.mark.req("ART-08")
@pytest.mark.parametrize(
    ("kv", "taken"),
    [({}, 0), ({"enabled": True}, GIB), ({"enabled": True, "artifact_cache_dir": "/var/cache/picklog"}, 0)],
)
def test_fetched_artifacts_take_their_part_where_they_lie_in_the_data_directory(
    kv: dict[str, object], taken: int
) -> None:
    config = check_data({"dynamo": {"kv": kv}}, extras=frozenset())[0]
    assert ceilings_of(config, 100 * GIB).derived == DERIVED + taken


@pytest.mark.parametrize(("total", "is_too_much"), [(100 * GIB, False), (20 * GIB, True)])
def test_a_disk_that_cannot_hold_them_all_is_warned_of(total: int, is_too_much: bool, tmp_path: Path) -> None:
    with capture_logs() as captured:
        assert say_overcommitted(CONFIG, tmp_path, DiskOf(total)) is is_too_much
    assert [entry["log_level"] for entry in captured] == ["warning"] * is_too_much
    if is_too_much:
        assert captured[0]["file_system_bytes"] == total
        assert captured[0]["sum_bytes"] == 30 * GIB + DERIVED + 64 * MIB


def test_a_data_directory_that_is_not_there_yet_is_judged_by_where_it_will_be(tmp_path: Path) -> None:
    disk = DiskOf(100 * GIB)
    say_overcommitted(CONFIG, tmp_path / "not" / "yet", disk)
    assert disk.asked == [tmp_path]
