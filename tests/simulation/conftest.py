"""Which seeds run: a fixed few by default, `--seeds N` the first N, `--seed N` that one alone."""

from __future__ import annotations

import pytest

SEEDS_BY_DEFAULT = 24


def pytest_addoption(parser: pytest.Parser) -> None:
    group = parser.getgroup("simulation")
    group.addoption("--seeds", type=int, default=None, help="simulate seeds 0 to N - 1")
    group.addoption("--seed", type=int, default=None, help="simulate this seed alone")


def pytest_generate_tests(metafunc: pytest.Metafunc) -> None:
    if "seed" not in metafunc.fixturenames:
        return
    one = metafunc.config.getoption("seed", None)
    many = metafunc.config.getoption("seeds", None)
    seeds = range(SEEDS_BY_DEFAULT if many is None else many) if one is None else (one,)
    metafunc.parametrize("seed", seeds)
