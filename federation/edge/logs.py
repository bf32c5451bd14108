"""The operational log of a process: what runs and what broke, for the people who keep it running.

Rules: an event is a static name with identifiers beside it, never a sentence with values in it; the fields are those
of `Log`'s arguments and no others, so a type checker refuses a new one; updates, rows, counts, metrics, tokens and
paths never appear. Standard error carries JSON lines, or short plain lines on a terminal. Facts that somebody must be
able to prove go to the audit log, not here. What a library logs is reduced to where in its code it spoke, since its
text may hold anything.
"""

import json
import logging
import os
import re
import secrets
import sys
import traceback
from collections.abc import Mapping, MutableMapping
from types import TracebackType
from typing import Any, Final, TextIO

import structlog

from federation.edge.clock import Clock, SystemClock, rfc3339
from federation.edge.tables import visible

LEVELS: Final = ("debug", "info", "warning", "error")
_LEVEL_NUMBER: Final = {"debug": 10, "info": 20, "warning": 30, "error": 40}
_EVENT: Final = re.compile(r"[a-z][a-z0-9_]*(\.[a-z0-9_]+)*")
_ORDER: Final = ("ts", "level", "event", "job", "round", "site", "ref")
_MAX_FIELD: Final = 200


def new_reference() -> str:
    """Return a short id that ties a message to another party, or to a person, to a line of this log."""
    return secrets.token_hex(6)


class Log:
    """A place to say what happens; made by `open_log`.

    Args:
        logger: Writes events of at least the process's level.
        always: Writes events of every level.
        terminal: Where a person reads along, if one does.
    """

    def __init__(self, logger: Any, always: Any, terminal: TextIO | None) -> None:
        self._logger = logger
        self._always = always
        self.terminal: Final = terminal

    def debug(self, event: str, **fields: Any) -> None:
        """Log something that only a developer wants to know; the fields are those of `info`."""
        self._say("debug", event, fields)

    def info(
        self,
        event: str,
        *,
        job: str | None = None,
        round: int | None = None,  # noqa: A002 (the field's name, in every log)
        site: str | None = None,
        ref: str | None = None,
        code: str | None = None,
        phase: str | None = None,
        party: str | None = None,
        reason: str | None = None,
    ) -> None:
        """Log a step of normal work.

        Args:
            event: A static name such as ``site.connected``.
            job: Job id.
            round: Round number.
            site: Site id.
            ref: Reference id that another party or a person was given.
            code: ``CFD-…``.
            phase: Phase of a round, or state of a job.
            party: Another party's id, such as a witness.
            reason: A word from a fixed list, such as ``deadline``; never a sentence.
        """
        given = locals()
        self._say("info", event, {key: given.get(key) for key in _FIELDS})

    def announce(self, event: str, sentence: str, **fields: Any) -> None:
        """Say that the process is ready, stops or has stopped, whatever the level: what starts processes waits for it.

        Args:
            event: A static name, as that of `info`.
            sentence: What a person on a terminal reads in its place.
            fields: Those of `info`, and `address`: where the process listens, or whom it dials; `api`.
        """
        if self.terminal is not None:
            self.terminal.write(sentence + "\n")
            self.terminal.flush()
        else:
            self._say("info", event, fields, logger=self._always)

    def warning(self, event: str, **fields: Any) -> None:
        """Log something that somebody should look at soon; the fields are those of `info`."""
        self._say("warning", event, fields)

    def error(self, event: str, **fields: Any) -> None:
        """Log something that failed; the fields are those of `info`."""
        self._say("error", event, fields)

    def internal(self, event: str, problem: BaseException, **fields: Any) -> str:
        """Log an unexpected exception by the places it went through, and return the reference id to hand out.

        The exception's own text is left out: it may hold a value of somebody's data.
        """
        reference = fields.pop("ref", None) or new_reference()
        self._say("error", event, {**fields, "ref": reference}, trace=_places(problem))
        return str(reference)

    def _say(self, level: str, event: str, fields: dict[str, Any], *, logger: Any = None, **more: Any) -> None:
        if not _EVENT.fullmatch(event):
            raise ValueError("the name of an event is lower case words joined by '.' or '_'")
        if not _FIELDS.issuperset(fields):
            raise TypeError(f"fields that no log line has: {sorted(set(fields) - _FIELDS)}")
        given = {key: _short(value) for key, value in fields.items() if value is not None}
        getattr(logger or self._logger, level)(event, **given, **more)


_FIELDS: Final = frozenset({"job", "round", "site", "ref", "code", "phase", "party", "reason", "address", "api"})


def _short(value: Any) -> Any:
    return value if isinstance(value, int) else visible(str(value))[:_MAX_FIELD]


def _places(problem: BaseException) -> list[str]:
    places = [type(problem).__name__]
    cause: BaseException | None = problem
    while cause is not None and len(places) < 60:
        frames = traceback.extract_tb(cause.__traceback__)
        places += [f"{os.path.basename(frame.filename)}:{frame.lineno} {frame.name}" for frame in frames]
        cause = cause.__cause__ or cause.__context__
        if cause is not None:
            places.append(f"from {type(cause).__name__}")
    return places


def _known_fields(logger: Any, method: str, event: MutableMapping[str, Any]) -> Mapping[str, Any]:
    """Keep the fields that a line may have; an exception becomes the places that it went through."""
    problem = event.pop("exc_info", None)
    kept = {key: value if key in _AS_THEY_ARE else _short(value) for key, value in event.items() if key in _WRITTEN}
    if isinstance(problem, BaseException):
        kept["trace"] = _places(problem)
    return kept


_AS_THEY_ARE: Final = frozenset({"event", "trace"})
_WRITTEN: Final = _FIELDS | _AS_THEY_ARE


class _Stamp:
    def __init__(self, clock: Clock) -> None:
        self._clock = clock

    def __call__(self, logger: Any, method: str, event: MutableMapping[str, Any]) -> Mapping[str, Any]:
        line = {**event, "ts": rfc3339(self._clock.now()), "level": method}
        return {key: line[key] for key in _ORDER if key in line} | line


def _as_json(logger: Any, method: str, event: MutableMapping[str, Any]) -> str:
    return json.dumps(event)


def _as_line(logger: Any, method: str, event: MutableMapping[str, Any]) -> str:
    trace = event.pop("trace", [])
    stamp, level, name = event.pop("ts"), event.pop("level"), event.pop("event")
    fields = "".join(f" {key}={value}" for key, value in event.items())
    return "\n".join([f"{stamp} {level:<7} {name}{fields}", *(f"    {place}" for place in trace)])


class _FromLibraries(logging.Handler):
    """Turns a library's record into one event that says where in the library it was logged."""

    def __init__(self, logger: Any) -> None:
        super().__init__(logging.WARNING)
        self._logger = logger

    def emit(self, record: logging.LogRecord) -> None:
        where = f"{record.name}:{record.funcName}:{record.lineno}"
        method = "error" if record.levelno >= logging.ERROR else "warning"
        getattr(self._logger, method)("library.message", reason=visible(where)[:_MAX_FIELD])


def open_log(
    *, level: str = "info", to: TextIO | None = None, clock: Clock | None = None, lines: bool | None = None
) -> Log:
    """Return this process's log, and make `structlog.get_logger` and libraries speak through it.

    Args:
        level: The least level that is written, one of `LEVELS`.
        to: Where to; standard error by default.
        clock: Whose time stamps the lines.
        lines: True for JSON lines, False for plain lines; by default plain on a terminal.
    """
    stream = to or sys.stderr
    as_json = not stream.isatty() if lines is None else lines
    processors: list[Any] = [_known_fields, _Stamp(clock or SystemClock()), _as_json if as_json else _as_line]
    structlog.configure(
        processors=processors,
        wrapper_class=structlog.make_filtering_bound_logger(_LEVEL_NUMBER[level]),
        logger_factory=structlog.WriteLoggerFactory(stream),
        cache_logger_on_first_use=False,
    )
    logger = structlog.get_logger()
    root = logging.getLogger()
    for handler in [handler for handler in root.handlers if isinstance(handler, _FromLibraries)]:
        root.removeHandler(handler)
    root.addHandler(_FromLibraries(logger))
    root.setLevel(logging.WARNING)
    logging.captureWarnings(capture=True)
    always = structlog.wrap_logger(
        structlog.WriteLogger(stream), processors, wrapper_class=structlog.make_filtering_bound_logger("debug")
    )
    return Log(logger, always, None if as_json else stream)


def catch_the_rest(log: Log) -> None:
    """Make an exception that nobody caught end in the log, by its places only, and on a terminal as one line too."""

    def last(kind: type[BaseException], problem: BaseException, trace: TracebackType | None) -> None:
        reference = log.internal("process.crashed", problem)
        if log.terminal is not None:
            log.terminal.write(f"error CFD-G01: internal error, reference {reference}\n")

    sys.excepthook = last
