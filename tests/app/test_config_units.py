"""Durations, sizes and shares: what is read, what is refused, and that printing is exact."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from app.config_units import DURATION_US_MAX, ByteSize, Duration, SizeOrShare, duration_within


@pytest.mark.parametrize(
    ("text", "us"),
    [
        ("500ms", 500000),
        ("3s", 3000000),
        ("5m", 300000000),
        ("7d", 604800000000),
        ("1h30m", 5400000000),
        ("0.5s", 500000),
        ("250us", 250),
        ("0s", 0),
        ("1.25ms", 1250),
    ],
)
def test_durations_are_read_in_microseconds(text: str, us: int) -> None:
    assert Duration.read(text).us == us


@pytest.mark.parametrize(
    "value", ["", "3", "s", "3 s", "-3s", "3x", "3s4", "1e3s", 3, 3.0, True, None, "4000d", "9" * 99]
)
def test_what_is_no_duration_is_refused(value: object) -> None:
    with pytest.raises(ValueError, match=r"duration|ten years"):
        Duration.read(value)


@pytest.mark.parametrize(
    ("value", "count"),
    [("16MiB", 1 << 24), ("10 GiB", 10 << 30), ("1MB", 10**6), ("7", 7), (67_108_864, 1 << 26), ("0B", 0)],
)
def test_sizes_are_read_in_bytes(value: object, count: int) -> None:
    assert ByteSize.read(value).count == count


@pytest.mark.parametrize(
    "value", ["", "MiB", "1.5GiB", "-1", -1, True, 1.0, None, "16mib", "99999999TiB", 1 << 61]
)
def test_what_is_no_size_is_refused(value: object) -> None:
    with pytest.raises(ValueError, match=r"size|2\^60"):
        ByteSize.read(value)


def test_share_is_taken_of_the_file_system_and_size_is_not() -> None:
    assert SizeOrShare.read("25%").bytes_of(1000) == 250
    assert SizeOrShare.read("10GiB").bytes_of(1000) == 10 << 30


@pytest.mark.parametrize("value", ["0%", "101%", "%", "-1%", "1.5%"])
def test_share_outside_one_to_a_hundred_is_refused(value: str) -> None:
    with pytest.raises(ValueError):
        SizeOrShare.read(value)


@given(st.integers(0, DURATION_US_MAX))
def test_printed_duration_reads_back_the_same(us: int) -> None:
    assert Duration.read(str(Duration(us))) == Duration(us)


@given(st.integers(0, 1 << 60))
def test_printed_size_reads_back_the_same(count: int) -> None:
    assert ByteSize.read(str(ByteSize(count))) == ByteSize(count)
    assert str(SizeOrShare.read(str(ByteSize(count)))) == str(ByteSize(count))


@pytest.mark.parametrize(
    ("text", "is_inside"), [("99ms", False), ("100ms", True), ("5m", True), ("301s", False)]
)
def test_bounds_include_both_ends(text: str, is_inside: bool) -> None:
    check = duration_within("100ms", "5m").func
    if is_inside:
        assert check(Duration.read(text)) == Duration.read(text)  # type: ignore[call-arg]
    else:
        with pytest.raises(ValueError, match="between 100ms and 5m"):
            check(Duration.read(text))  # type: ignore[call-arg]
