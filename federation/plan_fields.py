"""The fields of a plan (`job.yaml`): one frozen model a section, a meaning, a unit and a range for each field. Pure.

Here a value is judged by itself; how fields must agree with each other is `federation.plan_checks`. Absent fields
that depend on others (`unit`, `quorum`, `dropouts`, `evaluate.epsilon`, `data.contract_digest`) are None until
`plan.resolve` fills them at submission.
"""

from typing import Annotated, Any, Final, Literal

from pydantic import AfterValidator, BaseModel, BeforeValidator, ConfigDict, Field, ValidationInfo

from federation.messages import Digest, JobName, SiteName, Token

API_VERSION: Final = "confide/v1"
METRICS: Final = ("loss", "accuracy", "auc")
CANONICAL: Final = {"canonical": True}


def _real(value: Any, info: ValidationInfo) -> Any:
    """Turn the text of `float.hex` into its number in canonical bytes; leave everything else to the strict check."""
    if info.context != CANONICAL:
        return value
    if not isinstance(value, str):
        raise ValueError("a real number travels as the text of float.hex")
    return float.fromhex(value)


def _ordered(metrics: tuple[str, ...]) -> tuple[str, ...]:
    if len(set(metrics)) != len(metrics):
        raise ValueError("a metric stands twice")
    return tuple(metric for metric in METRICS if metric in metrics)


def _sites(invite: tuple[str, ...]) -> tuple[str, ...]:
    twice = sorted({site for site in invite if invite.count(site) > 1}) if len(set(invite)) != len(invite) else []
    if twice:
        raise ValueError(f"site {twice[0]} stands twice")
    if "coordinator" in invite:
        raise ValueError("the name coordinator is reserved")
    return tuple(sorted(invite))


_HEX = BeforeValidator(_real)
_Positive = Annotated[float, Field(gt=0, le=1e6, allow_inf_nan=False), _HEX]
_Fraction = Annotated[float, Field(ge=0, lt=1, allow_inf_nan=False), _HEX]
_Decay = Annotated[float, Field(ge=0, le=1, allow_inf_nan=False), _HEX]
_Tail = Annotated[float, Field(ge=0, lt=0.5, allow_inf_nan=False), _HEX]
_Epsilon = Annotated[float, Field(gt=0, le=1000, allow_inf_nan=False), _HEX]
_Delta = Annotated[float, Field(gt=0, lt=1, allow_inf_nan=False), _HEX]
_NoiseMultiplier = Annotated[float, Field(gt=0, le=10_000, allow_inf_nan=False), _HEX]


class Section(BaseModel):
    """A part of the plan: frozen, strict, unknown keys refused."""

    model_config = ConfigDict(frozen=True, extra="forbid", strict=True)


class Purpose(Section):
    """What the data may be used for, in this job only."""

    code: Annotated[Token, Field(description="a term such as DUO:0000007, or a word that the policies know")]
    text: Annotated[str, Field(min_length=1, max_length=2000, description="the purpose in one sentence")]
    basis: Annotated[Token | None, Field(description="legal basis, as a code")] = None
    permit: Annotated[Token | None, Field(description="number of the permit or ethics approval")] = None


class DataNeeded(Section):
    """Which data sets the job runs on, by the contract that they fulfil."""

    contract: Annotated[Token, Field(description="name of the data contract, such as heart-disease/v1")]
    label: Annotated[str, Field(min_length=1, max_length=128, description="the column to predict")]
    contract_digest: Annotated[
        Digest | None, Field(description="SHA-256 of the contract's canonical bytes; filled in at submission")
    ] = None


class LogisticModel(Section):
    """One linear layer with one output: the log-odds of the positive class."""

    kind: Literal["logistic"]


class MlpModel(Section):
    """Fully connected layers of the given widths, then one output: the log-odds of the positive class."""

    kind: Literal["mlp"]
    hidden: Annotated[
        tuple[Annotated[int, Field(ge=1, le=65_536)], ...],
        Field(min_length=1, max_length=16, description="widths of the hidden layers, in order"),
    ]
    activation: Literal["relu", "tanh"] = "relu"


class _ImageModel(Section):
    """A model of images; a row of the data holds channels · height · width numbers, in this order."""

    channels: Annotated[int, Field(ge=1, le=64, description="colours of an image")] = 1
    height: Annotated[int, Field(ge=14, le=1024, description="rows of pixels")]
    width: Annotated[int, Field(ge=14, le=1024, description="columns of pixels")]


class CnnModel(_ImageModel):
    """Two convolutions with pooling, a hidden layer of 32, then the outputs; 26,010 weights for ten digits of 28²."""

    kind: Literal["cnn"]


class Resnet18Model(_ImageModel):
    """The residual network of 18 layers for small images, with group norm in the place of batch norm."""

    kind: Literal["resnet18"]
    filters: Annotated[
        int, Field(ge=8, le=256, multiple_of=8, description="channels of the first stage; doubled three times")
    ] = 64


class TransformerModel(Section):
    """An encoder with the norm before each part; the outputs come from the mean over tokens."""

    kind: Literal["transformer"]
    tokens: Annotated[int, Field(ge=1, le=4096, description="tokens of a row; it is cut into so many equal parts")]
    vocabulary: Annotated[
        int | None,
        Field(ge=2, le=1_000_000, description="a row holds indices below it, one a token; without, tokens are numbers"),
    ] = None
    dim: Annotated[int, Field(ge=8, le=4096, description="width of a token inside; a multiple of heads")] = 64
    layers: Annotated[int, Field(ge=1, le=48)] = 2
    heads: Annotated[int, Field(ge=1, le=64)] = 4


ModelSpec = Annotated[
    LogisticModel | MlpModel | CnnModel | Resnet18Model | TransformerModel, Field(discriminator="kind")
]


class Optimizer(Section):
    """The optimiser of the local steps, after clipping and noise."""

    name: Literal["sgd", "adam", "adamw"] = "sgd"
    lr: Annotated[_Positive, Field(description="learning rate")]
    momentum: Annotated[_Fraction, Field(description="momentum of the local optimiser")] = 0.0
    weight_decay: Annotated[_Decay, Field(description="decay after noise, in the optimiser")] = 0.0
    proximal: Annotated[_Decay, Field(description="pull towards the round's global model, after noise (FedProx)")] = 0.0


class Training(Section):
    """What a site does in one round."""

    local_steps: Annotated[int, Field(ge=1, le=100_000, description="optimiser steps of a site in a round")]
    batch: Annotated[int, Field(ge=1, le=10_000_000, description="expected units in a step; public, capped to units")]
    optimizer: Optimizer
    average: Annotated[
        _Fraction, Field(description="decay of a moving average over a round's noisy steps, which is sent; 0: none")
    ] = 0.0
    precision: Annotated[
        Literal["float32", "bfloat16"],
        Field(description="of products; norms and sums never have less than float32"),
    ] = "float32"
    seed: Annotated[int, Field(ge=0, le=2**53 - 1, description="of the initial model only, never of noise")] = 0


class Privacy(Section):
    """The promise to the people in the data, per site, over the whole job."""

    unit: Annotated[
        Literal["record", "entity", "site"] | None,
        Field(description="what is hidden: a row, all rows of a person, a whole site; default from the contract"),
    ] = None
    mechanism: Literal["local-dp-sgd", "distributed", "none"] = "local-dp-sgd"
    epsilon: Annotated[_Epsilon | None, Field(description="total of the job at a site")] = None
    delta: Annotated[_Delta | None, Field(description="below 1/units at every site")] = None
    clip: Annotated[_Positive, Field(description="largest L2 norm of one unit's gradient")] = 1.0
    clipping: Literal["normalised", "threshold"] = "normalised"
    noise_multiplier: Annotated[
        _NoiseMultiplier | None, Field(description="instead of letting each site find it; no unit")
    ] = None
    cap_rows: Annotated[int, Field(ge=1, le=100_000, description="most rows of one entity that a step uses")] = 16


class SecureAggregation(Section):
    """Whether the coordinator sees sums only, and against how many colluding sites."""

    enabled: bool = True
    colluding: Annotated[int, Field(ge=0, le=4094, description="sites that may join forces with the coordinator")] = 1
    dropouts: Annotated[
        int | None, Field(ge=0, le=4093, description="sites that may be lost inside a sum; default 1 where possible")
    ] = None
    clip: Annotated[
        _Positive, Field(description="largest absolute value of a coordinate of an update; a larger one is refused")
    ] = 8.0


class Sites(Section):
    """Who may take part and how many must."""

    invite: Annotated[
        tuple[SiteName, ...], Field(min_length=1, max_length=4096, description="site ids"), AfterValidator(_sites)
    ]
    quorum: Annotated[
        int | None, Field(ge=1, le=4096, description="fewest sites that a round may release; default a majority")
    ] = None


class Deadlines(Section):
    """When a phase closes, whoever is missing."""

    training_s: Annotated[int, Field(ge=1, le=604_800, description="seconds for the training phase")] = 600
    phase_s: Annotated[int, Field(ge=1, le=86_400, description="seconds for every other phase")] = 60


class FedAvg(Section):
    """The model moves by the mean of the updates."""

    strategy: Literal["FedAvg"] = "FedAvg"


class FedAvgM(Section):
    """The mean of the updates through server momentum."""

    strategy: Literal["FedAvgM"]
    server_learning_rate: _Positive = 1.0
    server_momentum: _Fraction = 0.0


class FedAdam(Section):
    """Adam on the mean of the updates."""

    strategy: Literal["FedAdam"]
    eta: Annotated[_Positive, Field(description="server learning rate")] = 0.1
    beta_1: _Fraction = 0.9
    beta_2: _Fraction = 0.99
    tau: Annotated[_Positive, Field(description="added to the root of the second moment")] = 1e-3


class FedYogi(Section):
    """Yogi on the mean of the updates."""

    strategy: Literal["FedYogi"]
    eta: Annotated[_Positive, Field(description="server learning rate")] = 0.01
    beta_1: _Fraction = 0.9
    beta_2: _Fraction = 0.99
    tau: Annotated[_Positive, Field(description="added to the root of the second moment")] = 1e-3


class FedAdagrad(Section):
    """Adagrad on the mean of the updates."""

    strategy: Literal["FedAdagrad"]
    eta: Annotated[_Positive, Field(description="server learning rate")] = 0.1
    tau: Annotated[_Positive, Field(description="added to the root of the second moment")] = 1e-3


class Krum(Section):
    """The one update nearest to its neighbours; needs each site's own update."""

    strategy: Literal["Krum"]
    num_malicious_nodes: Annotated[int, Field(ge=0, le=2046)] = 0


class MultiKrum(Section):
    """The mean of the updates nearest to their neighbours; needs each site's own update."""

    strategy: Literal["MultiKrum"]
    num_malicious_nodes: Annotated[int, Field(ge=0, le=2046)] = 0
    num_nodes_to_select: Annotated[int, Field(ge=1, le=4096)] = 1


class Bulyan(Section):
    """Multi-Krum, then a trimmed mean by coordinate; needs each site's own update."""

    strategy: Literal["Bulyan"]
    num_malicious_nodes: Annotated[int, Field(ge=0, le=1023)] = 0


class FedMedian(Section):
    """The median by coordinate; needs each site's own update."""

    strategy: Literal["FedMedian"]


class FedTrimmedAvg(Section):
    """The mean by coordinate without both tails; needs each site's own update."""

    strategy: Literal["FedTrimmedAvg"]
    beta: Annotated[_Tail, Field(description="share cut from each tail")] = 0.2


MeanStrategy = FedAvg | FedAvgM | FedAdam | FedYogi | FedAdagrad
RobustStrategy = Krum | MultiKrum | Bulyan | FedMedian | FedTrimmedAvg
Server = Annotated[MeanStrategy | RobustStrategy, Field(discriminator="strategy")]


def mean_strategy(server: Server) -> MeanStrategy:
    """Return the server step of a plan's strategy: its own, or FedAvg's for a robust one, whose result is a mean."""
    return FedAvg() if isinstance(server, RobustStrategy) else server


class Evaluate(Section):
    """How the global model is scored on the sites' held-out units."""

    every: Annotated[int, Field(ge=1, le=100_000, description="rounds between evaluations")] = 1
    metrics: Annotated[
        tuple[Literal["loss", "accuracy", "auc"], ...], Field(min_length=1, max_length=3), AfterValidator(_ordered)
    ] = METRICS
    release: Annotated[
        Literal["charged", "public", "exact"],
        Field(description="with charged noise; on units declared public; exact where every site's policy allows it"),
    ] = "charged"
    epsilon: Annotated[_Epsilon | None, Field(description="total of all evaluations; default the plan's epsilon")] = (
        None
    )


class Resources(Section):
    """What a site must set aside."""

    accelerators: Annotated[
        int,
        Field(
            ge=0, le=64, description="0: the CPU; 1: an accelerator where the site has one, else its CPU; N: so many"
        ),
    ] = 0
    memory_gib: Annotated[int, Field(ge=1, le=16_384, description="main memory in GiB")] = 4


class Start(Section):
    """The released model that the job starts from, in place of a fresh one."""

    job: JobName
    round: Annotated[int, Field(ge=0, le=100_000)]
    model: Annotated[Digest, Field(description="digest of the model and server state after that round")]


class Plan(Section):
    """A training job as data: who asks for what, on which data, under which promise."""

    apiVersion: Literal["confide/v1"]  # noqa: N815 (the documents' own spelling)
    kind: Literal["TrainingJob"]
    name: Annotated[str, Field(pattern=r"^[a-z0-9](?:[a-z0-9-]{0,46}[a-z0-9])?$", description="lower case, at most 48")]
    purpose: Purpose
    data: DataNeeded
    model: ModelSpec
    training: Training
    privacy: Privacy
    secure_aggregation: SecureAggregation = SecureAggregation()
    rounds: Annotated[int, Field(ge=1, le=100_000)]
    round_attempts: Annotated[int, Field(ge=1, le=10, description="tries of a round before the job fails")] = 3
    sites: Sites
    deadlines: Deadlines = Deadlines()
    server: Server = FedAvg()
    weights: Annotated[
        Literal["uniform", "declared"], Field(description="equal, or by the units that each site declared")
    ] = "uniform"
    evaluate: Evaluate | None = None
    priority: Annotated[int, Field(ge=0, le=100)] = 50
    resources: Resources = Resources()
    start: Start | None = None

    @property
    def steps(self) -> int:
        """Return T, the local steps of a site over the whole job."""
        return self.rounds * self.training.local_steps
