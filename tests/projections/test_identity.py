"""Three spellings of an id become one integer; whatever else becomes nothing."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from projections.identity import (
    U64_MAX,
    RankKey,
    WorkerKey,
    id_of_decimal,
    id_of_hex,
    id_of_value,
)


@pytest.mark.req("RED-02", "SHIM-08")
def test_a_number_and_its_hex_text_are_one_key() -> None:
    assert id_of_value(1736491) == id_of_value("1a7f2b") == id_of_hex("1A7F2B") == 1736491
    assert WorkerKey("ns", 1736491).to_decimal() == "1736491"
    assert WorkerKey("ns", 1736491).to_hex() == "1a7f2b"
    assert WorkerKey("ns", 5).to_text() == "ns/5"


@pytest.mark.parametrize(
    "value", [True, False, None, 1.0, -1, U64_MAX + 1, [], "", "0x1f", "+1f", " 1f", "1g", "1" * 17]
)
def test_what_is_no_id_becomes_none(value: object) -> None:
    assert id_of_value(value) is None


@pytest.mark.parametrize("text", ["", "-1", "+1", "1e3", "0x1", "\uff11\uff12", "1" * 21, str(U64_MAX + 1)])
def test_what_is_no_decimal_id_becomes_none(text: str) -> None:
    assert id_of_decimal(text) is None


@given(st.integers(0, U64_MAX))
def test_every_id_survives_every_spelling(number: int) -> None:
    key = WorkerKey("ns", number)
    assert id_of_hex(key.to_hex()) == id_of_decimal(key.to_decimal()) == id_of_value(number) == number


def test_ranks_stand_in_order_of_namespace_then_id_then_rank() -> None:
    keys = [RankKey("b", 1, 0), RankKey("a", 10, 0), RankKey("a", 9, 1), RankKey("a", 9, 0)]
    assert sorted(keys) == [keys[3], keys[2], keys[1], keys[0]]
    assert keys[3].worker == WorkerKey("a", 9)
