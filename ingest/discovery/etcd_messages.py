"""The etcd v3 messages that a reader needs, described in code instead of generated files.

Generated protobuf modules are bound to the protobuf release that made them; a descriptor
built here works with every one. Only fields that are read or sent are described, under
etcd's field numbers; protobuf keeps and ignores all others. The messages live in a pool of
their own, so that another etcd library in the process cannot clash with them.

There is no message here that could change a store.

Source: etcd `api/etcdserverpb/rpc.proto` and `api/mvccpb/kv.proto`, field numbers of v3.4.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, Final

from google.protobuf import descriptor_pb2, descriptor_pool
from google.protobuf.message import DecodeError
from google.protobuf.message_factory import GetMessageClass  # ImportError with the protobuf of etcd3

_FIELD: Final = descriptor_pb2.FieldDescriptorProto
_INT64: Final = _FIELD.TYPE_INT64
_BOOL: Final = _FIELD.TYPE_BOOL
_BYTES: Final = _FIELD.TYPE_BYTES
_STRING: Final = _FIELD.TYPE_STRING

EVENT_PUT: Final = 0
EVENT_DELETE: Final = 1  # the enum is described as the number that it is on the wire

# message -> fields: (number, name, scalar type or message name, repeated)
_MESSAGES: Final[dict[str, tuple[tuple[int, str, Any, bool], ...]]] = {
    "ResponseHeader": ((3, "revision", _INT64, False),),
    "KeyValue": (
        (1, "key", _BYTES, False),
        (3, "mod_revision", _INT64, False),
        (5, "value", _BYTES, False),
    ),
    "Event": ((1, "type", _INT64, False), (2, "kv", "KeyValue", False)),
    "RangeRequest": (
        (1, "key", _BYTES, False),
        (2, "range_end", _BYTES, False),
        (3, "limit", _INT64, False),
        (4, "revision", _INT64, False),
        (8, "keys_only", _BOOL, False),
    ),
    "RangeResponse": (
        (1, "header", "ResponseHeader", False),
        (2, "kvs", "KeyValue", True),
        (3, "more", _BOOL, False),
    ),
    "WatchCreateRequest": (
        (1, "key", _BYTES, False),
        (2, "range_end", _BYTES, False),
        (3, "start_revision", _INT64, False),
        (7, "watch_id", _INT64, False),
        (8, "fragment", _BOOL, False),
    ),
    "WatchProgressRequest": (),
    "WatchRequest": (
        (1, "create_request", "WatchCreateRequest", False),
        (3, "progress_request", "WatchProgressRequest", False),
    ),
    "WatchResponse": (
        (1, "header", "ResponseHeader", False),
        (2, "watch_id", _INT64, False),
        (3, "created", _BOOL, False),
        (4, "canceled", _BOOL, False),
        (5, "compact_revision", _INT64, False),
        (6, "cancel_reason", _STRING, False),
        (11, "events", "Event", True),
    ),
    "AuthenticateRequest": ((1, "name", _STRING, False), (2, "password", _STRING, False)),
    "AuthenticateResponse": ((2, "token", _STRING, False),),
}

_PACKAGE: Final = "etcdserverpb"


def _classes() -> dict[str, Any]:
    described = descriptor_pb2.FileDescriptorProto(
        name="etcd_reader.proto", package=_PACKAGE, syntax="proto3"
    )
    for message, fields in _MESSAGES.items():
        description = described.message_type.add(name=message)
        for number, name, kind, repeated in fields:
            label = _FIELD.LABEL_REPEATED if repeated else _FIELD.LABEL_OPTIONAL
            field = description.field.add(name=name, number=number, label=label)
            if isinstance(kind, str):
                field.type = _FIELD.TYPE_MESSAGE
                field.type_name = f".{_PACKAGE}.{kind}"
            else:
                field.type = kind
    pool = descriptor_pool.DescriptorPool()
    pool.Add(described)
    return {
        message: GetMessageClass(pool.FindMessageTypeByName(f"{_PACKAGE}.{message}")) for message in _MESSAGES
    }


_CLASSES: Final = _classes()

RangeRequest: Final = _CLASSES["RangeRequest"]
RangeResponse: Final = _CLASSES["RangeResponse"]
WatchCreateRequest: Final = _CLASSES["WatchCreateRequest"]
WatchProgressRequest: Final = _CLASSES["WatchProgressRequest"]
WatchRequest: Final = _CLASSES["WatchRequest"]
WatchResponse: Final = _CLASSES["WatchResponse"]
AuthenticateRequest: Final = _CLASSES["AuthenticateRequest"]
AuthenticateResponse: Final = _CLASSES["AuthenticateResponse"]

# The whole of what the client can call: method path, request, answer.
RANGE: Final = ("/etcdserverpb.KV/Range", RangeRequest, RangeResponse)
WATCH: Final = ("/etcdserverpb.Watch/Watch", WatchRequest, WatchResponse)
AUTHENTICATE: Final = ("/etcdserverpb.Auth/Authenticate", AuthenticateRequest, AuthenticateResponse)


def decoder_of(answer: Any) -> Callable[[bytes], Any]:
    """A function from bytes to a message of this class, or None for bytes that are none."""

    def decoded(data: bytes) -> Any:
        try:
            return answer.FromString(data)
        except DecodeError:
            return None

    return decoded
