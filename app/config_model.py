"""The root of the configuration, and what can be asked of its shape.

`Config` is one immutable value; whoever needs settings gets it, or a part of it, as an argument. Besides
the model this module walks its shape: every leaf key (for the table of reload classes and the
documentation) and the keys that may stand at a path (for "did you mean").
"""

import math
from collections.abc import Iterator, Mapping
from types import UnionType
from typing import Annotated, Any, Union, get_args, get_origin

from pydantic import Field, SecretStr
from pydantic.fields import FieldInfo

from app.config_dynamo import DynamoSettings
from app.config_findings import KeyPath
from app.config_sections import (
    BACKENDS_MAX,
    AdminSettings,
    ApiKeysSettings,
    BackendSettings,
    CircuitBreakerSettings,
    DisaggregatedServingSettings,
    HealthCheckSettings,
    LoggingSettings,
    MetricsSettings,
    RequestSettings,
    Section,
    ServerSettings,
)
from app.config_storage import AuditSettings, CheckpointSettings, LogSettings, ShadowSettings

MASK = "***"
"""What stands in a read-back where a secret is set."""


class Config(Section):
    """The whole configuration file."""

    server: ServerSettings = Field(default=ServerSettings(), description="Where the public API listens.")
    backends: tuple[BackendSettings, ...] = Field(
        default=(), max_length=BACKENDS_MAX, description="OpenAI-wire servers, shim replicas among them."
    )
    api_keys: ApiKeysSettings = Field(default=ApiKeysSettings(), description="Client keys.")
    health_checks: HealthCheckSettings = Field(
        default=HealthCheckSettings(), description="Probes of backends."
    )
    circuit_breaker: CircuitBreakerSettings = Field(
        default=CircuitBreakerSettings(), description="When a failing backend is left alone."
    )
    request: RequestSettings = Field(default=RequestSettings(), description="Deadlines and tries.")
    disaggregated_serving: DisaggregatedServingSettings = Field(
        default=DisaggregatedServingSettings(), description="The pinned path."
    )
    dynamo: DynamoSettings = Field(default=DynamoSettings(), description="The Dynamo fleet.")
    log: LogSettings = Field(default=LogSettings(), description="The event log.")
    checkpoints: CheckpointSettings = Field(
        default=CheckpointSettings(), description="Fold state written aside."
    )
    audit: AuditSettings = Field(default=AuditSettings(), description="SQL record of picks.")
    shadow: ShadowSettings = Field(
        default=ShadowSettings(), description="Second picker that decides and never acts."
    )
    admin: AdminSettings = Field(default=AdminSettings(), description="The /admin interface.")
    logging: LoggingSettings = Field(default=LoggingSettings(), description="The process log.")
    metrics: MetricsSettings = Field(default=MetricsSettings(), description="GET /metrics.")
    cache: Any = Field(default=None, description="Ignored here.")
    retry: Any = Field(default=None, description="Ignored here: see request.max_retries.")
    global_prompts: Any = Field(default=None, description="Not in this release.")
    kv_cache_index: Any = Field(default=None, description="Not in this release.")
    selection_strategy: Any = Field(default=None, description="Ignored here: picks decide.")
    rate_limits: Any = Field(default=None, description="Ignored here: no rate limits.")


def leaf_keys(
    model: type[Section] = Config, above: tuple[str, ...] = ()
) -> Iterator[tuple[tuple[str, ...], FieldInfo]]:
    """Every leaf key of the shape in order; list positions are `[]`: `("backends", "[]", "url")`."""
    for name, field in model.model_fields.items():
        below, is_list = section_of(field.annotation)
        path = (*above, name, "[]") if is_list else (*above, name)
        if below is None:
            yield (*above, name), field
        else:
            yield from leaf_keys(below, path)


def keys_allowed_at(keys: KeyPath) -> tuple[str, ...]:
    """The keys that a mapping at that path may hold; empty where no section is."""
    model: type[Section] | None = Config
    for key in keys:
        if isinstance(key, int):
            continue
        field = None if model is None else model.model_fields.get(key)
        model = None if field is None else section_of(field.annotation)[0]
    return () if model is None else tuple(model.model_fields)


def section_of(annotation: Any) -> tuple[type[Section] | None, bool]:
    """The section class behind an annotation, and whether it is the item of a list."""
    origin = get_origin(annotation)
    if origin is Annotated:
        return section_of(get_args(annotation)[0])
    if origin in (Union, UnionType):
        for part in get_args(annotation):
            found = section_of(part)
            if found[0] is not None:
                return found
        return None, False
    if origin is tuple:
        return section_of(get_args(annotation)[0])[0], True
    if isinstance(annotation, type) and issubclass(annotation, Section):
        return annotation, False
    return None, False


def plain_settings(value: object, *, masked: bool) -> Any:
    """The configuration as plain data, every default spelled out, in declaration order.

    masked: true puts `MASK` where a secret is set; false reveals it (only ever for building the next
    configuration, never for output) and keeps numbers that JSON cannot hold.
    """
    if isinstance(value, SecretStr):
        return MASK if masked else value.get_secret_value()
    if isinstance(value, Section):
        return {
            name: plain_settings(getattr(value, name), masked=masked) for name in type(value).model_fields
        }
    if isinstance(value, Mapping):
        return {str(key): plain_settings(item, masked=masked) for key, item in value.items()}
    if isinstance(value, list | tuple):
        return [plain_settings(item, masked=masked) for item in value]
    if value is None or isinstance(value, bool):
        return value
    if not masked and isinstance(value, int | float):
        return value
    if isinstance(value, int):
        return value if abs(value) < 1 << 63 else hex(value)
    if isinstance(value, float):
        return value if math.isfinite(value) else str(value)
    text = value.isoformat() if hasattr(value, "isoformat") else str(value)
    return text if text.isascii() else text.encode("utf-8", "replace").decode("utf-8")
