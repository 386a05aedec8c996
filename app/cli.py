"""The console script `picklog`: which commands there are, and how each one ends.

Commands stand in modules of their own (`audit_cli`, `config_cli`, `log_cli`, `replay_cli`, `serve`).
A module is imported when its command is asked for: reading the configuration alone costs
half a second of imports, and `picklog --help` should not. That is the one place where
imports stand inside functions.

Exit statuses: see `cli_errors`. Errors of usage are one line like all others.
"""

from __future__ import annotations

import errno
import os
import signal
import sys
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Annotated, Any, NoReturn

import typer
import typer.main

from app.cli_errors import (
    EXIT_DONE,
    EXIT_INTERRUPTED,
    EXIT_UNREACHABLE,
    EXIT_USAGE,
    fail,
    refusals_told,
    say_error,
)
from app.standard_streams import drop_output, hold_standard_streams

ConfigOption = Annotated[
    Path | None,
    typer.Option("-c", "--config", metavar="FILE", help="Configuration file; else it is searched."),
]
DataOption = Annotated[
    Path,
    typer.Option("--data", metavar="DIR", help="Data directory: the log, its checkpoints and raw frames."),
]
BindOption = Annotated[
    list[str] | None,
    typer.Option(
        "--bind", metavar="ADDRESS", help="Listen here, not where the configuration says; repeatable."
    ),
]
MemberOption = Annotated[str | None, typer.Option("--member", hidden=True)]
DEFAULT_DATA = Path(".run/data")
ROUTERS_MAX = 32  # each folds the whole log; more of them belong on more machines
SERVING = ("serve", "ingest", "router", "follower")


def _config_commands() -> typer.Typer:
    from app.config_cli import config_app

    return config_app


def _log_commands() -> typer.Typer:
    from app.log_cli import log_app

    return log_app


def _replay_commands() -> typer.Typer:
    from app.replay_cli import replay_app

    return replay_app


def _capture_commands() -> typer.Typer:
    from app.capture_cli import capture_app

    return capture_app


def _audit_commands() -> typer.Typer:
    from app.audit_cli import audit_app

    return audit_app


def _artifact_commands() -> typer.Typer:
    from app.artifacts_cli import artifacts_app

    return artifacts_app


def _database_commands() -> typer.Typer:
    from app.db_cli import db_app

    return db_app


GROUPS: dict[str, tuple[str, Callable[[], typer.Typer]]] = {
    "config": ("Check and show the configuration.", _config_commands),
    "artifacts": ("Files that make prompts of the fleet's models: review and pin them.", _artifact_commands),
    "audit": ("The SQL record of picks: follow a log, ask, report, rebuild.", _audit_commands),
    "db": ("Schema of the audit database.", _database_commands),
    "log": ("Look at a log: ranges and sizes, records, check words.", _log_commands),
    "capture": ("A window of a log as one file, and back.", _capture_commands),
    "replay": ("Ask recorded picks again, offline.", _replay_commands),
}
"""Groups of commands, with the line of help that is shown before they are imported."""


def console(words: Sequence[str]) -> typer.Typer:
    """The commands. Of the groups only the one that `words` ask for is imported."""
    application = typer.Typer(
        name="picklog",
        help="Route chats to a Dynamo fleet, with every pick in a log that can be asked again.",
        no_args_is_help=True,
        add_completion=False,
        pretty_exceptions_enable=False,
        rich_markup_mode=None,
    )
    application.callback()(_options)
    application.command("serve")(serve)
    application.command("ingest")(ingest)
    application.command("router")(router)
    application.command("follower", hidden=True)(follower)
    wanted = next((word for word in words if not word.startswith("-")), "")
    for name, (line, load) in GROUPS.items():
        application.add_typer(load() if name == wanted else typer.Typer(), name=name, help=line)
    return application


def run(words: Sequence[str]) -> int:
    """Run one command line, without the program's name; returns the exit status."""
    try:
        command = typer.main.get_command(console(words))
        status = command.main(args=list(words), prog_name="picklog", standalone_mode=False)
        sys.stdout.flush()
    except (KeyboardInterrupt, typer.Abort):
        say_error("interrupted")
        return EXIT_INTERRUPTED
    except OSError as problem:
        if problem.filename is not None or problem.errno not in (errno.ENOSPC, errno.EIO):
            raise  # not our output: files of a command are its own affair
        drop_output()
        say_error(f"standard output: {problem.strerror or problem}")
        return EXIT_UNREACHABLE
    except Exception as problem:
        status = _usage_status(problem)
        if status is None:
            raise
    return status if isinstance(status, int) else EXIT_DONE


def main() -> NoReturn:
    """Entry point of the console script."""
    hold_standard_streams()
    words = sys.argv[1:]
    if not any(word in SERVING for word in words[:1]):
        signal.signal(signal.SIGPIPE, signal.SIG_DFL)  # `picklog log cat | head` ends as any filter does
    sys.exit(run(words))


def _usage_status(problem: Exception) -> int | None:
    """Say what is wrong with the command line; None where the exception is another one.

    Told by its shape: which classes there are differs between releases of typer.
    """
    told: Any = problem
    if not callable(getattr(told, "format_message", None)) or not hasattr(told, "exit_code"):
        return None
    text = str(told.format_message())
    context = getattr(told, "ctx", None)
    if "\n" in text:  # no command was named: the text is the help
        print(text, file=sys.stderr)
        return EXIT_USAGE
    path = context.command_path if context is not None else "picklog"
    say_error(text.rstrip("."), f"see `{path} --help`")
    return EXIT_USAGE


def _print_version(wanted: bool) -> None:
    if not wanted:
        return
    from importlib import metadata

    try:
        version = metadata.version("picklog")
    except metadata.PackageNotFoundError:
        version = "(not installed)"
    print(f"picklog {version}, Python {sys.version.split()[0]}")
    raise typer.Exit(EXIT_DONE)


def _options(
    version: Annotated[
        bool, typer.Option("--version", callback=_print_version, is_eager=True, help="Print the version.")
    ] = False,
) -> None:
    """Options before the command."""


def serve(
    config: ConfigOption = None,
    data: DataOption = DEFAULT_DATA,
    routers: Annotated[
        int,
        typer.Option(
            "--routers",
            min=1,
            max=ROUTERS_MAX,
            metavar="N",
            help="Router processes that share the port, beside the log's owner. 1: one does all.",
        ),
    ] = 1,
) -> None:
    """Run a router with the embedded log: watch the fleet, pick, log, and relay."""
    from app.config_storage import LogKind
    from app.data_ceilings import say_overcommitted
    from app.serve import serve as run_router

    with refusals_told():
        loaded = loaded_config(config)
        if loaded.config.log.kind is LogKind.KAFKA:
            remedy = "run `picklog ingest`, `picklog router` and `picklog audit`, each as often as you like"
            fail(EXIT_USAGE, "`serve` keeps the log on this machine, and log.kind is kafka", remedy)
        say_overcommitted(loaded.config, data)
        with addresses_told():
            raise typer.Exit(run_router(loaded, data, routers))


def ingest(
    config: ConfigOption = None,
    data: DataOption = DEFAULT_DATA,
    binds: BindOption = None,
    member: MemberOption = None,
) -> None:
    """Own the log and bring the fleet into it; on Kafka, wait as a standby while another one does."""
    from app.wiring import Role

    _run_role(Role.INGEST, config, data, binds, member)


def router(
    config: ConfigOption = None,
    data: DataOption = DEFAULT_DATA,
    binds: BindOption = None,
    member: MemberOption = None,
) -> None:
    """Pick and relay on a log that another process owns: on Kafka, or beside a `serve` of this machine."""
    from app.wiring import Role

    _run_role(Role.ROUTER, config, data, binds, member)


def _run_role(role: Any, config: Path | None, data: Path, binds: Any, member: str | None) -> NoReturn:
    from app.config_load import installed_extras
    from app.config_storage import LogKind
    from app.data_ceilings import say_overcommitted
    from app.doors import SOCKET_FOLDER, DoorPlan
    from app.kafka_places import own_brokers_told
    from app.serve import run_role

    with refusals_told():
        loaded = loaded_config(config, tell=member is None)
        if loaded.config.log.kind is LogKind.KAFKA and "kafka" not in installed_extras():
            fail(EXIT_USAGE, "the Kafka client is not installed", "pip install 'picklog[kafka]'")
        if loaded.config.log.kind is LogKind.KAFKA and role.value.owns:
            say_overcommitted(loaded.config, data)
        addresses = tuple(binds or ()) if binds or member is not None else None
        own_socket = data / SOCKET_FOLDER / f"{member}.sock" if member is not None else None
        with addresses_told(), own_brokers_told(loaded):
            doors = DoorPlan(addresses, member is not None, own_socket)
            raise typer.Exit(run_role(role, loaded, data, doors, member))


@contextmanager
def addresses_told() -> Iterator[None]:
    """Turn an address that cannot be listened on into one line and the status of bad usage."""
    from app.config_addresses import AddressFault
    from app.kafka_places import topics_told

    try:
        with topics_told():
            yield
    except AddressFault as fault:
        fail(EXIT_USAGE, fault.message, fault.hint)


def follower(config: ConfigOption = None, data: DataOption = DEFAULT_DATA) -> None:
    """Follow the log of a data directory for a parent process; `serve` starts it by itself."""
    from app.serve import follow

    with refusals_told():
        raise typer.Exit(follow(data, loaded_config(config, tell=False)))


def loaded_config(path: Path | None, tell: bool = True) -> Any:
    """The configuration, with the process log set up as it says. tell: warnings are logged."""
    from app.config_cli import report_refusal
    from app.config_findings import ConfigError
    from app.config_load import load_config
    from app.process_log import say_findings, set_up_process_log

    try:
        loaded = load_config(path, environment=os.environ)
    except ConfigError as error:
        raise typer.Exit(report_refusal(error)) from None
    set_up_process_log(loaded.config.logging)
    if tell:
        say_findings(loaded)
    return loaded
