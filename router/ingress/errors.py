"""The closed list of error codes, and the shape of error bodies.

Every error that this router makes itself is one row of `ERRORS`: code, status, OpenAI error
type and the sentence that a client reads. `docs/errors.md` explains each; a test compares
the two. Sentences name no address, worker or backend (DYN-18). Answers that a backend made
and that are relayed keep their own body.
"""

from __future__ import annotations

from enum import Enum
from typing import Final, NamedTuple

import orjson


class ErrorCode(Enum):
    """Codes that clients may rely on: added to, never renamed."""

    INVALID_REQUEST = "invalid_request"
    INVALID_API_KEY = "invalid_api_key"
    MODEL_NOT_FOUND = "model_not_found"
    NOT_FOUND = "not_found"
    METHOD_NOT_ALLOWED = "method_not_allowed"
    REQUEST_TIMEOUT = "request_timeout"
    PAYLOAD_TOO_LARGE = "payload_too_large"
    UNSUPPORTED_ENCODING = "unsupported_encoding"
    RATE_LIMITED = "rate_limited"
    HEADERS_TOO_LARGE = "headers_too_large"
    INTERNAL_ERROR = "internal_error"
    DECODE_FAILED = "disaggregated_decode_failed"
    UPSTREAM_FAILED = "upstream_failed"
    NO_WORKER = "no_worker"
    ALL_WORKERS_BUSY = "all_workers_busy"
    NO_SHIM = "no_shim"
    PREFILL_DECODE_UNAVAILABLE = "disaggregated_prefill_decode_unavailable"
    UPSTREAM_TIMEOUT = "upstream_timeout"


class ErrorRow(NamedTuple):
    """What a code looks like on the wire."""

    status: int
    type: str
    message: str


ERRORS: Final[dict[ErrorCode, ErrorRow]] = {
    ErrorCode.INVALID_REQUEST: ErrorRow(400, "invalid_request_error", "The request is malformed."),
    ErrorCode.INVALID_API_KEY: ErrorRow(
        401, "authentication_error", "A valid API key is needed: send it as 'Authorization: Bearer KEY'."
    ),
    ErrorCode.MODEL_NOT_FOUND: ErrorRow(404, "invalid_request_error", "The model does not exist here."),
    ErrorCode.NOT_FOUND: ErrorRow(404, "invalid_request_error", "There is nothing at this path."),
    ErrorCode.METHOD_NOT_ALLOWED: ErrorRow(
        405, "invalid_request_error", "This path does not take that method."
    ),
    ErrorCode.REQUEST_TIMEOUT: ErrorRow(
        408, "invalid_request_error", "The request body did not arrive in time."
    ),
    ErrorCode.PAYLOAD_TOO_LARGE: ErrorRow(413, "invalid_request_error", "The request body is too large."),
    ErrorCode.UNSUPPORTED_ENCODING: ErrorRow(
        415, "invalid_request_error", "Request bodies are taken without content encoding only."
    ),
    ErrorCode.RATE_LIMITED: ErrorRow(
        429, "rate_limit_error", "The workers take no further request just now: try again shortly."
    ),
    ErrorCode.HEADERS_TOO_LARGE: ErrorRow(
        431, "invalid_request_error", "The request line or a header is too large."
    ),
    ErrorCode.INTERNAL_ERROR: ErrorRow(500, "server_error", "The router failed at this request."),
    ErrorCode.DECODE_FAILED: ErrorRow(502, "server_error", "The picked workers did not serve the request."),
    ErrorCode.UPSTREAM_FAILED: ErrorRow(502, "server_error", "The backend did not serve the request."),
    ErrorCode.NO_WORKER: ErrorRow(503, "server_error", "No worker serves the model just now."),
    ErrorCode.ALL_WORKERS_BUSY: ErrorRow(
        503, "server_error", "Every worker of the model is busy: try again shortly."
    ),
    ErrorCode.NO_SHIM: ErrorRow(
        503, "server_error", "No frontend that may serve the request is usable just now."
    ),
    ErrorCode.PREFILL_DECODE_UNAVAILABLE: ErrorRow(
        503, "server_error", "The frontend refused the pinned pair of workers."
    ),
    ErrorCode.UPSTREAM_TIMEOUT: ErrorRow(504, "server_error", "The workers did not answer in time."),
}


class RequestRefused(Exception):
    """A request is answered with an error of ours.

    code: what kind. message: a sentence instead of the table's, never holding identities
    of the fleet. param: the JSON member at fault. headers: further response headers.
    """

    def __init__(
        self,
        code: ErrorCode,
        message: str = "",
        param: str | None = None,
        headers: tuple[tuple[str, str], ...] = (),
    ) -> None:
        row = ERRORS[code]
        super().__init__(message or row.message)
        self.code = code
        self.status = row.status
        self.message = message or row.message
        self.param = param
        self.headers = headers

    def body(self) -> bytes:
        """The OpenAI error body of this refusal."""
        return error_body(self.code, self.message, self.param)


def error_body(code: ErrorCode, message: str = "", param: str | None = None) -> bytes:
    """`{"error": {"message", "type", "code", "param"}}` as JSON bytes."""
    row = ERRORS[code]
    error = {"message": message or row.message, "type": row.type, "code": code.value, "param": param}
    return orjson.dumps({"error": error})


def error_event(code: ErrorCode) -> bytes:
    """The error as two SSE events that end a stream that has begun (DYN-18).

    Source: direct-mode frontends end a broken stream with an error event and [DONE].
    """
    return b"data: " + error_body(code) + b"\n\ndata: [DONE]\n\n"
