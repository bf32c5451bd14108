"""`Federation`: the coordinator's API from Python, and what the `job` commands themselves use.

A refusal arrives as `ApiProblem` with the code, hint and exit status that the coordinator gave; a coordinator that
doesn't answer is `Unreachable`. Requests that may be repeated without harm are repeated once after a broken
connection; a submission carries an idempotency key, so that repeating it can't make a second job.
"""

import json
import secrets
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any, Final, Self, TypeVar

import httpx
from pydantic import TypeAdapter

from coordinator.api_views import IdentityView, ResolvedView, SubmittedView, WhyView
from coordinator.views import EventView, JobView, PreviewView, ResultView, SiteView, ValidationView
from federation.errors import Unreachable

T = TypeVar("T")
PREFIX: Final = "/api/v1"
ENDED: Final = frozenset({"completed", "failed", "cancelled"})


class ApiProblem(Exception):
    """The coordinator said no; `code`, `hint`, `exit_status` and `reference` are its own."""

    def __init__(self, document: dict[str, Any], status: int) -> None:
        super().__init__(str(document.get("detail") or f"the coordinator answered HTTP {status}"))
        self.code = str(document.get("code") or "CFD-J20")
        self.hint = str(document.get("hint") or "")
        self.reference = str(document.get("reference") or "")
        found = document.get("exit_status")
        self.exit_status = found if isinstance(found, int) and 0 < found < 256 else 1
        self.status = status


class Federation:
    """The coordinator at `url`, seen by the person whose `token` this is.

    Args:
        url: Such as ``http://127.0.0.1:8444``.
        token: The person's API token.
        timeout_s: Longest wait for an answer; previews and streams have their own.
    """

    def __init__(self, url: str, token: str, *, timeout_s: float = 30.0) -> None:
        self._url = url.rstrip("/")
        # Loopback needs no proxy, and an API elsewhere is named by its full URL: the environment decides nothing here.
        self._http = httpx.Client(
            base_url=self._url + PREFIX,
            headers={"Authorization": f"Bearer {token}"},
            timeout=timeout_s,
            trust_env=False,
            transport=httpx.HTTPTransport(retries=1),
        )

    def __repr__(self) -> str:
        return f"Federation({self._url!r}, <hidden>)"

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def close(self) -> None:
        """Close the connections."""
        self._http.close()

    def validate(self, plan: str, *, contract: str | None = None) -> ValidationView:
        """Return what the coordinator makes of a plan's text; nothing is kept."""
        return self._post("/plans/validate", {"plan": plan, "contract": contract}, ValidationView)

    def resolve(self, plan: str, *, contract: str | None = None) -> ResolvedView:
        """Return the plan with every open field filled in, and its contract."""
        return self._post("/plans/resolve", {"plan": plan, "contract": contract}, ResolvedView)

    def previews(
        self, plan: str, sites: Sequence[str] | None = None, *, contract: str | None = None
    ) -> tuple[PreviewView, ...]:
        """Return what each site would answer now; nothing is reserved."""
        body = {"plan": plan, "contract": contract, "sites": None if sites is None else list(sites)}
        return self._post("/plans/preview", body, tuple[PreviewView, ...], timeout_s=90.0)

    def submit(
        self,
        plan: bytes,
        *,
        signature: bytes | None,
        contract: str | None = None,
        priority: int | None = None,
        idempotency_key: str | None = None,
    ) -> SubmittedView:
        """Submit a resolved plan's canonical bytes; the same key gives the same job."""
        body = {
            "plan": plan.hex(),
            "signature": None if signature is None else signature.hex(),
            "contract": contract,
            "priority": priority,
        }
        headers = {"Idempotency-Key": idempotency_key or secrets.token_hex(16)}
        return self._post("/jobs", body, SubmittedView, headers=headers)

    def jobs(self, states: Sequence[str] = (), *, limit: int = 100) -> tuple[JobView, ...]:
        """Return jobs, newest first."""
        query: dict[str, Any] = {"limit": limit}
        if states:
            query["state"] = list(states)
        return self._parse(self._send("GET", "/jobs", params=query), tuple[JobView, ...])

    def job(self, job: str) -> JobView:
        """Return one job with its sites and rounds."""
        return self._parse(self._send("GET", f"/jobs/{_segment(job)}"), JobView)

    def why(self, job: str) -> str:
        """Return why a job isn't running, in one sentence."""
        return self._parse(self._send("GET", f"/jobs/{_segment(job)}/why"), WhyView).why

    def pause(self, job: str) -> JobView:
        """Pause a job at the end of its phase."""
        return self._post(f"/jobs/{_segment(job)}/pause", None, JobView)

    def resume(self, job: str) -> JobView:
        """Go on with a paused job."""
        return self._post(f"/jobs/{_segment(job)}/resume", None, JobView)

    def cancel(self, job: str, reason: str = "") -> JobView:
        """End a job for good."""
        return self._post(f"/jobs/{_segment(job)}/cancel", {"reason": reason}, JobView)

    def resolve_retry(self, job: str, from_round: int) -> ResolvedView:
        """Return the plan of a new job that begins with the model before `from_round`; sign and submit it."""
        return self._post(f"/jobs/{_segment(job)}/retry", {"from_round": from_round}, ResolvedView)

    def sites(self) -> tuple[SiteView, ...]:
        """Return the member sites and their links."""
        return self._parse(self._send("GET", "/sites"), tuple[SiteView, ...])

    def plan(self, job: str) -> dict[str, Any]:
        """Return a job's plan as a document; reals as the text of `float.hex`."""
        document: dict[str, Any] = json.loads(self.plan_bytes(job))
        return document

    def plan_bytes(self, job: str) -> bytes:
        """Return the canonical bytes of a job's plan."""
        return self._send("GET", f"/jobs/{_segment(job)}/plan").content

    def contract_bytes(self, job: str) -> bytes:
        """Return the canonical bytes of the data contract that a job's plan names."""
        return self._send("GET", f"/jobs/{_segment(job)}/contract").content

    def identity(self) -> str:
        """Return the coordinator's identity key, 64 hex digits: compare its words before you trust it."""
        return self._parse(self._send("GET", "/identity"), IdentityView).identity

    def result(self, job: str) -> ResultView:
        """Return what a job's result consists of."""
        return self._parse(self._send("GET", f"/jobs/{_segment(job)}/result"), ResultView)

    def download(self, job: str, name: str, target: Path) -> None:
        """Write a result file to `target`, mode 0600, complete or not at all."""
        partial = target.with_name(target.name + ".part")
        partial.touch(mode=0o600)
        try:
            with self._http.stream("GET", f"/jobs/{_segment(job)}/result/{_segment(name)}") as answer:
                if answer.status_code >= 400:
                    answer.read()
                    raise _problem(answer)
                with partial.open("wb") as sink:
                    for chunk in answer.iter_bytes(1 << 20):
                        sink.write(chunk)
            partial.replace(target)
        except httpx.TransportError as error:
            raise self._unreachable(error) from None
        finally:
            partial.unlink(missing_ok=True)

    def watch(self, job: str, *, after: int = 0) -> Iterator[EventView]:
        """Yield a job's events as they happen, until it has ended; reconnects by itself after a cut."""
        failures = 0
        while True:
            try:
                for event in self._stream(job, after):
                    after, failures = event.number, 0
                    yield event
                if self.job(job).state in ENDED:
                    return
            except (httpx.TransportError, Unreachable) as error:
                failures += 1
                if failures > 60:
                    raise self._unreachable(error) from None
                _pause(min(5.0, 0.25 * failures))

    def _stream(self, job: str, after: int) -> Iterator[EventView]:
        headers = {"Accept": "text/event-stream", "Last-Event-ID": str(after)}
        timeout = httpx.Timeout(30.0, read=60.0)
        with self._http.stream("GET", f"/jobs/{_segment(job)}/watch", headers=headers, timeout=timeout) as answer:
            if answer.status_code >= 400:
                answer.read()
                raise _problem(answer)
            for line in answer.iter_lines():
                if line.startswith("data: "):
                    yield EventView.model_validate_json(line.removeprefix("data: "))

    def _post(
        self,
        path: str,
        body: Any,
        kind: type[T],
        *,
        headers: dict[str, str] | None = None,
        timeout_s: float | None = None,
    ) -> T:
        content = b"" if body is None else json.dumps(body).encode()
        extra: dict[str, Any] = {} if timeout_s is None else {"timeout": timeout_s}
        all_headers = {"Content-Type": "application/json", **(headers or {})}
        return self._parse(self._send("POST", path, content=content, headers=all_headers, **extra), kind)

    def _send(self, method: str, path: str, **arguments: Any) -> httpx.Response:
        try:
            answer = self._http.request(method, path, **arguments)
        except httpx.TransportError as error:
            raise self._unreachable(error) from None
        if answer.status_code >= 400:
            raise _problem(answer)
        return answer

    def _parse(self, answer: httpx.Response, kind: type[T]) -> T:
        return TypeAdapter(kind).validate_json(answer.content)

    def _unreachable(self, error: Exception) -> Unreachable:
        kind = type(error).__name__
        return Unreachable("CFD-J23", f"the coordinator's API at {self._url} doesn't answer ({kind})")


def _problem(answer: httpx.Response) -> ApiProblem:
    try:
        document = json.loads(answer.content)
    except (UnicodeDecodeError, json.JSONDecodeError):
        document = {}
    return ApiProblem(document if isinstance(document, dict) else {}, answer.status_code)


def _segment(text: str) -> str:
    from urllib.parse import quote

    return quote(text, safe="")


def _pause(seconds: float) -> None:
    from federation.edge.clock import SystemClock

    SystemClock().sleep(seconds)
