"""A request that is not answered: its HTTP status, and the error body that OpenAI's clients read."""

from __future__ import annotations

from typing import Any

from bough.engines.base import ContextFullError
from bough.errors import BoughError, InputError, RowError

# The error types of OpenAI's API by status; all others are server errors.
TYPES = {
    400: "invalid_request_error",
    401: "authentication_error",
    403: "permission_error",
    404: "not_found_error",
    405: "invalid_request_error",
    408: "timeout_error",
    409: "conflict_error",
    413: "invalid_request_error",
    421: "invalid_request_error",
    429: "rate_limit_error",
}


class RefusedError(BoughError):
    """The message is a sentence for the client; `code` is a fixed word for programs."""

    def __init__(self, status: int, message: str, *, code: str | None = None, param: str | None = None) -> None:
        super().__init__(message)
        self.status, self.code, self.param = status, code, param

    def to_json(self) -> dict[str, Any]:
        kind = TYPES.get(self.status, "server_error")
        return {"error": {"message": str(self), "type": kind, "param": self.param, "code": self.code}}


def refusal_of(error: Exception) -> RefusedError:
    """How a failure in answering is told to the client: its own mistakes are 400, the engine's failures 502."""
    if isinstance(error, RefusedError):
        return error
    if isinstance(error, ContextFullError):
        return RefusedError(400, str(error), code="context_length_exceeded", param="messages")
    if isinstance(error, InputError | RowError):
        return RefusedError(400, str(error))
    if isinstance(error, BoughError):
        return RefusedError(502, str(error), code="engine_error")
    return RefusedError(500, f"the request failed: {type(error).__name__}: {error}"[:500], code="internal_error")
