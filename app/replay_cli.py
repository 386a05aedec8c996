"""`picklog replay`: its verbs, each in a module of its own.

All of them read a log that may be in use by a running owner: committed records only. Exit
status 0 done; 1 picks differ or the log does not check; 2 bad usage or no such pick; 3 the
log cannot be read.
"""

from __future__ import annotations

import typer

from app.feed_cli import feed_command
from app.replay_explain_cli import explain_command
from app.replay_state_cli import state_command
from app.replay_verify_cli import verify_command
from app.replay_whatif_cli import whatif_command

replay_app = typer.Typer(no_args_is_help=True, help="Ask recorded picks again, offline.")
replay_app.command("explain")(explain_command)
replay_app.command("feed")(feed_command)
replay_app.command("state")(state_command)
replay_app.command("verify")(verify_command)
replay_app.command("whatif")(whatif_command)
