"""Settings of prefix-aware picks: what the specification lacks is neutral unless asked for."""

import pytest
from pydantic import ValidationError

from app.config_adoption import kv_pick_settings
from app.config_kv import KvSettings, RenderEngine
from projections.events.control import ConditionalSettings, KvPickSettings
from router.picker.kv_aware import WEIGHT_MAX


def test_what_the_specification_lacks_is_neutral_by_default() -> None:
    assert kv_pick_settings(KvSettings()) == KvPickSettings(1.0, 1.0, 0.0)
    assert KvSettings().engine is RenderEngine.MINIJINJA


def test_every_weight_reaches_the_pick() -> None:
    section = KvSettings.model_validate(
        {
            "overlap_score_credit": 2,
            "prefill_load_scale": 3,
            "router_temperature": 0.5,
            "overlap_score_credit_decay": 0.25,
            "host_cache_hit_weight": 0.75,
            "disk_cache_hit_weight": 0.125,
            "predicted_ttl": "2s",
            "approximate_ttl": "2m",
            "conditional_disaggregation": {
                "enabled": True,
                "policy": "isl_or_load",
                "eff_isl_threshold": 100,
                "eff_isl_ratio_threshold": 0.5,
                "prefill_busy_threshold": 1,
                "decode_busy_threshold": 0.9,
            },
        }
    )
    conditional = ConditionalSettings("isl_or_load", 100, 0.5, 1.0, 0.9)
    assert kv_pick_settings(section) == KvPickSettings(
        2.0, 3.0, 0.5, 0.25, 0.75, 0.125, 2_000_000, 120_000_000, conditional
    )
    assert type(kv_pick_settings(section).overlap_credit) is float, "whole numbers are logged as doubles too"


@pytest.mark.req("KVP-14")
@pytest.mark.parametrize(
    "name",
    ["overlap_score_credit", "overlap_score_credit_decay", "prefill_load_scale", "router_temperature"],
)
def test_a_weight_that_would_switch_the_term_off_without_a_word_is_refused(name: str) -> None:
    assert getattr(KvSettings.model_validate({name: WEIGHT_MAX}), name) == WEIGHT_MAX
    for value in (2 * WEIGHT_MAX, 1e308, float("inf"), float("nan"), -1):
        with pytest.raises(ValidationError):
            KvSettings.model_validate({name: value})
