"""The unit of account: one executed release, as an event with its parameters.

An event says what was done, not what it cost: any later accountant can compute a cost from it again. All events are
for the neighbouring relation "add or remove one unit". Real numbers are stored as the string of `float.hex`, so
nothing depends on how a language prints a float (privacy design, 7.1 and 7.4).
"""

import json
import math
from collections.abc import Mapping
from typing import Annotated, Any, Final, Literal, assert_never

from pydantic import BaseModel, BeforeValidator, ConfigDict, Field, PlainSerializer, TypeAdapter


def _from_hex(value: Any) -> Any:
    if isinstance(value, str):
        number = float.fromhex(value)
        if number.hex() != value:
            raise ValueError("not the canonical hexadecimal form of a float")
        value = number
    if isinstance(value, float) and not math.isfinite(value):
        raise ValueError("not a finite number")
    return value


HexFloat = Annotated[
    float, BeforeValidator(_from_hex), PlainSerializer(lambda number: float(number).hex(), when_used="json")
]
PositiveHexFloat = Annotated[HexFloat, Field(gt=0)]


class Frozen(BaseModel):
    """A value of the ledger: immutable, strict, no unknown keys."""

    model_config = ConfigDict(frozen=True, extra="forbid", strict=True)


class Gaussian(Frozen):
    """One vector with Gaussian noise, continuous or discrete, of deviation `noise_multiplier` × sensitivity."""

    kind: Literal["gaussian"] = "gaussian"
    noise_multiplier: PositiveHexFloat


class PoissonGaussian(Frozen):
    """The same, computed on units that were each drawn independently with probability `sampling_rate`."""

    kind: Literal["poisson-gaussian"] = "poisson-gaussian"
    sampling_rate: Annotated[HexFloat, Field(gt=0, le=1)]
    noise_multiplier: PositiveHexFloat


class Laplace(Frozen):
    """One number with Laplace noise of scale `noise_multiplier` × sensitivity."""

    kind: Literal["laplace"] = "laplace"
    noise_multiplier: PositiveHexFloat


class PureEpsilon(Frozen):
    """A release that is (`epsilon`, 0)-differentially private, by whatever means."""

    kind: Literal["pure-epsilon"] = "pure-epsilon"
    epsilon: PositiveHexFloat


class RowSampledGaussian(Frozen):
    """Gaussian noise on rows that were each drawn with probability `sampling_rate`, for who has `rows` of them.

    The sum moves by as many clips as rows of that person were drawn: a mixture of Gaussians with binomial weights.
    """

    kind: Literal["row-sampled-gaussian"] = "row-sampled-gaussian"
    sampling_rate: Annotated[HexFloat, Field(gt=0, le=1)]
    noise_multiplier: PositiveHexFloat
    rows: Annotated[int, Field(ge=1, le=1024)]


Event = Annotated[Gaussian | PoissonGaussian | Laplace | PureEpsilon | RowSampledGaussian, Field(discriminator="kind")]

EVENT: Final[TypeAdapter[Gaussian | PoissonGaussian | Laplace | PureEpsilon | RowSampledGaussian]] = TypeAdapter(Event)

LOCAL: Final = "local"
"""The trust model of bounds that hold against everyone."""


def event_under(events: Mapping[str, Event], trust: str) -> Event:
    """Return what a job does under a trust model; a local event counts under every one."""
    return events.get(trust, events[LOCAL])


def claimed_trust(events: Mapping[str, Event]) -> str:
    """Return the trust model that a job's own ε is about: that of its joint noise where it has one, else local."""
    return next((trust for trust in sorted(events) if trust != LOCAL), LOCAL)


def for_rows(event: Event, rows: int) -> Event:
    """Return what an event on rows is for somebody with `rows` of them: the sum moves by up to so many clips."""
    match event:
        case Gaussian():
            return Gaussian(noise_multiplier=event.noise_multiplier / rows)
        case PoissonGaussian():
            return RowSampledGaussian(
                sampling_rate=event.sampling_rate, noise_multiplier=event.noise_multiplier, rows=rows
            )
        case Laplace():
            return Laplace(noise_multiplier=event.noise_multiplier / rows)
        case PureEpsilon():
            return PureEpsilon(epsilon=event.epsilon * rows)
        case RowSampledGaussian():
            return event.model_copy(update={"rows": event.rows * rows})
        case _:
            assert_never(event)


def event_text(event: Event) -> str:
    """Return `event` as one line of JSON with sorted keys."""
    return json.dumps(event.model_dump(mode="json"), sort_keys=True, separators=(",", ":"))


def event_from_text(text: str) -> Event:
    """Return the event that `event_text` wrote.

    Raises:
        pydantic.ValidationError: Unknown kind or key, or a parameter out of range.
    """
    return EVENT.validate_json(text)


def training_event(sampling_rate: float, noise_multiplier: float) -> Gaussian | PoissonGaussian:
    """Return the event of one training step: sampled, unless every unit takes part."""
    if sampling_rate >= 1.0:
        return Gaussian(noise_multiplier=noise_multiplier)
    return PoissonGaussian(sampling_rate=sampling_rate, noise_multiplier=noise_multiplier)
