"""Which worker an engine belongs to: one that fits, in doubt none, and what is said of it."""

from __future__ import annotations

from typing import Any

import pytest

from ingest.subscriptions.engine_bindings import (
    SAID_AFTER_US,
    SIDE_BY_SIDE_US,
    Binding,
    EngineBindings,
)
from ingest.subscriptions.worker_places import WorkerPlace
from ingest.wire.engine_events import EngineSource
from projections.identity import WorkerKey
from projections.notices import Notice, StatusNotice
from tests.ingest.wire.engine_batches import SOURCE

FOUND = SOURCE._replace(instance_id=None)  # at 10.0.0.7
OTHER = FOUND._replace(endpoint="tcp://10.0.0.7:5558")
NAME = FOUND._replace(endpoint="tcp://engine-7.fleet:5557")


def worker(instance_id: int, host: str = "10.0.0.7", **fields: Any) -> WorkerPlace:
    known: dict[str, Any] = {"component": "backend", "model": "m", "system_port": None, "ranks": range(1)}
    return WorkerPlace(WorkerKey(fields.pop("namespace", "prod"), instance_id), host, **{**known, **fields})


class Bound:
    """Bindings with a clock of the test's own."""

    def __init__(self, *sources: EngineSource) -> None:
        self.now_us = 0
        self.notices: list[Notice] = []
        self.bindings = EngineBindings(self.notices.append, lambda: self.now_us)
        self.bindings.replace(sources)
        self.told: dict[str, list[int | None]] = {}

    def connect(self, source: EngineSource, peer: str | None = "10.0.0.7") -> int | None:
        told = self.told.setdefault(source.endpoint, [])
        return self.bindings.connected(source, peer, told.append)

    def stand(self, *places: WorkerPlace) -> list[tuple[str, int | None]]:
        """These workers stand from now on; where the entries stand."""
        self.bindings.follow(places)
        return self.rows

    def wait(self, us: int) -> list[str]:
        """Time goes by; what is warned of."""
        self.now_us += us
        self.notices.clear()
        self.bindings.tick()
        return [one.detail for one in self.notices if isinstance(one, StatusNotice)]

    @property
    def rows(self) -> list[tuple[str, int | None]]:
        return [
            (row.binding.value, row.worker.instance_id if row.worker is not None else None)
            for row in self.bindings.rows()
        ]

    @property
    def missing(self) -> str:
        return self.bindings.rows()[0].missing


def test_an_engine_belongs_to_the_one_worker_on_its_host() -> None:
    bound = Bound(FOUND)
    elsewhere = worker(2, "10.0.0.8"), worker(3, namespace="test")
    assert bound.stand(*elsewhere) == [("no_worker", None)]
    assert bound.stand(worker(1), *elsewhere) == [("bound", 1)]


def test_it_follows_its_worker_through_a_restart() -> None:
    bound = Bound(FOUND)
    bound.stand(worker(1))
    assert bound.connect(FOUND) == 1
    bound.stand(worker(1), worker(9))
    bound.stand(worker(9))
    bound.stand()
    bound.stand(worker(4))
    assert bound.told[FOUND.endpoint] == [None, 9, None, 4]


def test_what_does_not_change_the_worker_is_not_told() -> None:
    bound = Bound(FOUND)
    bound.stand(worker(1))
    bound.connect(FOUND)
    bound.stand(worker(1), worker(2, "10.0.0.8"))
    bound.bindings.replace((FOUND, NAME))
    assert bound.told[FOUND.endpoint] == []


@pytest.mark.parametrize(
    ("key", "mine", "theirs"),
    [
        ("component", "prefill", "decode"),
        ("model", "one", "two"),
        ("system_port", 9090, 9091),
        ("system_port", 9090, None),
    ],
)
def test_what_a_restart_does_not_change_tells_workers_of_one_host_apart(
    key: str, mine: Any, theirs: Any
) -> None:
    both = worker(1, **{key: mine}), worker(2, **{key: theirs})
    plain, described = Bound(FOUND), Bound(FOUND._replace(**{key: mine}))
    assert plain.stand(*both) == [("several_workers", None)]
    assert f"2 workers on its host fit: add {key}, or name the worker by instance_id" in plain.missing
    assert described.stand(*both) == [("bound", 1)]
    assert described.stand(both[1]) == [("no_worker", None)]
    assert f"of 1 workers on its host none has its {key}" in described.missing


def test_a_rank_tells_apart_workers_that_share_a_host_by_ranks() -> None:
    both = worker(1, ranks=range(2)), worker(2, ranks=range(2, 4))
    bound = Bound(FOUND._replace(dp_rank=3), OTHER._replace(dp_rank=0))
    assert bound.stand(*both) == [("bound", 2), ("bound", 1)]
    plain = Bound(FOUND)
    plain.stand(*both)
    assert "add dp_rank" in plain.missing


def test_workers_that_nothing_tells_apart_need_a_system_port() -> None:
    bound = Bound(FOUND)
    bound.stand(worker(1), worker(2))
    assert "start the workers with DYN_SYSTEM_PORT" in bound.missing


def test_a_name_stands_for_the_host_that_is_advertised_so_and_for_the_address_that_was_dialled() -> None:
    bound = Bound(NAME)
    assert bound.stand(worker(1)) == [("no_address", None)]
    assert bound.connect(NAME, "10.0.0.7") == 1
    assert bound.connect(NAME, "10.0.0.8") is None, "the name leads elsewhere now"
    assert bound.stand(worker(1), worker(5, "10.0.0.8")) == [("bound", 5)]
    assert Bound(NAME).stand(worker(1, "engine-7.fleet")) == [("bound", 1)]
    assert bound.connect(NAME, "::ffff:10.0.0.7") == 1


def test_an_address_that_was_dialled_counts_for_names_alone() -> None:
    bound = Bound(FOUND)
    bound.stand(worker(1, "10.0.0.8"))
    assert bound.connect(FOUND, "10.0.0.8") is None


def test_of_a_name_and_its_address_both_hosts_count() -> None:
    bound = Bound(NAME)
    bound.connect(NAME, "10.0.0.7")
    assert bound.stand(worker(1), worker(2, "engine-7.fleet")) == [("several_workers", None)]


def test_an_engine_that_names_its_worker_has_it_whatever_the_fleet_says() -> None:
    bound = Bound(SOURCE)
    assert bound.stand(worker(1)) == [("named", 42)]
    assert not bound.bindings.is_looking
    assert Bound(SOURCE, OTHER).bindings.is_looking


def test_two_that_would_find_one_worker_find_none() -> None:
    bound = Bound(FOUND, OTHER)
    assert bound.stand(worker(1)) == [("rank_taken", None)] * 2
    assert "give each its dp_rank" in bound.missing


def test_one_that_names_the_worker_keeps_it_and_another_does_not_find_it() -> None:
    bound = Bound(OTHER, SOURCE._replace(instance_id=1))
    assert bound.stand(worker(1)) == [("rank_taken", None), ("named", 1)]


def test_engines_of_several_ranks_share_a_worker() -> None:
    bound = Bound(FOUND._replace(dp_rank=0), OTHER._replace(dp_rank=1))
    assert bound.stand(worker(1, ranks=range(2))) == [("bound", 1), ("bound", 1)]
    whole = Bound(FOUND._replace(dp_rank=0), OTHER)
    assert whole.stand(worker(1, ranks=range(2))) == [("rank_taken", None)] * 2, "one may tell of any rank"


def test_a_name_that_leads_to_a_taken_worker_unbinds_both() -> None:
    bound = Bound(FOUND, NAME)
    bound.stand(worker(1))
    assert bound.connect(FOUND) == 1
    assert bound.connect(NAME, "10.0.0.7") is None
    assert bound.told[FOUND.endpoint] == [None]


def test_workers_that_lived_side_by_side_leave_nobody_to_guess() -> None:
    bound = Bound(FOUND)
    bound.stand(worker(1), worker(2))
    bound.now_us = SIDE_BY_SIDE_US - 1
    assert bound.stand(worker(2)) == [("bound", 2)], "the old and the new one of a restart"
    bound.stand(worker(2), worker(3))
    bound.now_us += SIDE_BY_SIDE_US
    assert bound.stand(worker(3)) == [("several_workers", None)], "the engine may be the other one's"
    assert "add component, model or system_port" in bound.missing
    assert bound.stand() == [("several_workers", None)]
    assert bound.stand(worker(4)) == [("several_workers", None)]
    bound.bindings.replace((FOUND._replace(component="backend"),))
    assert bound.rows == [("bound", 4)]


def test_what_is_unbound_for_long_is_said_once_with_what_to_do_and_no_address() -> None:
    bound = Bound(SOURCE, OTHER)
    bound.stand()
    assert bound.wait(SAID_AFTER_US - 1) == []
    (said,) = bound.wait(1)
    assert said.startswith("dynamo.kv.engine_sources[1]: no worker of the namespace advertises its host")
    assert "10.0.0.7" not in said
    assert bound.wait(SAID_AFTER_US) == []
    bound.stand(worker(1), worker(2))
    (said,) = bound.wait(SAID_AFTER_US)
    assert "2 workers on its host fit" in said
    bound.stand(worker(1))
    bound.stand()
    assert len(bound.wait(SAID_AFTER_US)) == 1, "it was bound meanwhile"


def test_a_restart_that_is_shorter_than_a_lease_is_not_warned_of() -> None:
    bound = Bound(FOUND)
    bound.stand(worker(1))
    bound.stand(worker(1), worker(2))
    assert bound.wait(SAID_AFTER_US - 1) == []
    bound.stand(worker(2))
    assert bound.wait(SAID_AFTER_US) == []


def test_each_worker_that_is_found_is_told() -> None:
    bound = Bound(FOUND)
    bound.stand(worker(1))
    bound.stand(worker(2))
    assert [(one.level, one.detail) for one in bound.notices if isinstance(one, StatusNotice)] == [
        ("info", "dynamo.kv.engine_sources[0]: prod/1"),
        ("info", "dynamo.kv.engine_sources[0]: prod/2"),
    ]


def test_an_entry_that_was_changed_or_taken_out_hears_nothing_more() -> None:
    bound = Bound(FOUND, NAME)
    bound.stand(worker(1))
    bound.connect(FOUND)
    bound.connect(NAME, "10.9.9.9")
    bound.bindings.replace((FOUND._replace(block_size=32),))
    bound.stand(worker(2))
    assert bound.told == {FOUND.endpoint: [], NAME.endpoint: []}
    assert bound.connect(FOUND) is None, "it is not what is configured"
    assert bound.connect(NAME) is None


def test_an_entry_that_moves_in_the_list_stays_bound() -> None:
    bound = Bound(FOUND)
    bound.stand(worker(1))
    bound.connect(FOUND)
    bound.bindings.replace((SOURCE._replace(endpoint="tcp://10.0.0.9:1"), FOUND))
    assert bound.rows == [("named", 42), ("bound", 1)]
    assert [row.place for row in bound.bindings.rows()] == [0, 1]
    assert bound.told[FOUND.endpoint] == []


def test_labels_are_fixed_words() -> None:
    assert [one.value for one in Binding] == [
        "named", "bound", "no_address", "no_worker", "several_workers", "rank_taken",
    ]  # fmt: skip
