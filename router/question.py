"""The question: everything a pick needs that the fold cannot give.

It is frozen in the same await-free step as the pick (decision 28): nothing that is read
here can change between reading and picking. Times are log times, eligible namespaces are
those of the request's settings version that have a usable frontend for this caller, and
the prompt is known by an estimate (decision 37), which is recorded because word splitting
follows tables that change between Pythons, and where picks are prefix-aware by the hashes of
its blocks. Of these only as many are recorded as can matter (decision 14).
"""

from __future__ import annotations

from bisect import bisect_left
from collections.abc import Mapping, Sequence
from typing import Any, NamedTuple

import orjson
import xxhash

from projections.events.control import PickSettings
from projections.events.picks import BlockHashes, KvResult, Question
from router.rotations import Rotations

MESSAGE_TOKENS = 4  # a message's role and separators
CHARACTERS_PER_TOKEN = 4
HASH_BYTES = 8
COUNTED_AT_ONCE = 1 << 16  # characters; no call holds the interpreter for a millisecond
_SHAPE = bytes(0x20 if chr(code).isspace() and code < 128 else 0x78 for code in range(256))


class PromptFacts(NamedTuple):
    """What reading a prompt gave.

    result: READY, or why there are no hashes. isl_tokens: of the rendered prompt, 0 unknown.
    hashes: (block size, packed big-endian tokens hashes of all complete blocks), ascending.
    token_ids: packed little-endian u32, for nvext.token_data; never logged.
    """

    result: KvResult
    isl_tokens: int = 0
    hashes: tuple[tuple[int, bytes], ...] = ()
    token_ids: bytes = b""


NO_PROMPT = PromptFacts(KvResult.OFF)


class PromptAsked(NamedTuple):
    """One prompt to read. served_model: the Dynamo name. namespaces: those that may serve it."""

    document: Mapping[str, Any]
    headers: Mapping[str, str]
    path: str
    served_model: str
    namespaces: tuple[str, ...]


class _Text:
    """Characters and words seen so far."""

    __slots__ = ("characters", "words")

    def __init__(self) -> None:
        self.characters = 0
        self.words = 0

    def add(self, text: object) -> None:
        if isinstance(text, str):
            self.characters += len(text)
            self.words += word_count(text)


def estimate_tokens(document: Mapping[str, Any]) -> int:
    """Prompt tokens of a chat or completions body without a tokenizer, at least 1.

    max(ceil(characters / 4), ceil(words * 4 / 3)) over all text, plus 4 a message, plus the
    tools' JSON length / 4; token ids in a completions prompt count as themselves. Total:
    any document has an estimate, shapes it does not know count nothing (B-110).
    Source: decision 37.
    """
    text = _Text()
    extra = 0
    messages = document.get("messages")
    if isinstance(messages, list):
        extra += MESSAGE_TOKENS * len(messages)
        for message in messages:
            if isinstance(message, dict):
                _add_content(text, message.get("content"))
    prompt = document.get("prompt")
    if prompt is not None:
        extra += _add_prompt(text, prompt)
    tools = document.get("tools")
    if tools:
        extra += _ceil_div(_json_length(tools), CHARACTERS_PER_TOKEN)
    words = max(_ceil_div(text.characters, CHARACTERS_PER_TOKEN), _ceil_div(text.words * 4, 3))
    return max(1, words + extra)


def word_count(text: str) -> int:
    """As len(text.split()), without a list of the words: half of the time, and in short steps."""
    words, is_within = 0, False
    for at in range(0, len(text), COUNTED_AT_ONCE):
        piece = text[at : at + COUNTED_AT_ONCE]
        if piece.isascii():
            shape = piece.encode("ascii").translate(_SHAPE)  # blanks and x
            words += shape.count(b" x") + shape.startswith(b"x")
        else:
            words += len(piece.split())
        words -= is_within and not piece[0].isspace()  # counted in the piece before
        is_within = not piece[-1].isspace()
    return words


def _add_content(text: _Text, content: object) -> None:
    """A message's content: text, or parts of which those with text count; null counts nothing."""
    if isinstance(content, str):
        text.add(content)
    elif isinstance(content, list):
        for part in content:
            text.add(part.get("text") if isinstance(part, dict) else part)


def _add_prompt(text: _Text, prompt: object) -> int:
    """A completions prompt: text, texts, token ids or lists of them. Returns the token ids."""
    if isinstance(prompt, str):
        text.add(prompt)
        return 0
    if not isinstance(prompt, list):
        return 0
    tokens = 0
    for item in prompt:
        if isinstance(item, str):
            text.add(item)
        elif isinstance(item, int):
            tokens += 1
        elif isinstance(item, list):
            tokens += len(item)
    return tokens


def _json_length(value: object) -> int:
    """Characters of compact JSON; 0 where it cannot be written (numbers beyond 64 bits)."""
    try:
        return len(orjson.dumps(value).decode("utf-8"))
    except (orjson.JSONEncodeError, RecursionError):
        return 0


def _ceil_div(number: int, by: int) -> int:
    return -(-number // by)


def served_model(model: str, settings: PickSettings) -> str:
    """The Dynamo name of a client's model id, itself where the map has none (SHIM-03)."""
    pairs = settings.model_map  # sorted by client id
    place = bisect_left(pairs, (model,))
    if place < len(pairs) and pairs[place][0] == model:
        return pairs[place][1]
    return model


def freeze_question(
    *,
    request_id: str,
    send: int,
    model: str,
    settings: PickSettings,
    asked_at: int,
    lag_us: int,
    eligible: Sequence[str],
    absent: Sequence[tuple[str, int]],
    estimated_tokens: int,
    rotations: Rotations,
    prompt: PromptFacts = NO_PROMPT,
    draws: tuple[int, ...] = (),
) -> Question:
    """The question of one pick. Its hashes are whole, see `cut_hashes`.

    settings: of the version that the request captured at acceptance (PICK-13).
    asked_at, lag_us: log time and the newest round trip of the replica's own ping; their
    sum is when the dispatch counts from (decision 18).
    eligible: namespaces with a usable frontend; others of the settings stand in `absent`
    with their AbsentCause. Both are sorted here.
    draws: 53-bit integers, one for each phase, where the settings ask for chance.
    """
    name = served_model(model, settings)
    namespaces = tuple(sorted(frozenset(settings.namespaces).intersection(eligible)))
    turns = tuple(rotations.prefill(name, namespace) for namespace in namespaces)
    decode_turns: tuple[int, ...] = ()
    newest = turns[0] if turns else 0
    if settings.kv is not None and len(turns) > 1:
        newest = rotations.prefill_of_all(name)
        decode_turns = tuple(rotations.decode_inside(name, namespace) for namespace in namespaces)
    return Question(
        request_id=request_id,
        send=send,
        model=model,
        served_model=name,
        asked_at=asked_at,
        dispatched_at=asked_at + lag_us,
        namespaces=namespaces,
        absent=tuple(sorted((space, int(cause)) for space, cause in absent)),
        estimated_tokens=estimated_tokens,
        rotation_prefill=newest,
        rotation_decode=rotations.decode(name),
        draws=draws,
        rotations_prefill=turns if len(turns) > 1 else (),
        prompt_result=int(prompt.result),
        isl_tokens=prompt.isl_tokens,
        hashes=block_hashes_of(prompt) if prompt.result is KvResult.READY else (),
        rotations_decode=decode_turns,
    )


def block_hashes_of(prompt: PromptFacts) -> tuple[BlockHashes, ...]:
    """All hashes of a prompt as a question holds them."""
    return tuple(
        BlockHashes(size, len(packed) // HASH_BYTES, xxhash.xxh3_64_intdigest(packed), packed)
        for size, packed in prompt.hashes
    )


def cut_hashes(question: Question, deepest: Mapping[int, int]) -> Question:
    """The question with hashes up to the deepest match of any rank and one more (decision 14).

    deepest: block size -> whole blocks; an absent size matches nothing. What is cut off cannot
    change an overlap: no rank holds the block before it.
    """
    kept = tuple(
        held._replace(hashes=held.hashes[: (deepest.get(held.block_size, 0) + 1) * HASH_BYTES])
        for held in question.hashes
    )
    return question if kept == question.hashes else question._replace(hashes=kept)
