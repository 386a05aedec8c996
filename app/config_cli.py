"""`picklog config validate | show | schema`, mounted by the console script.

Errors are one line each on stderr and exit status 2; a file that cannot be read is 3; warnings and
suggestions go to stderr and change nothing. With `--json` stdout holds one JSON document and nothing
else. Secrets are masked in every output.
"""

import json
import sys
from pathlib import Path
from typing import Annotated, Any

import typer
import yaml
from pydantic.json_schema import GenerateJsonSchema

from app.config_findings import ConfigError, ConfigUnreadable, Finding
from app.config_load import LoadedConfig, effective_settings, load_config
from app.config_model import Config, leaf_keys, plain_settings
from app.config_reload import path_text, reload_class

EXIT_REFUSED = 2
EXIT_UNREADABLE = 3

ConfigOption = Annotated[
    Path | None, typer.Option("-c", "--config", help="Configuration file; else it is searched.")
]
JsonOption = Annotated[bool, typer.Option("--json", help="Print one JSON document.")]

config_app = typer.Typer(
    name="config", help="Check and show the configuration.", no_args_is_help=True, add_completion=False
)


@config_app.command()
def validate(config: ConfigOption = None, as_json: JsonOption = False) -> None:
    """Check the configuration; exit 2 with one line for each error."""
    try:
        loaded = load_config(config)
    except ConfigError as error:
        if as_json:
            _print_json(
                {"valid": False, "errors": _json_findings(error.findings), "warnings": [], "suggestions": []}
            )
        raise typer.Exit(report_refusal(error)) from None
    report_findings(loaded, suggestions=True)
    if as_json:
        _print_json(
            {
                "valid": True,
                "path": None if loaded.path is None else str(loaded.path),
                "digest": loaded.digest,
                "errors": [],
                "warnings": _json_findings(loaded.report.warnings),
                "suggestions": _json_findings(loaded.report.suggestions),
            }
        )
    else:
        print("valid")


@config_app.command()
def show(config: ConfigOption = None, as_json: JsonOption = False) -> None:
    """Print the effective settings, defaults spelled out and secrets masked."""
    try:
        loaded = load_config(config)
    except ConfigError as error:
        raise typer.Exit(report_refusal(error)) from None
    report_findings(loaded, suggestions=False)
    settings = effective_settings(loaded.config)
    if as_json:
        _print_json(settings)
    else:
        print(yaml.safe_dump(settings, sort_keys=False, allow_unicode=True, width=110), end="")


@config_app.command()
def schema(config: ConfigOption = None, as_json: JsonOption = False) -> None:
    """Print the JSON schema of the file. Both options are accepted and change nothing."""
    _print_json(config_schema())


def report_refusal(error: ConfigError) -> int:
    """Say a refused configuration on stderr, one line an error; returns the exit status."""
    for finding in error.findings:
        print(f"error: {finding}", file=sys.stderr)
    return EXIT_UNREADABLE if isinstance(error, ConfigUnreadable) else EXIT_REFUSED


def report_findings(loaded: LoadedConfig, *, suggestions: bool) -> None:
    """Say warnings (and suggestions) of a valid configuration on stderr, one line each."""
    if loaded.path is None:
        print("note: no configuration file found, defaults apply", file=sys.stderr)
    for finding in loaded.report.warnings:
        print(f"warning: {finding}", file=sys.stderr)
    for finding in loaded.report.suggestions if suggestions else ():
        print(f"suggestion: {finding}", file=sys.stderr)


def config_schema() -> dict[str, Any]:
    """The JSON schema; `x-keys` lists every leaf key with its default and reload class."""
    document = Config.model_json_schema(schema_generator=_SchemaWithText)
    document["$schema"] = "https://json-schema.org/draft/2020-12/schema"
    document["x-keys"] = {
        path_text(keys): {
            "description": field.description,
            "default": None
            if field.is_required()
            else plain_settings(field.get_default(call_default_factory=True), masked=True),
            "required": field.is_required(),
            "reload": reload_class(path_text(keys)).value,
        }
        for keys, field in leaf_keys()
    }
    return document


class _SchemaWithText(GenerateJsonSchema):
    """Writes defaults as people write them: `3s`, `16MiB`."""

    def encode_default(self, dft: Any) -> Any:
        return plain_settings(dft, masked=True)


def _json_findings(findings: tuple[Finding, ...]) -> list[dict[str, object]]:
    return [finding.to_json() for finding in findings]


def _print_json(document: object) -> None:
    print(json.dumps(document, ensure_ascii=False, indent=2))
