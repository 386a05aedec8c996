"""What a question holds, and how a prompt is estimated."""

from __future__ import annotations

from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from projections.events.control import KvPickSettings, PickSettings
from projections.events.picks import AbsentCause, KvResult, Outcome, PhaseOutcome
from router import question
from router.question import (
    PromptFacts,
    block_hashes_of,
    cut_hashes,
    estimate_tokens,
    freeze_question,
    served_model,
    word_count,
)
from router.rotations import Rotations

SETTINGS = PickSettings(
    "load_based", "etcd", ("blue", "green", "red"), (("a", "one"), ("c", "two"), ("d", "one")), 3_000_000
)


def user(content: Any) -> dict[str, Any]:
    return {"messages": [{"role": "user", "content": content}]}


@pytest.mark.req("PICK-03")
@pytest.mark.field("B-110")
@pytest.mark.parametrize(
    ("document", "tokens"),
    [
        (user("x" * 40), 10 + 4),
        (user("x" * 41), 11 + 4),
        (user("a b c d e f"), 8 + 4),  # six words of one letter: ceil(6 * 4 / 3)
        (user("a b c d"), 6 + 4),
        (
            user([{"type": "text", "text": "x" * 8}, {"type": "image_url", "image_url": {"url": "u" * 99}}]),
            2 + 4,
        ),
        (user(None), 4),
        ({"messages": [{"role": "assistant", "content": None, "tool_calls": [{"id": "1"}]}, {}]}, 8),
        ({"messages": [user("x" * 6)["messages"][0], user("x" * 6)["messages"][0]]}, 3 + 8),
        ({"messages": [], "tools": [{"a": 1}]}, 3),  # [{"a":1}] has 9 characters
        ({"prompt": "x" * 40}, 10),
        ({"prompt": ["x" * 40, "x" * 4]}, 11),
        ({"prompt": [1, 2, 3]}, 3 + 0),
        ({"prompt": [[1, 2], [3]]}, 3),
        ({"prompt": ""}, 1),
        ({}, 1),
        ({"messages": "odd", "prompt": 7, "tools": 3}, 1),
        (user("é" * 40), 10 + 4),  # characters, not bytes
    ],
)
def test_estimate_of_every_legal_shape(document: dict[str, Any], tokens: int) -> None:
    assert estimate_tokens(document) == tokens


@pytest.mark.req("PICK-03")
@given(
    st.lists(st.sampled_from([*"ab \t\n\x0b\x1c\x1f\x7f\x85\xa0é\u2003語🙂", "ab cd"]), max_size=30).map(
        "".join
    )
)
def test_words_are_counted_as_if_split(text: str) -> None:
    assert word_count(text) == len(text.split())
    for step in range(1, 5):
        with pytest.MonkeyPatch.context() as patch:
            patch.setattr(question, "COUNTED_AT_ONCE", step)
            assert word_count(text) == len(text.split())


def test_every_character_of_ascii_is_a_blank_or_is_not() -> None:
    for code in range(128):
        text = f"a{chr(code)}b"
        assert word_count(text) == len(text.split())


JSON = st.recursive(
    st.none() | st.booleans() | st.integers() | st.text(max_size=20),
    lambda inner: st.lists(inner, max_size=4) | st.dictionaries(st.text(max_size=8), inner, max_size=4),
    max_leaves=12,
)


@pytest.mark.req("PICK-03")
@pytest.mark.field("B-110")
@given(messages=JSON, prompt=JSON, tools=JSON)
def test_any_document_has_an_estimate_and_always_the_same(messages: Any, prompt: Any, tools: Any) -> None:
    document = {"messages": messages, "prompt": prompt, "tools": tools}
    estimate = estimate_tokens(document)
    assert estimate >= 1
    assert estimate_tokens(document) == estimate


def test_tools_that_cannot_be_written_count_nothing() -> None:
    assert estimate_tokens({"tools": [1 << 80]}) == 1


@pytest.mark.req("SHIM-03", "PICK-12")
def test_model_map_is_for_matching_only() -> None:
    assert [served_model(model, SETTINGS) for model in ("a", "b", "c", "d", "one")] == [
        "one",
        "b",
        "two",
        "one",
        "one",
    ]
    question = _question(model="d")
    assert (question.model, question.served_model) == ("d", "one")


def _question(**changes: Any) -> Any:
    asked: dict[str, Any] = {
        "request_id": "r",
        "send": 0,
        "model": "a",
        "settings": SETTINGS,
        "asked_at": 1000,
        "lag_us": 70,
        "eligible": ("red", "blue", "other"),
        "absent": (("green", AbsentCause.BREAKER_OPEN),),
        "estimated_tokens": 9,
        "rotations": Rotations(),
    }
    return freeze_question(**(asked | changes))


@pytest.mark.req("PICK-13", "MNS-02")
def test_only_namespaces_of_the_settings_version_are_offered_sorted() -> None:
    question = _question()
    assert question.namespaces == ("blue", "red")
    assert question.absent == (("green", int(AbsentCause.BREAKER_OPEN)),)


@pytest.mark.req("STORE-06")
def test_dispatch_counts_from_the_asking_plus_the_lag() -> None:
    assert _question().dispatched_at == 1070


def test_rotations_are_those_of_the_served_model_and_of_each_eligible_namespace() -> None:
    rotations = Rotations()
    phase = PhaseOutcome(1, None, 0, None, b"")
    rotations.advance("one", Outcome("red", phase, phase, 3, 5, b""))
    question = _question(rotations=rotations)
    assert question.namespaces == ("blue", "red")
    assert (question.rotations_prefill, question.rotation_decode) == ((0, 3), 5)
    alone = _question(rotations=rotations, eligible=("red",))
    assert (alone.rotation_prefill, alone.rotations_prefill) == (3, ())
    assert _question(rotations=rotations, model="c").rotation_decode == 0


def _packed(*hashes: int) -> bytes:
    return b"".join(number.to_bytes(8, "big") for number in hashes)


READY = PromptFacts(KvResult.READY, 100, ((16, _packed(1, 2, 3, 4, 5, 6)), (64, _packed(7))), b"ids")


def test_a_readable_prompt_is_recorded_with_all_its_hashes_until_they_are_cut() -> None:
    question = _question(prompt=READY, draws=(5, 6))
    assert (question.prompt_result, question.isl_tokens, question.draws) == (KvResult.READY, 100, (5, 6))
    assert question.hashes == block_hashes_of(READY)
    assert [(held.block_size, held.blocks, held.hashes) for held in question.hashes] == [
        (16, 6, _packed(1, 2, 3, 4, 5, 6)),
        (64, 1, _packed(7)),
    ]


def test_a_prompt_that_is_not_trusted_is_recorded_without_hashes() -> None:
    question = _question(prompt=READY._replace(result=KvResult.MISMATCHED))
    assert (question.prompt_result, question.isl_tokens, question.hashes) == (KvResult.MISMATCHED, 100, ())
    assert _question().prompt_result == KvResult.OFF and _question().hashes == ()


@pytest.mark.req("EVS-08")
def test_hashes_are_cut_one_behind_the_deepest_match() -> None:
    whole = _question(prompt=READY)
    cut = cut_hashes(whole, {16: 3})
    assert [held.hashes for held in cut.hashes] == [_packed(1, 2, 3, 4), _packed(7)]
    assert [(held.blocks, held.digest) for held in cut.hashes] == [
        (held.blocks, held.digest) for held in whole.hashes
    ], "count and digest are of all of them"
    assert [held.hashes for held in cut_hashes(whole, {}).hashes] == [_packed(1), _packed(7)]
    assert cut_hashes(whole, {16: 6, 64: 1}) is whole


def test_digests_tell_prompts_apart_that_are_cut_alike() -> None:
    other = READY._replace(hashes=((16, _packed(1, 2, 3, 4, 5, 9)),))
    one, two = (cut_hashes(_question(prompt=facts), {16: 1}).hashes[0] for facts in (READY, other))
    assert one.hashes == two.hashes and one.digest != two.digest


@pytest.mark.req("KVP-04", "MNS-05")
def test_prefix_aware_picks_have_rotations_of_all_namespaces_and_inside_each() -> None:
    rotations = Rotations()
    phase = PhaseOutcome(1, None, 0, None, b"")
    settings = SETTINGS._replace(kv=KvPickSettings(1.0, 1.0, 0.0))
    rotations.advance("one", Outcome("red", phase, phase, 3, 5, b""), by_prefix=True)
    question = _question(rotations=rotations, settings=settings)
    assert question.namespaces == ("blue", "red")
    assert (question.rotation_prefill, question.rotations_prefill) == (3, (0, 3))
    assert (question.rotation_decode, question.rotations_decode) == (5, (0, 5))
    alone = _question(rotations=rotations, settings=settings, eligible=("red",))
    assert (alone.rotation_prefill, alone.rotations_prefill, alone.rotations_decode) == (3, (), ())
