"""What of a configuration may enter the log, and what may come back from a read-back.

The log and every read-back hold the settings with secrets masked; a pick depends on `PickSettings` alone,
which hold neither secrets nor addresses (decisions 49, 60). Whoever puts a masked document back keeps the
secrets that are in force: a masked value stands for the live one, found by the name of its backend, key
or broker, and stays in the local file (REL-13, a documented risk: the live password then goes to whatever
endpoints the document names).
"""

from collections.abc import Mapping
from typing import Any, NamedTuple, get_args

import orjson
from pydantic import SecretStr

from app.config_dynamo import DynamoSettings
from app.config_findings import ConfigError, Finding, KeyPath, value_at
from app.config_kv import KvSettings
from app.config_load import check_data, effective_settings, settings_digest
from app.config_model import MASK, Config, leaf_keys, plain_settings
from app.config_reload import RELOAD_CLASS, ReloadClass
from app.config_rules_kv import inactive_kv
from projections.events.control import ConditionalSettings, KvPickSettings, PickSettings

LIST_NAMES = {
    ("backends",): "name",
    ("api_keys", "keys"): "id",
    ("dynamo", "event_bus", "brokers"): "id",
}
"""Lists whose items hold secrets, and the key that names an item whatever its position."""
OWN_KEYS = tuple(key for key, reload in RELOAD_CLASS.items() if reload is ReloadClass.PROCESS)
"""What each process takes from its own file alone, at its start."""


class AdoptableSettings(NamedTuple):
    """The parts of `ConfigProposed` and `ConfigAdopted` that come from the configuration.

    digest: 16 bytes over the masked settings. settings: masked JSON text, keys sorted. enabled: discovery
    is on.
    """

    digest: bytes
    settings: str
    pick: PickSettings
    enabled: bool


def adoptable_settings(config: Config, extras: frozenset[str]) -> AdoptableSettings:
    """What a process proposes to the owner of the log, or the owner adopts at its start.

    extras: installed ones; without those that a feature needs its picks go without it (KVX-01).
    """
    text = orjson.dumps(effective_settings(config), option=orjson.OPT_SORT_KEYS).decode()
    pick = pick_settings(config)
    if inactive_kv(config, extras) is not None:
        pick = pick._replace(kv=None)
    return AdoptableSettings(bytes.fromhex(settings_digest(config)), text, pick, config.dynamo.enabled)


def pick_settings(config: Config) -> PickSettings:
    """The settings that a pick may read: names sorted, time in microseconds, nothing secret."""
    dynamo: DynamoSettings = config.dynamo
    return PickSettings(
        picker=dynamo.picker,
        source=dynamo.discovery.source.value,
        namespaces=tuple(sorted(dynamo.discovery.namespaces)),
        model_map=tuple(sorted(dynamo.shim.model_map.items())),
        max_staleness_us=dynamo.load.max_staleness.us,
        kv=kv_pick_settings(dynamo.kv) if dynamo.kv.enabled else None,
    )


def kv_pick_settings(kv: KvSettings) -> KvPickSettings:
    """What the prefix term of a pick weighs."""
    conditional = kv.conditional_disaggregation
    return KvPickSettings(
        overlap_credit=float(kv.overlap_score_credit),
        prefill_scale=float(kv.prefill_load_scale),
        temperature=float(kv.router_temperature),
        credit_decay=float(kv.overlap_score_credit_decay),
        host_credit=float(kv.host_cache_hit_weight),
        disk_credit=float(kv.disk_cache_hit_weight),
        predicted_ttl_us=kv.predicted_ttl.us,
        approximate_ttl_us=kv.approximate_ttl.us,
        conditional=ConditionalSettings(
            conditional.policy.value,
            conditional.eff_isl_threshold,
            float(conditional.eff_isl_ratio_threshold),
            _float_or_none(conditional.prefill_busy_threshold),
            _float_or_none(conditional.decode_busy_threshold),
        )
        if conditional.enabled
        else None,
    )


def _float_or_none(value: float | None) -> float | None:
    return None if value is None else float(value)


def restore_secrets(document: object, live: Config) -> object:
    """A document that was read back masked, with each masked secret replaced by the one in force.

    Raises ConfigError where a masked value has no live secret to stand for.
    """
    revealed = plain_settings(live, masked=False)
    findings: list[Finding] = []
    restored = _restored(document, revealed, (), (), findings)
    if findings:
        raise ConfigError(findings)
    return restored


def adopted_config(settings: str, live: Config, extras: frozenset[str]) -> Config:
    """Settings that another process proposed or the log's owner adopted, as this process runs them.

    settings: the masked text of the record. Secrets are this process's own, and so is what takes a
    restart: addresses to listen on, the log, checkpoints, the database. Raises ConfigError.
    """
    try:
        document: Any = restore_secrets(orjson.loads(settings), live)
    except orjson.JSONDecodeError:
        raise ConfigError([Finding((), "the adopted settings are no JSON")]) from None
    if not isinstance(document, dict):
        raise ConfigError([Finding((), "the adopted settings are no JSON object")])
    own = plain_settings(live, masked=False)
    for key in OWN_KEYS:
        *sections, name = key.split(".")
        target, source = document, own
        for section in sections:
            target, source = target.setdefault(section, {}), source[section]
        target[name] = source[name]
    config, _ = check_data(document, extras=extras)
    return config


def secret_keys() -> frozenset[tuple[str, ...]]:
    """Every leaf key that is masked in read-backs; list positions are `[]`."""
    return frozenset(keys for keys, field in leaf_keys() if _holds_secret(field.annotation))


def _restored(
    document: object, live: object, keys: KeyPath, shape: tuple[str, ...], findings: list[Finding]
) -> Any:
    if isinstance(document, Mapping):
        return {
            key: _restored(value, value_at(live, (key,)), (*keys, key), (*shape, key), findings)
            for key, value in document.items()
            if isinstance(key, str)
        }
    if isinstance(document, list):
        named = LIST_NAMES.get(shape)
        return [
            _restored(item, _same_item(item, live, index, named), (*keys, index), (*shape, "[]"), findings)
            for index, item in enumerate(document)
        ]
    if document != MASK or shape not in _SECRET_KEYS:
        return document
    if not isinstance(live, str):
        findings.append(Finding(keys, "is masked, but no secret is in force to keep", "write the secret"))
    return live


def _same_item(item: object, live: object, index: int, named: str | None) -> object:
    """The live item that a list item of the document stands for: by name where items have one."""
    if not isinstance(live, list):
        return None
    if named is None:
        return live[index] if index < len(live) else None
    name = value_at(item, (named,))
    return next((other for other in live if value_at(other, (named,)) == name), None)


def _holds_secret(annotation: Any) -> bool:
    return annotation is SecretStr or any(_holds_secret(part) for part in get_args(annotation))


_SECRET_KEYS = secret_keys()
