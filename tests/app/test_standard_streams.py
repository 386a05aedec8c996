"""The console script with standard streams that are closed, full, or interrupted."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
from itertools import product
from pathlib import Path

import pytest

REPOSITORY = Path(__file__).resolve().parents[2]
COMMAND = [sys.executable, "-m", "app"]


def shell(line: str) -> subprocess.CompletedProcess[str]:
    """Run `line` with "$@" as the console script."""
    return subprocess.run(
        ["sh", "-c", line, "sh", *COMMAND],
        capture_output=True,
        text=True,
        cwd=REPOSITORY,
        timeout=60,
        check=False,
    )


@pytest.mark.parametrize("closed", [">&-", "2>&-", "<&- >&- 2>&-"])
def test_a_command_runs_with_closed_streams(closed: str) -> None:
    told = shell(f'"$@" config schema {closed}')
    assert told.returncode == 0
    assert "Traceback" not in told.stderr


@pytest.mark.skipif(not os.path.exists("/dev/full"), reason="needs /dev/full")
@pytest.mark.parametrize("words", ["--help", "config schema"])
def test_output_that_nobody_takes_is_one_line(words: str) -> None:
    told = shell(f'"$@" {words} >/dev/full')
    assert told.returncode == 3
    assert told.stderr == "picklog: standard output: No space left on device\n"


@pytest.mark.parametrize("closed", [numbers for numbers in product((True, False), repeat=3) if any(numbers)])
def test_no_file_of_ours_takes_the_number_of_a_closed_stream(closed: tuple[bool, ...]) -> None:
    program = (
        "import os, sys\n"
        f"for number, is_closed in enumerate({closed}):\n"
        "    if is_closed: os.close(number)\n"
        "from app.standard_streams import hold_standard_streams\n"
        "hold_standard_streams()\n"
        "file = os.open(os.devnull, os.O_RDONLY)\n"
        "print('told'), sys.stdout.flush()\n"
        "sys.exit(3 if file > 2 and all(os.get_inheritable(n) for n in range(3)) else 4)\n"
    )
    told = subprocess.run(
        [sys.executable, "-c", program], cwd=REPOSITORY, capture_output=True, timeout=60, check=False
    )
    assert told.returncode == 3
    assert told.stdout == (b"" if closed[1] else b"told\n")


def test_ctrl_c_while_a_command_is_imported_is_one_line() -> None:
    program = (
        "import os, signal, sys\n"
        "from app import cli\n"
        "cli.GROUPS['log'] = ('', lambda: os.kill(os.getpid(), signal.SIGINT))\n"
        "sys.argv = ['picklog', 'log', 'stat']\n"
        "cli.main()\n"
    )
    told = subprocess.run(
        [sys.executable, "-c", program],
        cwd=REPOSITORY,
        capture_output=True,
        text=True,
        timeout=60,
        check=False,
        preexec_fn=lambda: signal.signal(signal.SIGINT, signal.default_int_handler),
    )
    assert (told.returncode, told.stderr) == (130, "picklog: interrupted\n")
