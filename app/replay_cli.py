"""`picklog replay`: its verbs, each in a module of its own.

All of them read a log that may be in use by a running owner: committed records only. Exit
status 0 done; 1 picks differ or the log does not check; 2 bad usage or no such pick; 3 the
log cannot be read.

A verb's module is imported when the verb is asked for: one look at a pick should not wait for
what feeding a staging directory needs.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import typer
import typer.main
from typer.core import TyperGroup

from app.collector import reading_collector

Verb = Callable[..., None]


def _explain() -> Verb:
    from app.replay_explain_cli import explain_command

    return explain_command


def _feed() -> Verb:
    from app.feed_cli import feed_command

    return feed_command


def _state() -> Verb:
    from app.replay_state_cli import state_command

    return state_command


def _verify() -> Verb:
    from app.replay_verify_cli import verify_command

    return verify_command


def _whatif() -> Verb:
    from app.replay_whatif_cli import whatif_command

    return whatif_command


VERBS: dict[str, Callable[[], Verb]] = {
    "explain": _explain,
    "feed": _feed,
    "state": _state,
    "verify": _verify,
    "whatif": _whatif,
}


class _Verbs(TyperGroup):
    """A group that imports a verb when it is asked for."""

    def list_commands(self, ctx: Any) -> list[str]:
        """All of them."""
        return list(VERBS)

    def get_command(self, ctx: Any, cmd_name: str) -> Any:
        """The verb, None where there is none of that name."""
        load = VERBS.get(cmd_name)
        if load is None:
            return None
        single = typer.Typer(add_completion=False, pretty_exceptions_enable=False, rich_markup_mode=None)
        single.command(cmd_name)(load())
        return typer.main.get_command(single)


replay_app = typer.Typer(
    cls=_Verbs, no_args_is_help=True, rich_markup_mode=None, help="Ask recorded picks again, offline."
)


@replay_app.callback()
def _offline() -> None:
    """Ask recorded picks again, offline."""
    reading_collector()
