"""Every limit of the link, named and with its unit; part of each role's configuration."""

from typing import Self

from pydantic import BaseModel, ConfigDict, Field, model_validator


class LinkLimits(BaseModel):
    """What one party takes from the other and how long it waits; each field says what happens at its bound."""

    model_config = ConfigDict(frozen=True, extra="forbid", use_attribute_docstrings=True)

    max_message_bytes: int = Field(default=4 << 20, ge=64 << 10, le=64 << 20)
    """One protobuf message on the wire. A larger one is refused before it is sent, and by the receiver."""
    max_blob_bytes: int = Field(default=64 << 30, ge=1 << 20)
    """One blob. A larger one is refused before its first byte, both ways."""
    max_staging_bytes_per_site: int = Field(default=128 << 30, ge=1 << 20)
    """Arriving blobs of one site, by their full sizes. One more is refused until another is complete."""
    max_pending_count: int = Field(default=1024, ge=1)
    """Messages to one party that it hasn't acknowledged yet. One more is refused to the caller of `send`."""
    max_pending_bytes: int = Field(default=64 << 20, ge=1 << 20)
    """Their bodies together."""
    max_remembered_count: int = Field(default=8192, ge=16)
    """Message ids of one party that are remembered; a message older than all of them is refused as a replay."""
    max_messages_per_s: int = Field(default=200, ge=1)
    """Messages taken from one site; a faster one is read more slowly, nothing is lost."""
    max_sites_count: int = Field(default=256, ge=1)
    """Sites that attend at once. One more is told to come back later."""
    max_transfers_count: int = Field(default=64, ge=1)
    """Blob transfers at once, of all sites. One more is told to come back later."""
    max_transfers_per_site_count: int = Field(default=4, ge=1)
    """Blob transfers at once, of one site. One more is told to come back later."""
    max_enrolments_per_minute_count: int = Field(default=30, ge=1)
    """Enrolments and recoveries, of everybody. One more is told to come back later."""
    heartbeat_s: float = Field(default=10.0, gt=0, le=50)
    """How often each side speaks on a quiet attendance; below the 60 s after which proxies cut idle connections."""
    lost_after_s: float = Field(default=35.0, gt=0)
    """Silence after which an attendance counts as lost."""
    resend_s: float = Field(default=10.0, gt=0)
    """How long a message waits for its acknowledgement before it is sent again."""
    hello_timeout_s: float = Field(default=20.0, gt=0)
    """How long the other side may take to open an attendance."""
    connect_timeout_s: float = Field(default=20.0, gt=0)
    """How long one attempt to connect, or one short call, may take."""
    stall_s: float = Field(default=60.0, gt=0)
    """How long a transfer may stand still before it is cut and begun again at the last good chunk."""
    retry_first_s: float = Field(default=0.5, gt=0)
    """First wait after a passing fault; it doubles with each further one, with jitter."""
    retry_bound_s: float = Field(default=30.0, gt=0)
    """Longest wait after a passing fault: a site is back at most this long after the fault ends."""
    permanent_retry_s: float = Field(default=300.0, gt=0)
    """Wait after a fault that needs a person (certificate, name, membership, version)."""

    @model_validator(mode="after")
    def _consistent(self) -> Self:
        if self.lost_after_s < 2 * self.heartbeat_s:
            raise ValueError("lost_after_s must be at least twice heartbeat_s")
        if self.max_remembered_count < 2 * self.max_pending_count:
            raise ValueError("max_remembered_count must be at least twice max_pending_count")
        if self.max_staging_bytes_per_site < self.max_blob_bytes:
            raise ValueError("max_staging_bytes_per_site must be at least max_blob_bytes")
        return self
