"""`picklog replay` has its verbs, each with a line of help."""

import subprocess
import sys

from typer.testing import CliRunner

from app.replay_cli import replay_app
from tests.sources import REPOSITORY


def test_every_verb_is_listed_with_its_help() -> None:
    result = CliRunner().invoke(replay_app, ["--help"])
    assert result.exit_code == 0
    for verb in ("explain", "feed", "state", "verify", "whatif"):
        assert f" {verb} " in result.stdout
        assert CliRunner().invoke(replay_app, [verb, "--help"]).exit_code == 0


def test_a_verb_is_not_imported_before_it_is_asked_for() -> None:
    code = (
        "import sys; from app.cli import run; run(['replay', 'explain', '--help']);"
        "sys.exit('app.feed_cli' in sys.modules or 'sqlalchemy' in sys.modules)"
    )
    assert subprocess.run([sys.executable, "-c", code], capture_output=True, cwd=REPOSITORY).returncode == 0


def test_an_unknown_verb_is_bad_usage() -> None:
    assert CliRunner().invoke(replay_app, ["nonsense"]).exit_code == 2
