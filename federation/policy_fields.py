"""The fields of a site's policy (`policy.yaml`): a meaning, a unit and a range for each. Pure.

What they decide for a plan is `federation.policy`.
"""

import re
from typing import Annotated, Any, Final, Literal
from zoneinfo import ZoneInfo, ZoneInfoNotFoundError

from pydantic import AfterValidator, BaseModel, BeforeValidator, ConfigDict, Field, model_validator

from federation.messages import Token

HOURS: Final = re.compile(r"([01][0-9]|2[0-3]):([0-5][0-9])-([01][0-9]|2[0-3]):([0-5][0-9]) ([A-Za-z0-9_+/-]{1,64})\Z")


def _listed(value: Any) -> Any:
    return (value,) if isinstance(value, str) else tuple(value) if isinstance(value, list) else value


_Tokens = Annotated[
    tuple[Token, ...],
    BeforeValidator(_listed, json_schema_input_type=Token | tuple[Token, ...]),
    Field(min_length=1, max_length=256),
]
_Names = Annotated[
    tuple[Annotated[str, Field(min_length=1, max_length=128)], ...],
    BeforeValidator(_listed, json_schema_input_type=str | tuple[str, ...]),
    Field(min_length=1, max_length=256),
]
_Unit = Literal["record", "entity", "site"]
_Mechanism = Literal["local-dp-sgd", "distributed", "none"]
_Epsilon = Annotated[float, Field(gt=0, le=1000, allow_inf_nan=False)]
_Metrics = Annotated[tuple[Literal["loss", "accuracy", "auc"], ...], Field(max_length=3)]


class _Part(BaseModel):
    model_config = ConfigDict(frozen=True, extra="forbid", strict=True)


class Conditions(_Part):
    """When a rule decides: all given conditions hold. A condition that is absent always holds."""

    purpose: Annotated[_Tokens | None, Field(description="codes of the plan's purpose")] = None
    dataset: Annotated[_Names | None, Field(description="names of this site's data sets")] = None
    contract: Annotated[_Tokens | None, Field(description="names of data contracts")] = None
    unit: Annotated[
        tuple[_Unit, ...] | None, BeforeValidator(_listed, json_schema_input_type=_Unit | tuple[_Unit, ...] | None)
    ] = None
    mechanism: Annotated[
        tuple[_Mechanism, ...] | None,
        BeforeValidator(_listed, json_schema_input_type=_Mechanism | tuple[_Mechanism, ...] | None),
    ] = None
    epsilon_per_job: Annotated[
        _Epsilon | None, Field(description="the plan's epsilon, and that of its metrics, is at most this")
    ] = None
    coordinator: Annotated[_Names | None, Field(description="the person who signed the plan, or the coordinator")] = (
        None
    )
    vouched: Annotated[bool, Field(description="also plans that only the coordinator's service signed")] = False
    reason: Annotated[str, Field(max_length=300, description="told to the other side")] = ""


class Rule(_Part):
    """One rule: `allow`, `ask` or `refuse`, with its conditions."""

    allow: Conditions | None = None
    ask: Conditions | None = None
    refuse: Conditions | None = None

    @model_validator(mode="after")
    def _one_verb(self) -> "Rule":
        if sum(part is not None for part in (self.allow, self.ask, self.refuse)) != 1:
            raise ValueError("a rule has exactly one of allow, ask, refuse")
        if self.refuse is not None and self.refuse.epsilon_per_job is not None:
            raise ValueError("epsilon_per_job limits what a rule allows; to refuse above a value use floors")
        return self

    @property
    def verb(self) -> str:
        """Return allow, ask or refuse."""
        return "allow" if self.allow is not None else "ask" if self.ask is not None else "refuse"

    @property
    def conditions(self) -> Conditions:
        """Return the conditions of the rule's one verb."""
        found = self.allow or self.ask or self.refuse
        return found if found is not None else Conditions()


class Floors(_Part):
    """What every plan must keep, whatever a rule says."""

    quorum: Annotated[int, Field(ge=1, le=4096, description="least quorum, of members accepted here")] = 1
    colluding: Annotated[int, Field(ge=0, le=4094, description="least colluding sites a secure sum survives")] = 0
    secure_aggregation: Annotated[
        Literal["required", "optional"], Field(description="optional lets the coordinator see what this site sends")
    ] = "required"
    epsilon_per_job: Annotated[_Epsilon | None, Field(description="most epsilon of one job, metrics apart")] = None
    delta_per_job: Annotated[float | None, Field(gt=0, lt=1, description="most delta of one job")] = None
    units_declared: Annotated[int, Field(ge=1, description="least units of a data set that trains")] = 1
    sampling_rate: Annotated[float, Field(gt=0, le=1, description="most of the units in one step")] = 1.0


class Ceilings(_Part):
    """The most that jobs may take of this site's machines."""

    accelerators: Annotated[int | None, Field(ge=0, le=64, description="accelerators of one job")] = None
    memory_gib: Annotated[int | None, Field(ge=1, le=16_384, description="main memory of one job, GiB")] = None
    upload_mbit_s: Annotated[float | None, Field(gt=0, description="upload rate, Mbit/s")] = None
    power_w: Annotated[float | None, Field(gt=0, description="power limit of an accelerator, watts")] = None


def _hours(text: str) -> str:
    parts = HOURS.match(text)
    if parts is None:
        raise ValueError("hours are written as 18:00-06:00 Europe/Berlin")
    try:
        ZoneInfo(parts[5])
    except (ZoneInfoNotFoundError, ValueError, OSError):
        raise ValueError(f"unknown time zone {parts[5]}") from None
    if parts[1] == parts[3] and parts[2] == parts[4]:
        raise ValueError("the hours begin and end at the same time")
    return text


class Policy(_Part):
    """The site's policy."""

    apiVersion: Literal["confide/v1"]  # noqa: N815 (the documents' own spelling)
    kind: Literal["SitePolicy"]
    default: Annotated[Literal["allow", "ask", "refuse"], Field(description="when no rule decides")] = "ask"
    rules: Annotated[tuple[Rule, ...], Field(max_length=256)] = ()
    floors: Floors = Floors()
    hours: Annotated[str | None, AfterValidator(_hours), Field(description="18:00-06:00 Europe/Berlin")] = None
    resources: Ceilings = Ceilings()
    members: Annotated[
        Literal["accept", "ask"], Field(description="accept new members of the charter without asking")
    ] = "ask"
    metrics_may_leave: Annotated[_Metrics, Field(description="with charged noise, or on units declared public")] = ()
    exact_metrics: Annotated[_Metrics, Field(description="exact counts, outside the guarantee")] = ()
    tell_budget_left: bool = False
