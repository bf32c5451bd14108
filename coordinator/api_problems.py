"""What the API answers when it can't do what was asked: problem documents (RFC 9457) with our code and exit status.

A body that is too large is refused before more of it is read. Nothing of an unforeseen error leaves but its reference.
"""

from fastapi import FastAPI, Request
from fastapi.exceptions import RequestValidationError
from fastapi.responses import JSONResponse
from starlette.exceptions import HTTPException as StarletteHttpException
from starlette.types import ASGIApp, Message, Receive, Scope, Send

from federation.edge.logs import Log
from federation.errors import (
    ConfideError,
    InvalidInput,
    NotAuthenticated,
    OutOfOrder,
    PolicyRefused,
    TimedOut,
    Unreachable,
)


def _status(error: ConfideError) -> int:
    by_code = {"CFD-J01": 409, "CFD-J02": 404, "CFD-J05": 409, "CFD-J09": 409}
    if error.code in by_code:
        return by_code[error.code]
    by_kind: tuple[tuple[type[ConfideError], int], ...] = (
        (InvalidInput, 422),
        (NotAuthenticated, 401),
        (PolicyRefused, 403),
        (OutOfOrder, 409),
        (Unreachable, 503),
        (TimedOut, 504),
    )
    return next((status for kind, status in by_kind if isinstance(error, kind)), 500)


def problem(
    status: int, *, code: str, detail: str, hint: str = "", exit_status: int = 1, reference: str = ""
) -> JSONResponse:
    """Return a problem document (RFC 9457)."""
    body = {
        "type": f"urn:confide:error:{code}",
        "title": code,
        "status": status,
        "detail": detail,
        "code": code,
        "hint": hint,
        "exit_status": exit_status,
        "reference": reference,
    }
    headers = {"WWW-Authenticate": "Bearer"} if status == 401 else None
    return JSONResponse(body, status_code=status, media_type="application/problem+json", headers=headers)


class BoundedBody:
    """Refuse a request whose body is larger than `limit_bytes`, announced or not, before more of it is read."""

    def __init__(self, app: ASGIApp, limit_bytes: int) -> None:
        self._app = app
        self._limit = limit_bytes

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Hand a request on, its body bounded."""
        if scope["type"] != "http":
            await self._app(scope, receive, send)
            return
        announced = next((value for name, value in scope["headers"] if name == b"content-length"), b"0")
        if not announced.isdigit() or int(announced) > self._limit:
            await self._refuse(scope, receive, send)
            return
        seen = 0

        async def bounded() -> Message:
            nonlocal seen
            message = await receive()
            seen += len(message.get("body", b""))
            if seen > self._limit:
                raise StarletteHttpException(413)
            return message

        await self._app(scope, bounded, send)

    async def _refuse(self, scope: Scope, receive: Receive, send: Send) -> None:
        text = f"the request body is larger than {self._limit} bytes"
        await problem(413, code="CFD-J20", detail=text, hint="send less", exit_status=2)(scope, receive, send)


def add_errors(app: FastAPI, log: Log) -> None:
    """Make every error of `app` a problem document; an unforeseen one goes to the log, and its reference out."""

    @app.exception_handler(ConfideError)
    def ours(_request: Request, error: ConfideError) -> JSONResponse:
        return problem(
            _status(error),
            code=error.code,
            detail=error.message,
            hint=error.hint,
            exit_status=error.exit_status,
            reference=error.reference,
        )

    @app.exception_handler(Exception)
    def unforeseen(_request: Request, error: Exception) -> JSONResponse:
        reference = log.internal("api.failed", error)
        text = "something went wrong inside the coordinator"
        hint = "give the coordinator's operator the reference; the log has the places"
        return problem(500, code="CFD-G01", detail=text, hint=hint, exit_status=70, reference=reference)

    @app.exception_handler(RequestValidationError)
    def malformed(_request: Request, error: RequestValidationError) -> JSONResponse:
        places = "; ".join(f"{'.'.join(map(str, item['loc']))}: {item['msg']}" for item in error.errors()[:5])
        return problem(422, code="CFD-J20", detail=f"the request is malformed: {places}", exit_status=2)

    @app.exception_handler(StarletteHttpException)
    def http(_request: Request, error: StarletteHttpException) -> JSONResponse:
        return problem(error.status_code, code="CFD-J20", detail=str(error.detail), exit_status=2)
