"""Short runs of the wire fuzzers with fixed seeds; FUZZ_SECONDS makes one long run of a fresh seed."""

from __future__ import annotations

import os
import random
import time

import pytest

from tests.fuzz import mutate
from tests.fuzz.mutate import Target
from tests.fuzz.wire_targets import targets

COMMAND = "python -m bench.fuzz_wire"
CASES = {"zmtp": 500, "zmtp_handshake": 500, "sample": 3000, "key": 2000, "file_name": 2000}
CASES |= {"kv_message": 1500, "kv_events": 1500, "engine": 2000}
TARGETS = {target.name: target for target in targets()}


@pytest.mark.req("ETCD-16", "ZMTP-04", "LOAD-13", "KVX-19")
@pytest.mark.parametrize("seed", [1, 2])
@pytest.mark.parametrize("name", CASES)
def test_mutated_bytes_break_no_promise_of_a_decoder(name: str, seed: int) -> None:
    failure = mutate.first_failure(TARGETS[name], seed, CASES[name])
    assert failure is None, failure.report(COMMAND)


def test_every_unmutated_input_keeps_the_promises_too() -> None:
    assert set(CASES) == set(TARGETS)
    for target in TARGETS.values():
        for data in target.corpus:
            target.check(data)


def test_a_case_depends_on_its_number_alone() -> None:
    target = TARGETS["sample"]
    assert mutate.case_of(target, 5, 77) == mutate.case_of(target, 5, 77)
    assert len({mutate.case_of(target, 5, number) for number in range(100)}) > 90


def test_a_broken_promise_is_found_and_names_the_command_that_repeats_it() -> None:
    def no_zero_byte_first(data: bytes) -> None:
        assert data[:1] != b"\x00", "begins with zero"

    target = Target("toy", [b"\x01abc", b"\x02defgh"], no_zero_byte_first)
    failure = mutate.first_failure(target, 3, 2000)
    assert failure is not None
    assert failure.report(COMMAND).endswith(f"{COMMAND} --target toy --seed 3 --case {failure.number}")
    assert mutate.failure_of(target, 3, failure.number) is not None


@pytest.mark.timeout(0)
@pytest.mark.skipif("FUZZ_SECONDS" not in os.environ, reason="FUZZ_SECONDS asks for the long run")
def test_a_long_run_of_a_fresh_seed_breaks_no_promise() -> None:
    seconds = float(os.environ["FUZZ_SECONDS"])
    seed = int(os.environ.get("FUZZ_SEED", random.randrange(1 << 32)))
    for _count, failure in mutate.failures_until(list(TARGETS.values()), seed, time.monotonic() + seconds):
        assert failure is None, failure.report(COMMAND)
