"""Request bodies: what is taken, and what is taken out of them.

A body is JSON text of an object. It goes on to the frontend as the bytes that came, unless
a member has to go: then it is written anew from the parsed object. What goes are the
members of `nvext` that steer the frontend (SHIM-12, decision 64) and, without `x-backend`,
the wish to be told who served (decision 35).

Three ways around a plain look at `body["nvext"]["decode_worker_id"]` are closed here. A
member written twice is read by some parsers as the first and by others as the last one, so
a body with an `nvext` is refused if any object in it repeats a name. A frontend's decoder
takes an array for an object, by position, so `nvext` must be an object or null. And the
whole body must be an object for the same reason.
"""

from __future__ import annotations

import json
from collections.abc import Mapping
from typing import Any, Final, NamedTuple

import orjson

from projections.bounds import MODEL_NAME_CHARACTERS_MAX
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


class ChatBody(NamedTuple):
    """A readable body of chat completions or completions.

    data: the bytes to send on. document: the parsed object, for the estimate only.
    """

    data: bytes
    document: Mapping[str, Any]
    model: str
    stream: bool


def read_body(data: bytes, *, discloses: bool, metadata_upload: bool) -> ChatBody:
    """Check and clean one body.

    discloses: the request carries x-backend. metadata_upload: that member may stay.
    Raises RequestRefused(invalid_request) for what is no JSON object of UTF-8 text, lacks a
    model, or has a model or stream of another type. Shapes of messages are not judged: the
    frontend says what it takes (B-110).
    """
    document = _parse(data)
    model = document.get("model")
    if not isinstance(model, str) or not model:
        raise _refused("'model' must be a non-empty string.", "model")
    if len(model) > MODEL_NAME_CHARACTERS_MAX:
        raise _refused(f"'model' is longer than {MODEL_NAME_CHARACTERS_MAX} characters.", "model")
    stream = document.get("stream")
    if stream is not None and not isinstance(stream, bool):
        raise _refused("'stream' must be a boolean.", "stream")
    if "nvext" in document:
        data, document = _without_steering(data, discloses, metadata_upload)
    return ChatBody(data, document, model, bool(stream))


def _parse(data: bytes) -> dict[str, Any]:
    try:
        document = orjson.loads(data)
    except orjson.JSONDecodeError as problem:
        # the place is told, the text is not: it may hold the prompt
        raise _refused(f"The body is not JSON: line {problem.lineno}, column {problem.colno}.") from None
    if not isinstance(document, dict):
        raise _refused("The body must be a JSON object.")
    return document


def _without_steering(data: bytes, discloses: bool, metadata_upload: bool) -> tuple[bytes, dict[str, Any]]:
    """The body without the members that are not the client's to set; same bytes where none was.

    Parsed a second time with the standard library: it can tell repeated names, and it keeps
    numbers beyond 64 bits exact when the object is written again.
    """
    try:
        document = json.loads(data, object_pairs_hook=_object_of_distinct_names)
    except (ValueError, RecursionError):
        raise _refused("The body cannot be read.") from None
    nvext = document["nvext"]
    if nvext is None:
        return data, document
    if not isinstance(nvext, dict):
        raise _refused("'nvext' must be an object.", "nvext")
    cleaned = _cleaned(nvext, discloses, metadata_upload)
    if cleaned == nvext:
        return data, document
    if cleaned:
        document["nvext"] = cleaned
    else:
        del document["nvext"]
    try:
        text = json.dumps(document, separators=(",", ":"), allow_nan=False)
    except (ValueError, RecursionError):
        raise _refused("The body cannot be read.") from None
    return text.encode("ascii"), document


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
