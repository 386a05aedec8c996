"""The `dynamo.kv` section: prefix-aware picks, the artifacts they need, what their term weighs.

Keys and defaults are those of the specification; those that it lacks (decay, lower tiers, side indexes,
engine, self-check, engine sources) are neutral at their defaults, so that its formula holds.
"""

from enum import StrEnum
from typing import Annotated

from pydantic import Field

from app.config_sections import Section, Share, Text
from app.config_units import Duration, duration_within
from router.picker.kv_aware import WEIGHT_MAX

PINNED_ARTIFACTS_MAX = 1024
ENGINE_SOURCES_MAX = 256
SIDE_INDEX_TTL_MAX = "10m"


class DisaggregationPolicy(StrEnum):
    ISL_BOUNDING = "isl_bounding"
    PREFILL_LOAD = "prefill_load"
    ISL_OR_LOAD = "isl_or_load"


class ConditionalDisaggregationSettings(Section):
    """When the decode worker prefills by itself; every direct frontend of 1.4 to 1.6 refuses it."""

    enabled: bool = Field(default=False, description="Warns when true.")
    policy: DisaggregationPolicy = Field(
        default=DisaggregationPolicy.ISL_BOUNDING, description="isl_bounding, prefill_load or isl_or_load."
    )
    eff_isl_threshold: int = Field(default=2048, ge=0, description="Uncached prompt tokens. At least 0.")
    eff_isl_ratio_threshold: Share = Field(default=0.7, description="Uncached share of the prompt. 0 to 1.")
    prefill_busy_threshold: float | None = Field(
        default=None, ge=0, allow_inf_nan=False, description="Share of capacity. At least 0."
    )
    decode_busy_threshold: float | None = Field(
        default=None, ge=0, allow_inf_nan=False, description="Share of blocks. At least 0."
    )


class RenderEngine(StrEnum):
    MINIJINJA = "minijinja"
    JINJA2 = "jinja2"


class EngineSourceSettings(Section):
    """One engine's own publisher of KV events (vLLM, SGLang), for fleets without Dynamo's relay."""

    endpoint: Text = Field(description="tcp://host:port of the engine's publisher.")
    topic: str = Field(default="", max_length=256, description="The engine's topic; empty hears all.")
    namespace: Text | None = Field(default=None, description="Dynamo namespace; the only one by default.")
    instance_id: str | None = Field(
        default=None,
        pattern=r"^([0-9]{1,20}|0x[0-9a-f]{1,16})$",
        description="The worker: decimal, or 0x and hex. Absent: it is found by the endpoint's host.",
    )
    component: Text | None = Field(
        default=None, description="Of several workers on that host, the one of this component."
    )
    model: Text | None = Field(default=None, description="The one that serves this model.")
    system_port: int | None = Field(
        default=None,
        ge=1,
        le=65_535,
        description="The one whose card names files at this port, its `DYN_SYSTEM_PORT`.",
    )
    dp_rank: int | None = Field(
        default=None, ge=0, le=4095, description="Rank; absent: as the engine says, else 0."
    )
    block_size: int = Field(ge=1, le=65_536, description="Tokens of a block, as the engine is started with.")

    @property
    def instance_number(self) -> int | None:
        """The instance id as a number, None where the worker is to be found."""
        number = self.instance_id
        return None if number is None else int(number, 16 if number.startswith("0x") else 10)


class KvSettings(Section):
    """Prefix-aware picks."""

    enabled: bool = Field(
        default=False, description="true asks for prefix-aware picks (with the extra picklog[kv])."
    )
    allow_http_artifacts: bool = Field(default=True, description="Fetch from workers' own metadata URLs.")
    allow_hf_artifacts: bool = Field(default=False, description="Fetch from Hugging Face.")
    artifact_cache_dir: Text | None = Field(
        default=None, description="Directory of fetched artifacts; `artifacts` in the data directory."
    )
    pinned_artifacts: tuple[Text, ...] = Field(
        default=(), max_length=PINNED_ARTIFACTS_MAX, description="blake3: and 64 lower case hex digits each."
    )
    overlap_score_credit: float = Field(
        default=1.0, ge=0, le=WEIGHT_MAX, description="Blocks of credit a cached block. 0 to 1e100."
    )
    overlap_score_credit_decay: float = Field(
        default=0.0,
        ge=0,
        le=WEIGHT_MAX,
        description="k of 1/(1 + k * excess backlog in request sizes). 0 to 1e100; 0 for none.",
    )
    host_cache_hit_weight: float = Field(
        default=0.0, ge=0, le=1, description="Credit of a block in host memory. 0 to 1; Dynamo has 0.75."
    )
    disk_cache_hit_weight: float = Field(
        default=0.0, ge=0, le=1, description="Credit of a block on disk. 0 to 1; Dynamo has 0.25."
    )
    prefill_load_scale: float = Field(
        default=1.0, ge=0, le=WEIGHT_MAX, description="Weight of the prefill part. 0 to 1e100."
    )
    router_temperature: float = Field(
        default=0.0, ge=0, le=WEIGHT_MAX, description="0 takes the lowest cost. 0 to 1e100."
    )
    predicted_ttl: Annotated[Duration, duration_within("0s", SIDE_INDEX_TTL_MAX)] = Field(
        default=Duration(0),
        description="How long a pick stands for blocks its rank will hold. 0s to 10m; 0s for not at all.",
    )
    approximate_ttl: Annotated[Duration, duration_within("0s", SIDE_INDEX_TTL_MAX)] = Field(
        default=Duration(0),
        description="The same for ranks that publish no kv-events. 0s to 10m; 0s for not at all.",
    )
    match_ratio_min: Share = Field(
        default=0.5,
        description="Share of predicted blocks that workers must confirm; below it the term is off. 0 to 1.",
    )
    engine: RenderEngine = Field(
        default=RenderEngine.MINIJINJA, description="minijinja, as in Dynamo's frontend, or jinja2."
    )
    send_token_data: bool = Field(default=False, description="Attach rendered tokens as nvext.token_data.")
    engine_sources: tuple[EngineSourceSettings, ...] = Field(
        default=(), max_length=ENGINE_SOURCES_MAX, description="Engines' own publishers of KV events."
    )
    conditional_disaggregation: ConditionalDisaggregationSettings = Field(
        default=ConditionalDisaggregationSettings(), description="Decode worker prefills by itself."
    )
