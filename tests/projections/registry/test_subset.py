"""The fields that are kept of a large value read as the record that they were taken from."""

from __future__ import annotations

import pytest

from projections.registry.json_text import Unreadable
from projections.registry.records import parse_card, parse_channel, parse_endpoint, parse_source
from projections.registry.subset import subset_of
from tests.projections.fleet_script import card, channel, endpoint, source, text


@pytest.mark.parametrize(
    "value",
    [
        card(1, runtime={"data_parallel_size": 4, "data_parallel_start_rank": 4, "enable_eagle": True}),
        card(1, runtime={"disaggregated_endpoint": {"bootstrap_host": "h", "bootstrap_port": 1}}),
        card(1, suffix="my_adapter", version="1.6.1"),
        card(1, component="", name="", worker_type=None, model=None),
        text({"instance_id": 1}),
    ],
)
@pytest.mark.req("MEM-02")
def test_a_card_reads_back_from_its_subset(value: bytes) -> None:
    record = parse_card(value)
    assert not isinstance(record, Unreadable)
    again = parse_card(subset_of(record))
    assert again == record._replace(card=record.card._replace(faults=()))


def test_other_records_read_back_from_their_subsets() -> None:
    assert parse_endpoint(subset_of(parse_endpoint(endpoint(5)))) == parse_endpoint(endpoint(5))
    for rank in (3, 4294967295):
        assert parse_source(subset_of(parse_source(source(9, 5, rank)))) is not Unreadable.ID
    assert parse_source(subset_of(parse_source(source(9, 5, 3)))) == parse_source(source(9, 5, 3))
    for more in (
        {},
        {"scope": {"kind": "namespace"}},
        {"scope": {"kind": "component", "component": "c"}},
        {"scope": {"kind": "galaxy"}},
        {"transport": {"kind": "Nats"}},
        {"transport": {"kind": "Zmq", "config": {"endpoint": "ipc://x"}}},
    ):
        record = parse_channel(channel(9, **more))
        assert not isinstance(record, Unreadable)
        again = parse_channel(subset_of(record))
        assert not isinstance(again, Unreadable)
        assert (again.fault, again.address, again.topic, again.publisher_id) == (
            record.fault,
            record.address,
            record.topic,
            record.publisher_id,
        )


def test_what_could_not_be_read_has_no_subset() -> None:
    assert subset_of(Unreadable.JSON) == b"" and subset_of(None) == b""


@pytest.mark.req("MEM-02")
def test_a_subset_is_small_whatever_the_value_was() -> None:
    value = card(
        1,
        runtime={"disaggregated_endpoint": {f"{n}" + "x" * 500: "y" * 500 for n in range(1_000)}},
        template="z" * 500_000,
    )
    assert len(subset_of(parse_card(value))) < 20_000
