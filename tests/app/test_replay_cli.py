"""`picklog replay` has its verbs, each with a line of help."""

from typer.testing import CliRunner

from app.replay_cli import replay_app


def test_every_verb_is_listed_with_its_help() -> None:
    result = CliRunner().invoke(replay_app, ["--help"])
    assert result.exit_code == 0
    for verb in ("explain", "state", "verify", "whatif"):
        assert f" {verb} " in result.stdout
        assert CliRunner().invoke(replay_app, [verb, "--help"]).exit_code == 0
