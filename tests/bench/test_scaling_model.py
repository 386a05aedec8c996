"""The paper model: it grows as it says, its bytes are the codec's, and the page shows what it computes."""

from __future__ import annotations

import math
from itertools import pairwise

import pytest

from bench.scaling_model import (
    ASSUMED,
    LIMITS,
    REFERENCE,
    TARGET,
    document,
    grown,
    lines,
    needs,
    reached_at,
    record_bytes,
    replicas_needed,
    split,
)
from tests.sources import REPOSITORY


def test_the_page_shows_what_the_model_computes() -> None:
    page = (REPOSITORY / "docs" / "scaling.md").read_text(encoding="utf-8")
    assert [line for line in lines(document()) if line not in page] == [], "python -m bench.scaling_model"


def test_the_target_is_the_reference_fleet_many_times() -> None:
    assert (TARGET.workers, TARGET.kv_events, TARGET.replicas) == (10_000, 1_000_000, 100)
    assert TARGET.samples / TARGET.ranks == pytest.approx(REFERENCE.samples / REFERENCE.ranks)
    assert grown("", REFERENCE.ranks, 8, 3)._replace(name="reference") == REFERENCE


def test_records_are_as_long_as_the_sizing_of_a_log_says() -> None:
    sample, batch = record_bytes()
    assert 70 <= sample <= 130 and 250 <= batch <= 400


def test_following_grows_with_the_fleet_and_not_with_its_replicas() -> None:
    small, large = needs(REFERENCE), needs(grown("", 4 * REFERENCE.ranks, 8, 3))
    assert large.following == pytest.approx(4 * small.following)
    more = needs(REFERENCE._replace(replicas=30))
    assert more.following == small.following and more.replica < small.replica
    assert more.leader_bytes_per_s > small.leader_bytes_per_s


def test_every_limit_is_reached_where_it_is_said_to_be() -> None:
    for limit in LIMITS:
        ranks = reached_at(limit)
        below, above = (grown("", ranks * share, 2.56, 100) for share in (0.98, 1.02))
        assert limit.used(below, needs(below)) < 1 <= limit.used(above, needs(above)), limit.name


def test_no_replica_of_the_number_that_is_needed_is_too_busy() -> None:
    wanted = replicas_needed(REFERENCE)
    assert wanted is not None
    assert needs(REFERENCE._replace(replicas=wanted)).replica <= ASSUMED.busy_max
    assert needs(REFERENCE._replace(replicas=wanted - 1)).replica > ASSUMED.busy_max
    assert replicas_needed(TARGET) is None


@pytest.mark.parametrize("with_ceilings", [True, False])
def test_a_split_fits_and_one_log_fewer_does_not(with_ceilings: bool) -> None:
    found = split(TARGET, with_ceilings)
    judged = [limit for limit in LIMITS if with_ceilings or limit.kind != "ceiling"]
    assert all(limit.used(found.fleet, found.needs) < 1 for limit in judged)
    fewer = found.logs - 1
    part = found.fleet._replace(
        workers=math.ceil(TARGET.workers / fewer),
        ranks=math.ceil(TARGET.ranks / fewer),
        samples=TARGET.samples / fewer,
        kv_events=TARGET.kv_events / fewer,
        requests=TARGET.requests / fewer,
    )
    replicas = replicas_needed(part)
    part = part._replace(replicas=replicas or 1)
    assert replicas is None or any(limit.used(part, needs(part)) >= 1 for limit in judged)


def test_limits_are_told_in_the_order_in_which_they_come() -> None:
    told = [row["ranks"] for row in document()["limits"]]
    assert all(before <= after for before, after in pairwise(told))
