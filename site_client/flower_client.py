"""The site's work as a Flower `ClientApp`: its handlers are the phases of a round.

The same app runs behind the link (`ask`, called by the daemon) and in simulation, where one app stands for all virtual
sites and hands each message to the app of the site that it names (`make_virtual_app`). What a phase does is behind
`SiteWork`; this module only turns messages into calls, and whatever is raised into a failed reply with a code and a
reference: a trainer's text may hold values of the data, so it goes to `report`, the site's own log, and nowhere else.
"""

import re
import secrets
from collections.abc import Callable, Mapping
from typing import Any, Final, Protocol, cast

from federation import flower
from federation.errors import InvalidInput
from federation.messages import Outcome, PhaseReply, PhaseRequest, Reason
from site_client.virtual_ledger import Charged

_CODE: Final = re.compile(r"CFD-[A-Z][0-9]{2,3}\Z")
_INTERNAL: Final = "CFD-G01"
_OUT_OF_MEMORY: Final = "CFD-R51"

READY: Final = "ready"
"""Name of the query that asks whether a worker of the simulation engine can begin."""
_CHARGED: Final = "charged"

Handler = Callable[[PhaseRequest], PhaseReply]
Report = Callable[[PhaseRequest, str, BaseException], None]


class SiteWork(Protocol):
    """What a site does in the phases of a round; the trainer and the simulation implement it."""

    def train(self, request: PhaseRequest) -> PhaseReply:
        """Train from the model that `request.release` leads to, and return the reply with the update's reference.

        The same (job, round, attempt, phase) again returns the same reply, and nothing is trained twice. Durable
        before it returns: the budget spent, the update, the audit entry.
        """
        ...

    def evaluate(self, request: PhaseRequest) -> PhaseReply:
        """Score the model that `request.release` leads to on the site's held-out units."""
        ...


def make_client_app(
    work: SiteWork,
    *,
    new_reference: Callable[[], str],
    report: Report,
    queries: Mapping[str, Handler] | None = None,
) -> Any:
    """Return a `ClientApp` whose handlers do `work`.

    Args:
        work: The phases.
        new_reference: Gives a fresh id, under which `report` files what went wrong, and which the reply carries.
        report: Puts a problem into the site's own log: request, reference, exception.
        queries: Further phases by name, such as those of a secure sum; each answers ``query.NAME``.
    """
    app = flower.load_client().ClientApp()

    def answering(handler: Handler) -> Callable[[Any, Any], Any]:
        def answer(message: Any, _context: Any) -> Any:
            request = flower.content_to_body(message.content, kind="phase-request")
            reply = run_phase(handler, cast("PhaseRequest", request), new_reference=new_reference, report=report)
            metadata = message.metadata
            return flower.build_reply(
                message, flower.body_to_content(reply), message_id=reply.message_id, created_at_s=metadata.created_at
            )

        return answer

    app.train()(answering(work.train))
    app.evaluate()(answering(work.evaluate))
    for name, handler in (queries or {}).items():
        app.query(name)(answering(handler))
    return app


class VirtualSite(SiteWork, Protocol):
    """A site of a simulation, for one message."""

    @property
    def file(self) -> str:
        """Return the name of the file in the shared folder that holds the update; empty while there is none."""
        ...


class VirtualSites(Protocol):
    """The sites of a simulation; goes by pickle to the engine's workers, so it holds next to nothing."""

    def prepare(self) -> None:
        """Load in this process whatever the first phase would wait for."""
        ...

    def site(self, name: str, charged: Charged, *, until_s: float) -> VirtualSite:
        """Return one site.

        Args:
            name: Its id.
            charged: Its ledger so far; what it charges is added.
            until_s: When the phase closes, seconds since 1970.
        """
        ...

    def report(self, request: PhaseRequest, reference: str, problem: BaseException) -> None:
        """Put a problem into the worker's log."""
        ...


def make_virtual_app(sites: VirtualSites) -> Any:
    """Return the one `ClientApp` of a simulation: a message goes to the app of the virtual site that it names.

    What a site's ledger has charged lies in Flower's `Context` of the site's node, in the engine's memory.
    """
    app = flower.load_client().ClientApp()

    def answer(message: Any, context: Any) -> Any:
        name = flower.take_address(message.content)
        charged = _charged(context.state)
        until_s = message.metadata.created_at + message.metadata.ttl
        site = sites.site(name, charged, until_s=until_s)
        reply = make_client_app(site, new_reference=_new_reference, report=sites.report)(message, context)
        context.state[_CHARGED] = flower.config_record({"train": charged.train, "evaluate": charged.evaluate})
        if site.file:
            flower.attach_file(reply.content, site.file)
        return reply

    def ready(message: Any, _context: Any) -> Any:
        sites.prepare()
        asked = message.metadata
        return flower.build_reply(
            message, flower.empty_content(), message_id=asked.message_id, created_at_s=asked.created_at
        )

    app.train()(answer)
    app.evaluate()(answer)
    app.query(READY)(ready)
    return app


def _charged(state: Any) -> Charged:
    known = state.get(_CHARGED, {})
    return Charged(train=int(known.get("train", 0)), evaluate=int(known.get("evaluate", 0)))


def _new_reference() -> str:
    return secrets.token_hex(6)


def run_phase(
    handler: Handler, request: PhaseRequest, *, new_reference: Callable[[], str], report: Report
) -> PhaseReply:
    """Return what `handler` answers, or a failed reply with a code for whatever it raises."""
    try:
        reply = handler(request)
        asked = (request.job, request.round, request.attempt, request.phase)
        if (reply.job, reply.round, reply.attempt, reply.phase) != asked:
            raise InvalidInput("CFD-G01", "the reply belongs to another phase than the request")
    except (Exception, SystemExit) as problem:  # noqa: BLE001 (a phase ends in a reply, whatever a library does)
        reference = new_reference()
        report(request, reference, problem)
        return PhaseReply(
            message_id=new_reference(),
            job=request.job,
            round=request.round,
            attempt=request.attempt,
            phase=request.phase,
            outcome=Outcome.FAILED,
            reason=Reason(code=code_of(problem)),
            reference=reference,
        )
    return reply


def code_of(problem: BaseException) -> str:
    """Return the code that another party is told for `problem`; nothing else of it leaves the site."""
    code = getattr(problem, "code", None)
    if isinstance(code, str) and _CODE.match(code):
        return code
    return _OUT_OF_MEMORY if isinstance(problem, MemoryError) else _INTERNAL


def ask(app: Any, request: PhaseRequest, *, site: str, now_s: float) -> PhaseReply:
    """Return the app's reply to `request`, through a Flower message as every engine sends it.

    Args:
        app: From `make_client_app`.
        request: Its signature was checked.
        site: This site.
        now_s: Seconds since 1970, from the caller's clock.
    """
    message = flower.build_message(
        flower.body_to_content(request),
        job=request.job,
        source=1,
        destination=flower.number_of(site),
        message_id=request.message_id,
        group=f"{request.round}/{request.attempt}",
        message_type=flower.message_type_of(request.phase),
        created_at_s=now_s,
        ttl_s=float(request.deadline_s),
    )
    answer = app(message, flower.context_for(request.job, site))
    return cast("PhaseReply", flower.content_to_body(answer.content, kind="phase-reply"))
