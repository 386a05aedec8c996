"""The sections of the gateway: keys, types, defaults and ranges of single values.

Models are frozen and refuse unknown keys. A description says what a key is, its unit and its range; the
reload class of each key is in `config_reload.RELOAD_CLASS`, rules that join several keys are in
`config_rules`. The `dynamo` section is in `config_dynamo`, the log in `config_storage`, the root in
`config_model`.

Sources: contract, section 6; specification, Configuration chapters; facts from the vendor's pages for the
parts of the ordinary gateway that this router has (decision 41).
"""

from datetime import datetime
from enum import StrEnum
from typing import Annotated, Any

from pydantic import AfterValidator, BaseModel, BeforeValidator, ConfigDict, Field, SecretStr, model_validator

from app.config_units import ByteSize, Duration, duration_within, size_within

NAME_CHARACTERS_MAX = 128
BACKENDS_MAX = 1024
MODELS_PER_BACKEND_MAX = 1024
API_KEYS_MAX = 4096
TEXT_CHARACTERS_MAX = 4096

Name = Annotated[str, Field(min_length=1, max_length=NAME_CHARACTERS_MAX)]


def _without_nul(text: str) -> str:
    """No file, address or name of the fleet has one; what takes such a text fails far from here."""
    if "\0" in text:
        raise ValueError("holds a NUL character: remove it")
    return text


Text = Annotated[str, Field(max_length=TEXT_CHARACTERS_MAX), AfterValidator(_without_nul)]
Share = Annotated[float, Field(ge=0.0, le=1.0)]


class Section(BaseModel):
    """A part of the file. An empty section (`kv:` and nothing below) means all its defaults."""

    model_config = ConfigDict(
        frozen=True, extra="forbid", allow_inf_nan=False, hide_input_in_errors=True, validate_default=True
    )

    @model_validator(mode="before")
    @classmethod
    def _empty_means_defaults(cls, data: object) -> object:
        return {} if data is None else data


def _one_or_many(value: object) -> object:
    return [value] if isinstance(value, str) else value


class ServerSettings(Section):
    """Where the public API listens."""

    bind_address: Annotated[
        tuple[Text, ...], BeforeValidator(_one_or_many), Field(min_length=1, max_length=16)
    ] = Field(
        default=("127.0.0.1:8080",),
        description="host:port, [v6]:port or unix:/path; one or a list of up to 16. Port 0 takes a free one.",
    )
    body_bytes_max: Annotated[ByteSize, size_within("1KiB", "1GiB")] = Field(
        default=ByteSize(16 << 20),
        description="Largest request body, bytes; larger ones get 413. 1KiB to 1GiB.",
    )
    workers: int | None = Field(default=None, ge=0, description="Ignored here: one process serves.")
    connection_pool_size: int | None = Field(default=None, ge=0, description="Ignored here.")
    socket_mode: str | int | None = Field(default=None, description="Ignored here: sockets are owner-only.")


class BackendSettings(Section):
    """One OpenAI-wire server: a shim replica, or an ordinary backend for the unified fallback."""

    name: Name = Field(
        description="Unique name, printable ASCII, up to 128 characters; shown in X-Continuum-Backend."
    )
    url: Text = Field(
        description="http(s)://host[:port][/prefix], without credentials and without /v1 at the end."
    )
    type: str = Field(default="openai", description="openai is the only type of this router.")
    role: str = Field(default="unified", description="unified is the only role of this router.")
    models: tuple[Name, ...] = Field(
        default=(),
        max_length=MODELS_PER_BACKEND_MAX,
        description="Model ids that it serves; empty: what it lists.",
    )
    api_key: SecretStr | None = Field(
        default=None, description='Sent as a bearer token; write "${NAME}". Masked.'
    )
    enabled: bool = Field(default=True, description="false takes it out without deleting it.")
    internal: bool = Field(default=False, description="true hides it from clients and from shim pools.")
    weight: float | None = Field(default=None, ge=0, description="Ignored here: no balancing strategies.")
    retry_override: dict[str, Any] | None = Field(default=None, description="Ignored here.")
    rate_limit: dict[str, Any] | int | None = Field(default=None, description="Ignored here.")
    responses_api: str | None = Field(
        default=None, description="Ignored here: /v1/responses is not served yet."
    )


class ApiKeyMode(StrEnum):
    PERMISSIVE = "permissive"
    BLOCKING = "blocking"


class ApiKeySettings(Section):
    """One client key."""

    key: Annotated[SecretStr, Field(min_length=1, max_length=TEXT_CHARACTERS_MAX)] = Field(
        description="The secret that clients send as a bearer token. Masked."
    )
    id: Name = Field(description="Unique public name of the key.")
    name: Text | None = Field(default=None, description="Free text.")
    user_id: Text | None = Field(default=None, description="Free text.")
    organization_id: Text | None = Field(default=None, description="Free text.")
    scopes: tuple[Name, ...] = Field(
        default=(), max_length=16, description="read, write, files, admin; not used yet."
    )
    rate_limit: int | None = Field(default=None, ge=0, description="Ignored here: no rate limits.")
    enabled: bool = Field(default=True, description="A disabled key counts as unknown.")
    expires_at: datetime | None = Field(
        default=None, description="ISO 8601 time with offset; later it is unknown."
    )
    allowed_backends: tuple[Name, ...] | None = Field(
        default=None, max_length=BACKENDS_MAX, description="Names from `backends`; absent: all of them."
    )


class ApiKeysSettings(Section):
    """Who may use the public API."""

    mode: ApiKeyMode = Field(
        default=ApiKeyMode.PERMISSIVE,
        description="permissive: no key is needed, a known one is recognised; blocking: else 401.",
    )
    keys: tuple[ApiKeySettings, ...] = Field(default=(), max_length=API_KEYS_MAX, description="The keys.")
    file: Text | None = Field(default=None, description="YAML file with further `keys`, up to 1 MiB.")


class HealthCheckSettings(Section):
    """How backends are probed."""

    enabled: bool = Field(default=True, description="false takes every enabled backend for healthy.")
    interval: Annotated[Duration, duration_within("100ms", "1h")] = Field(
        default=Duration(30_000_000), description="Between two checks of one backend. 100ms to 1h."
    )
    timeout: Annotated[Duration, duration_within("10ms", "5m")] = Field(
        default=Duration(10_000_000), description="A check that takes longer has failed. 10ms to 5m."
    )
    unhealthy_threshold: int = Field(
        default=3, ge=1, le=100, description="Failures in a row that mean down. 1 to 100."
    )
    healthy_threshold: int = Field(
        default=2, ge=1, le=100, description="Successes in a row that mean up. 1 to 100."
    )
    path: Annotated[str, Field(pattern=r"^/[!-~]*$", max_length=256)] = Field(
        default="/v1/models", description="Path of the check; also answers which models a backend serves."
    )
    warmup_check_interval: Annotated[Duration, duration_within("100ms", "1h")] = Field(
        default=Duration(1_000_000), description="Between checks of a backend that answered 503. 100ms to 1h."
    )
    max_warmup_duration: Annotated[Duration, duration_within("0s", "1d")] = Field(
        default=Duration(300_000_000), description="How long 503 means warming up, not down. 0s to 1d."
    )


class CircuitBreakerSettings(Section):
    """When a failing backend is left alone."""

    enabled: bool = Field(default=True, description="false never opens a breaker.")
    failure_threshold: int = Field(
        default=5, ge=1, le=1000, description="Failures in a row that open it. 1 to 1000."
    )
    open_for: Annotated[Duration, duration_within("100ms", "1h")] = Field(
        default=Duration(30_000_000), description="How long it stays open before a trial. 100ms to 1h."
    )
    half_open_requests: int = Field(
        default=1, ge=1, le=100, description="Trial requests at one time. 1 to 100."
    )


class RequestSettings(Section):
    """Deadlines and tries of one client request."""

    timeout: Annotated[Duration, duration_within("100ms", "1d")] = Field(
        default=Duration(600_000_000), description="From acceptance to the last byte. 100ms to 1d."
    )
    connect_timeout: Annotated[Duration, duration_within("10ms", "5m")] = Field(
        default=Duration(5_000_000), description="To open a connection to a backend. 10ms to 5m."
    )
    first_byte_timeout: Annotated[Duration, duration_within("100ms", "1d")] = Field(
        default=Duration(300_000_000),
        description="From the sent request to the head of the answer. 100ms to 1d.",
    )
    max_retries: int = Field(
        default=2, ge=0, le=64, description="Further replicas tried with the same pins. 0 to 64."
    )


class DisaggregatedServingSettings(Section):
    """The path through a direct-mode frontend with pinned workers."""

    enabled: bool = Field(default=False, description="true sends chats of Dynamo models through the shim.")
    fallback_to_unified: bool = Field(
        default=False,
        description="true lets a failed pinned request go once to another backend, without pins.",
    )


class AuthMethod(StrEnum):
    NONE = "none"
    BEARER_TOKEN = "bearer_token"
    BASIC = "basic"
    API_KEY = "api_key"


class AdminAuthSettings(Section):
    """How `/admin` callers prove themselves."""

    method: AuthMethod = Field(
        default=AuthMethod.NONE, description="none (loopback binds only), bearer_token, basic or api_key."
    )
    token: SecretStr | None = Field(
        default=None, description="For bearer_token: `Authorization: Bearer`. Masked."
    )
    username: Text | None = Field(default=None, description="For basic.")
    password: SecretStr | None = Field(default=None, description="For basic. Masked.")
    api_key: SecretStr | None = Field(default=None, description="For api_key: header `X-API-Key`. Masked.")


class AdminSettings(Section):
    """The `/admin` interface."""

    auth: AdminAuthSettings = Field(default=AdminAuthSettings(), description="Authentication.")


class LogLevel(StrEnum):
    DEBUG = "debug"
    INFO = "info"
    WARNING = "warning"
    ERROR = "error"


def _level_name(value: object) -> object:
    if not isinstance(value, str):
        return value
    return {"warn": "warning", "trace": "debug"}.get(value.strip().lower(), value.strip().lower())


class LogFormat(StrEnum):
    TEXT = "text"
    JSON = "json"


class LoggingSettings(Section):
    """The process log on stderr (not the event log)."""

    level: Annotated[LogLevel, BeforeValidator(_level_name)] = Field(
        default=LogLevel.INFO, description="debug, info, warning or error."
    )
    format: LogFormat = Field(default=LogFormat.TEXT, description="text for people, json for collectors.")


class MetricsSettings(Section):
    """`GET /metrics`."""

    enabled: bool = Field(default=True, description="false answers 404.")
    endpoint: Text | None = Field(default=None, description="Ignored here: always /metrics.")
    cardinality_limit: dict[str, Any] | None = Field(
        default=None, description="Ignored here: label sets are closed."
    )
    optional_metrics: dict[str, Any] | None = Field(default=None, description="Ignored here.")
