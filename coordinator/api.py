"""The coordinator's REST API, `/api/v1`: what the `job` commands, programs and later the console call. A thin edge.

Rules: `access` says who may call what, and records who came; errors and bounds of bodies are those of `api_problems`;
nothing here decides anything about a job.
The listener is on loopback unless the configuration says otherwise, and speaks plain HTTP: put a TLS-terminating
proxy in front of it to reach it from elsewhere.
"""

import json
import socket
import threading
from collections.abc import Iterator
from pathlib import Path
from typing import Annotated, Any, Final

from fastapi import Depends, FastAPI, Header, Query, Request
from fastapi.responses import FileResponse, JSONResponse, Response, StreamingResponse
from pydantic import BaseModel, ConfigDict, Field

from coordinator.access import Access, Caller
from coordinator.api_problems import BoundedBody, add_errors
from coordinator.api_views import IdentityView, ResolvedView, SubmittedView, WhyView
from coordinator.service import CoordinatorService
from coordinator.views import EventView, JobView, PreviewView, ResultView, SiteView, ValidationView
from federation.edge.logs import Log
from federation.errors import ConfigurationWrong, InvalidInput
from federation.messages import HexBytes
from federation.words import fingerprint_words

PREFIX: Final = "/api/v1"
MAX_REQUEST_BYTES: Final = 4 << 20
MAX_NUMBER: Final = 2**63 - 1
"""The greatest number that a database column holds."""
WATCH_WAIT_S: Final = 15.0


class Document(BaseModel):
    """A request body: frozen, unknown fields refused."""

    model_config = ConfigDict(frozen=True, extra="forbid", strict=True)


class PlanRequest(Document):
    """A plan as its author wrote it, with the contract where the author has it."""

    plan: Annotated[str, Field(max_length=1 << 20)]
    contract: Annotated[str, Field(max_length=1 << 20)] | None = None
    sites: tuple[str, ...] | None = Field(default=None, max_length=4096)


class SubmitRequest(Document):
    """A resolved plan's canonical bytes (hex) and its submitter's signature."""

    plan: HexBytes
    signature: HexBytes | None = None
    contract: Annotated[str, Field(max_length=1 << 20)] | None = None
    priority: Annotated[int, Field(ge=0, le=100)] | None = None


class CancelRequest(Document):
    """Why a job is cancelled."""

    reason: Annotated[str, Field(max_length=300)] = ""


class RetryRequest(Document):
    """The round whose released predecessor a new job begins with."""

    from_round: Annotated[int, Field(ge=0, le=1_000_000)]


def _permission(act: str, access: Access) -> Any:
    def check(request: Request, authorization: Annotated[str | None, Header()] = None) -> Caller:
        address = "" if request.client is None else request.client.host
        return access.admit(act, authorization, address=address, job=request.path_params.get("job"))

    return Depends(check)


def _events(service: CoordinatorService, job: str, after: int) -> Iterator[bytes]:
    """Yield server-sent events of a job until it has ended; a comment line keeps an idle connection alive."""
    while True:
        found = service.watch(job, after=after, wait_s=WATCH_WAIT_S)
        for event in found:
            after = event.number
            data = json.dumps(event.model_dump(mode="json"), separators=(",", ":"))
            yield f"id: {event.number}\nevent: {event.name}\ndata: {data}\n\n".encode()
        if not found:
            yield b": still here\n\n"
        if service.show(job).state in ("completed", "failed", "cancelled") and not service.events(job, after=after):
            return


def _contract(text: str | None) -> bytes | None:
    return None if text is None else text.encode("utf-8")


def create_app(service: CoordinatorService, access: Access, log: Log) -> FastAPI:
    """Return the API over `service`; `access` admits its callers."""
    app = FastAPI(
        title="Confide coordinator", version="1", openapi_url=f"{PREFIX}/openapi.json", docs_url=None, redoc_url=None
    )
    app.add_middleware(BoundedBody, limit_bytes=MAX_REQUEST_BYTES)
    add_errors(app, log)
    _add_health(app, service)
    _add_plans(app, service, access)
    _add_jobs(app, service, access)
    _add_acts(app, service, access)
    _add_results(app, service, access)
    return app


def _add_health(app: FastAPI, service: CoordinatorService) -> None:
    @app.get("/healthz", include_in_schema=False)
    def healthz() -> dict[str, str]:
        return {"status": "alive"}

    @app.get("/readyz", include_in_schema=False)
    def readyz() -> JSONResponse:
        # What is wrong is for the log and the people with a token; a stranger learns yes or no.
        ready = not service.ready()
        return JSONResponse({"status": "ready" if ready else "not ready"}, status_code=200 if ready else 503)


def _add_plans(app: FastAPI, service: CoordinatorService, access: Access) -> None:
    @app.post(f"{PREFIX}/plans/validate")
    def validate(body: PlanRequest, caller: Annotated[Caller, _permission("validate", access)]) -> ValidationView:
        return service.validate(body.plan.encode(), contract=_contract(body.contract), actor=caller.name)

    @app.post(f"{PREFIX}/plans/resolve", dependencies=[_permission("resolve", access)])
    def resolve(body: PlanRequest) -> ResolvedView:
        found = service.resolve(body.plan.encode(), contract=_contract(body.contract))
        return ResolvedView(plan=found.data.hex(), digest=found.digest, contract=found.contract.decode("utf-8"))

    @app.post(f"{PREFIX}/plans/preview")
    def preview(
        body: PlanRequest, caller: Annotated[Caller, _permission("preview", access)]
    ) -> tuple[PreviewView, ...]:
        contract = _contract(body.contract)
        return service.previews(body.plan.encode(), body.sites, submitter=caller.name, contract=contract)

    @app.get(f"{PREFIX}/identity", dependencies=[_permission("sites", access)])
    def identity() -> IdentityView:
        public = service.identity_public
        return IdentityView(identity=public.hex(), words=fingerprint_words(public))

    @app.get(f"{PREFIX}/sites", dependencies=[_permission("sites", access)])
    def sites() -> tuple[SiteView, ...]:
        return service.sites()


def _add_jobs(app: FastAPI, service: CoordinatorService, access: Access) -> None:
    @app.post(f"{PREFIX}/jobs", status_code=201)
    def submit(
        body: SubmitRequest,
        caller: Annotated[Caller, _permission("submit", access)],
        idempotency_key: Annotated[str | None, Header(max_length=128)] = None,
    ) -> SubmittedView:
        job, new = service.submit(
            bytes.fromhex(body.plan),
            submitter=caller.name,
            signature=None if body.signature is None else bytes.fromhex(body.signature),
            contract=_contract(body.contract),
            priority=body.priority,
            idempotency_key=idempotency_key,
        )
        return SubmittedView(new=new, job=job)

    @app.get(f"{PREFIX}/jobs", dependencies=[_permission("list", access)])
    def list_jobs(
        state: Annotated[list[str] | None, Query(max_length=16)] = None,
        before: Annotated[int | None, Query(ge=0, le=MAX_NUMBER)] = None,
        limit: Annotated[int, Query(ge=1, le=1000)] = 100,
    ) -> tuple[JobView, ...]:
        return service.list_jobs(state, before=before, limit=limit)

    @app.get(f"{PREFIX}/jobs/{{job}}", dependencies=[_permission("show", access)])
    def show(job: str) -> JobView:
        return service.show(job)

    @app.get(f"{PREFIX}/jobs/{{job}}/why", dependencies=[_permission("why", access)])
    def why(job: str) -> WhyView:
        return WhyView(job=job, why=service.why(job))

    @app.get(f"{PREFIX}/jobs/{{job}}/events", dependencies=[_permission("events", access)])
    def events(
        job: str,
        after: Annotated[int, Query(ge=0, le=MAX_NUMBER)] = 0,
        limit: Annotated[int, Query(ge=1, le=1000)] = 500,
    ) -> tuple[EventView, ...]:
        return service.events(job, after=after, limit=limit)

    @app.get(f"{PREFIX}/jobs/{{job}}/watch", dependencies=[_permission("watch", access)])
    def watch(job: str, last_event_id: Annotated[int, Header(ge=0, le=MAX_NUMBER)] = 0) -> StreamingResponse:
        service.show(job)  # an unknown job is an error now, not in the middle of a stream
        return StreamingResponse(
            _events(service, job, last_event_id),
            media_type="text/event-stream",
            headers={"Cache-Control": "no-store", "X-Accel-Buffering": "no"},
        )

    @app.get(f"{PREFIX}/jobs/{{job}}/plan", dependencies=[_permission("show", access)])
    def plan(job: str) -> Response:
        return Response(service.plan(job), media_type="application/json")

    @app.get(f"{PREFIX}/jobs/{{job}}/contract", dependencies=[_permission("show", access)])
    def contract(job: str) -> Response:
        return Response(service.contract(job), media_type="application/json")


def _add_acts(app: FastAPI, service: CoordinatorService, access: Access) -> None:
    @app.post(f"{PREFIX}/jobs/{{job}}/pause")
    def pause(job: str, caller: Annotated[Caller, _permission("pause", access)]) -> JobView:
        return service.pause(job, caller.name)

    @app.post(f"{PREFIX}/jobs/{{job}}/resume")
    def resume(job: str, caller: Annotated[Caller, _permission("resume", access)]) -> JobView:
        return service.resume(job, caller.name)

    @app.post(f"{PREFIX}/jobs/{{job}}/cancel")
    def cancel(job: str, body: CancelRequest, caller: Annotated[Caller, _permission("cancel", access)]) -> JobView:
        return service.cancel(job, caller.name, body.reason)

    @app.post(f"{PREFIX}/jobs/{{job}}/retry", dependencies=[_permission("retry", access)])
    def retry(job: str, body: RetryRequest) -> ResolvedView:
        found = service.resolve_retry(job, body.from_round)
        return ResolvedView(plan=found.data.hex(), digest=found.digest, contract=found.contract.decode("utf-8"))


def _add_results(app: FastAPI, service: CoordinatorService, access: Access) -> None:
    @app.get(f"{PREFIX}/jobs/{{job}}/result", dependencies=[_permission("result", access)])
    def result(job: str) -> ResultView:
        found = service.result_files(job)
        # Where a file lies on the coordinator is nobody else's business.
        files = tuple(file.model_copy(update={"path": ""}) for file in found.files)
        return found.model_copy(update={"files": files})

    @app.get(f"{PREFIX}/jobs/{{job}}/result/{{name}}")
    def file(job: str, name: str, caller: Annotated[Caller, _permission("file", access)]) -> FileResponse:
        # The name is looked up in the result's list, never joined to a folder.
        for item in service.result_files(job).files:
            if item.name == name:
                service.callers.exported(caller.name, caller.role, job, item)
                return FileResponse(Path(item.path), media_type="application/octet-stream", filename=name)
        raise InvalidInput("CFD-J02", f"job {job} has no result file of that name")


class ApiServer:
    """The API on its own listener, in a thread of this process."""

    def __init__(self, app: FastAPI, *, host: str, port: int) -> None:
        import uvicorn

        self._server = uvicorn.Server(
            uvicorn.Config(
                app,
                host=host,
                port=port,
                log_config=None,
                access_log=False,
                server_header=False,
                timeout_graceful_shutdown=3,
                h11_max_incomplete_event_size=64 << 10,
            )
        )
        self._thread: threading.Thread | None = None
        self._host, self._port = host, port

    def _run(self, listener: socket.socket) -> None:
        self._server.run(sockets=[listener])

    def start(self) -> int:
        """Listen and serve; return the port.

        Raises:
            ConfigurationWrong: The port is in use or not ours to take; nothing was started.
        """
        family = socket.AF_INET6 if ":" in self._host else socket.AF_INET
        listener = socket.socket(family, socket.SOCK_STREAM)
        listener.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        try:
            listener.bind((self._host, self._port))
        except OSError as error:
            listener.close()
            text = f"the API can't listen on {self._host} port {self._port}: {error.strerror}"
            raise ConfigurationWrong("CFD-J13", text) from None
        self._thread = threading.Thread(target=self._run, args=(listener,), name="api", daemon=True)
        self._thread.start()
        port: int = listener.getsockname()[1]
        return port

    def stop(self) -> None:
        """Stop serving; requests in work get three seconds."""
        self._server.should_exit = True
        if self._thread is not None:
            self._thread.join(timeout=10)
