"""Request bodies: what is taken, and what is taken out of them.

A body is JSON text of an object. It goes on to the frontend as the bytes that came, unless
a member of `nvext` has to go: then `nvext` alone is written anew and the rest stays as it
is. What goes are the members that steer the frontend (SHIM-12, decision 64) and, without
`x-backend`, the wish to be told who served (decision 35).

Three ways around a plain look at `body["nvext"]["decode_worker_id"]` are closed here. A
member written twice is read by some parsers as the first and by others as the last one, so
a body that gives its `nvext`, `model` or `stream` twice is refused, and so is one with an
`nvext` that gives any of its members, or anything within `nvext`, twice. A frontend's
decoder takes an array for an object, by position, so `nvext` must be an object or null. And
the whole body must be an object for the same reason.

One body is read in one go, while everybody else waits, and as objects a body is twenty
times its text: the number of its values has a ceiling of its own.
"""

from __future__ import annotations

import json
import re
import struct
from collections.abc import Iterator, Mapping
from typing import Any, Final, NamedTuple

import orjson

from projections.bounds import BODY_MEMBERS_MAX, BODY_VALUES_MAX, MODEL_NAME_CHARACTERS_MAX
from router.ingress.errors import ErrorCode, RequestRefused

STEERING_MEMBERS: Final = frozenset(
    {
        "backend_instance_id",
        "decode_worker_id",
        "prefill_worker_id",
        "dp_rank",
        "prefill_dp_rank",
        "token_data",
        "routing_constraints",
        "router",
    }
)
METADATA_UPLOAD: Final = "metadata_upload"
STEERING_ANNOTATIONS: Final = ("query_instance_id", "x-bypass-remote-prefill")
WORKER_DISCLOSURE: Final = "worker_id"

_ESCAPED_LETTER = re.compile(rb"\\u00[67]")  # nobody has to escape a letter: it may hide a name
_SPACE = re.compile(r"[ \t\r\n]*")
_READER: Final = json.JSONDecoder()


class ChatBody(NamedTuple):
    """A readable body of chat completions or completions.

    data: the bytes to send on. document: the parsed object, for the estimate only: many
    times the size of `data`, so it must not be kept while the request is on its way.
    """

    data: bytes
    document: Mapping[str, Any]
    model: str
    stream: bool


def read_body(data: bytes, *, discloses: bool, metadata_upload: bool) -> ChatBody:
    """Check and clean one body.

    discloses: the request carries x-backend. metadata_upload: that member may stay.
    Raises RequestRefused: payload_too_large for more than BODY_VALUES_MAX values;
    invalid_request for what is no JSON object of UTF-8 text, lacks a model, or has a model or
    stream of another type. Shapes of messages are not judged: the frontend says what it takes
    (B-110).
    """
    if len(data) > BODY_VALUES_MAX and _values_at_most(data) > BODY_VALUES_MAX:
        raise RequestRefused(
            ErrorCode.PAYLOAD_TOO_LARGE, f"The request body has more than {BODY_VALUES_MAX} values."
        )
    document = _parse(data)
    if len(document) > BODY_MEMBERS_MAX:
        raise _refused(f"The body has more than {BODY_MEMBERS_MAX} members.")
    model = document.get("model")
    if not isinstance(model, str) or not model:
        raise _refused("'model' must be a non-empty string.", "model")
    if len(model) > MODEL_NAME_CHARACTERS_MAX:
        raise _refused(f"'model' is longer than {MODEL_NAME_CHARACTERS_MAX} characters.", "model")
    stream = document.get("stream")
    if stream is not None and not isinstance(stream, bool):
        raise _refused("'stream' must be a boolean.", "stream")
    if "nvext" in document or _may_repeat(data):
        data = _without_steering(data, discloses, metadata_upload)
    return ChatBody(data, document, model, bool(stream))


def with_token_data(data: bytes, token_ids: bytes) -> bytes:
    """The body with `nvext.token_data`, which a frontend takes instead of the prompt's text.

    data: as `read_body` returned it, so it names no token_data and no member twice.
    token_ids: packed little-endian u32, not empty (NVX-01).
    """
    written = ",".join(map(str, struct.unpack(f"<{len(token_ids) // 4}I", token_ids)))
    text = data.decode("utf-8")
    found = next((member for member in _members(text) if member.name == "nvext"), None)
    if found is None:
        place = _behind_space(text, 0) + 1
        behind = "" if text[_behind_space(text, place)] == "}" else ","
        return f'{text[:place]}"nvext":{{"token_data":[{written}]}}{behind}{text[place:]}'.encode()
    nvext = json.loads(text[found.value_at : found.end]) or {}
    rest = json.dumps(nvext, separators=(",", ":"))[1:]
    comma = "," if nvext else ""
    value = f'{{"token_data":[{written}]{comma}{rest}'
    return (text[: found.value_at] + value + text[found.end :]).encode("utf-8")


def _values_at_most(data: bytes) -> int:
    """No more values than this are in the text; commas and brackets within strings count too."""
    return data.count(b",") + data.count(b"[") + data.count(b"{")


def _may_repeat(data: bytes) -> bool:
    """Whether a name that we read could be in the text twice. Quotes in strings are escaped."""
    return (
        data.count(b'"model"') > 1 or data.count(b'"stream"') > 1 or _ESCAPED_LETTER.search(data) is not None
    )


def _parse(data: bytes) -> dict[str, Any]:
    try:
        document = orjson.loads(data)
    except orjson.JSONDecodeError as problem:
        # the place is told, the text is not: it may hold the prompt
        raise _refused(f"The body is not JSON: line {problem.lineno}, column {problem.colno}.") from None
    if not isinstance(document, dict):
        raise _refused("The body must be a JSON object.")
    return document


class _Member(NamedTuple):
    """A member of the outermost object: places in the text, of the name, of the value, behind it."""

    name: str
    name_at: int
    value_at: int
    end: int


def _without_steering(data: bytes, discloses: bool, metadata_upload: bool) -> bytes:
    """The body without the members that are not the client's to set; same bytes where none was.

    The text is walked once more with the standard library, which can tell repeated names.
    """
    text = data.decode("utf-8")
    members: dict[str, _Member] = {}
    try:
        for member in _members(text):
            if member.name in members:
                raise _refused("A member of the body is given twice.")
            members[member.name] = member
        found = members.get("nvext")
        if found is None:
            return data
        nvext = json.loads(text[found.value_at : found.end], object_pairs_hook=_object_of_distinct_names)
    except (ValueError, RecursionError):
        raise _refused("The body cannot be read.") from None
    if nvext is None:
        return data
    if not isinstance(nvext, dict):
        raise _refused("'nvext' must be an object.", "nvext")
    cleaned = _cleaned(nvext, discloses, metadata_upload)
    if cleaned == nvext:
        return data
    return _with_nvext(text, found, cleaned).encode("utf-8")


def _members(text: str) -> Iterator[_Member]:
    """The members of an object, in order. text: known to be the JSON of one."""
    place = _behind_space(text, 0) + 1
    while text[place := _behind_space(text, place)] != "}":
        name, name_end = _READER.raw_decode(text, place)
        value_at = _behind_space(text, _behind_space(text, name_end) + 1)
        _, end = _READER.raw_decode(text, value_at)
        yield _Member(name, place, value_at, end)
        place = _behind_space(text, end)
        if text[place] == ",":
            place += 1


def _behind_space(text: str, place: int) -> int:
    match = _SPACE.match(text, place)
    assert match is not None, "matches the empty text"
    return match.end()


def _with_nvext(text: str, found: _Member, nvext: dict[str, Any]) -> str:
    """The text with another `nvext`, or without it where nothing is left of it."""
    if nvext:
        try:
            written = json.dumps(nvext, separators=(",", ":"), allow_nan=False)
        except (ValueError, RecursionError):
            raise _refused("The body cannot be read.") from None
        return text[: found.value_at] + written + text[found.end :]
    behind = _behind_space(text, found.end)
    if text[behind] == ",":
        return text[: found.name_at] + text[behind + 1 :]
    before = text[: found.name_at].rstrip(" \t\r\n")
    return before.removesuffix(",") + text[behind:]


def _cleaned(nvext: dict[str, Any], discloses: bool, metadata_upload: bool) -> dict[str, Any]:
    kept = {
        name: value
        for name, value in nvext.items()
        if name not in STEERING_MEMBERS and (metadata_upload or name != METADATA_UPLOAD)
    }
    annotations = kept.get("annotations")
    if isinstance(annotations, list):
        _replace(kept, "annotations", [item for item in annotations if not _steers(item)])
    fields = kept.get("extra_fields")
    if isinstance(fields, list) and not discloses:
        _replace(kept, "extra_fields", [item for item in fields if item != WORKER_DISCLOSURE])
    return kept


def _replace(kept: dict[str, Any], name: str, items: list[Any]) -> None:
    if items:
        kept[name] = items
    elif kept[name]:
        del kept[name]


def _steers(annotation: object) -> bool:
    return isinstance(annotation, str) and annotation.strip().lower().startswith(STEERING_ANNOTATIONS)


def _object_of_distinct_names(pairs: list[tuple[str, Any]]) -> dict[str, Any]:
    found = dict(pairs)
    if len(found) != len(pairs):
        raise _refused("A member of the body is given twice.")
    return found


def _refused(message: str, param: str | None = None) -> RequestRefused:
    return RequestRefused(ErrorCode.INVALID_REQUEST, message, param)
