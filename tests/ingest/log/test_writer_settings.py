from __future__ import annotations

from ingest.log.writer_settings import CommitNote, WriterSettings, boot_us, wall_us


def test_the_clocks_count_microseconds_and_the_one_that_reckons_never_goes_back() -> None:
    first = boot_us()
    assert 0 < first <= boot_us()
    assert wall_us() > 1_700_000_000_000_000


def test_a_group_commit_waits_two_milliseconds_unless_it_is_told_otherwise() -> None:
    assert WriterSettings().every_us == 2_000
    assert CommitNote(1, 200, 3)._fields == ("records", "size_bytes", "duration_us")
