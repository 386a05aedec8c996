"""Short runs of the log fuzzers with fixed seeds."""

from __future__ import annotations

import pytest

from tests.fuzz import mutate
from tests.fuzz.log_targets import targets

COMMAND = "python -m bench.fuzz_log"
CASES = {"record": 3000, "segment": 400, "checkpoint": 800, "value": 1500}
TARGETS = {target.name: target for target in targets()}


@pytest.mark.req("MEM-08")
@pytest.mark.parametrize("name", CASES)
def test_mutated_bytes_break_no_promise_of_a_reader(name: str) -> None:
    failure = mutate.first_failure(TARGETS[name], 1, CASES[name])
    assert failure is None, failure.report(COMMAND)


def test_every_unmutated_input_keeps_the_promises_too() -> None:
    assert set(CASES) == set(TARGETS)
    for target in TARGETS.values():
        for data in target.corpus:
            target.check(data)
