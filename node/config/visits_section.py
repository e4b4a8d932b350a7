"""The section `[visits]`: whether visitors may take this node's model, train some steps, and leave a difference."""

from dataclasses import dataclass
from pathlib import Path
from typing import Annotated, ClassVar

from pydantic import ConfigDict, Field

from node.system.errors import UsageError
from node.system.page_token import is_loopback
from p2ptrain.privacy.accounting import epsilon_of
from p2ptrain.privacy.base import Release

MAX_PORT = 65535

LEAST_NOISE, MOST_NOISE = 1e-6, 1e6
"""Of the noise over the clipping norm. Less would make what a visitor spends larger than a number can be."""
LEAST_CLIP, MOST_CLIP = 1e-12, 1e12
"""So that a sum of differences and its noise are fp32 numbers: not infinite, and not rounded to zero."""


@dataclass(frozen=True, kw_only=True)
class VisitsConfig:
    """Whether devices that are no members may train with this node for a few steps; no member needs to know. They are
    as any program that knows the address: what they leave is bounded, and never trusted."""

    __pydantic_config__: ClassVar[ConfigDict] = {"extra": "forbid"}

    listen: str = ""
    """HOST:PORT where visitors are answered over HTTP, such as 0.0.0.0:8443. Empty: there are no visitors."""
    certificate: Path | None = None
    """The certificate's chain for HTTPS, as PEM. Needed on another address than loopback."""
    key: Path | None = None
    """The certificate's private key, as PEM."""
    plain: bool = False
    """Whether to answer without HTTPS on another address than loopback: for a network of one's own, or behind a proxy
    that has the certificate. Anybody on the way then reads the token, and can change
    what passes."""
    token_file: Path | None = None
    """Holds the token that visitors send as a bearer token (mode 0600); made with a new one if it is not there. None:
    everybody who reaches the address may visit."""
    origins: tuple[str, ...] = ()
    """Origins of web pages that may visit from a browser, such as https://example.org; "*": all pages. Programs need
    none."""
    buffer: Annotated[int, Field(ge=1)] = 4
    """How many differences are needed before a round counts them; fewer wait for the next round."""
    most_a_round: Annotated[int, Field(ge=1, le=1024)] = 64
    """Differences taken in a round."""
    most_of_network: Annotated[int, Field(ge=1)] = 8
    """The same of one network: a /24 of IPv4, a /48 of IPv6. Behind a proxy all come from one."""
    share: Annotated[float, Field(gt=0, le=1)] = 0.5
    """How far all visitors together may move the model in a round, as a part of the norm of this node's own steps."""
    trim: Annotated[float, Field(ge=0, lt=0.5)] = 0.2
    """The part of the differences that is left out at either end, in each coordinate: as many liars are outvoted."""

    agreement: bool = False
    """Whether differences that go against this node's own steps of the round are left out (FLTrust, 2012.13995). Liars
    then cannot undo what the node learns. Visitors whose data contradict the node's are left out as well."""

    noise: Annotated[float, Field(gt=0, allow_inf_nan=False)] | None = None
    """Standard deviation of the noise over `clip`, which this node adds to the sum of `buffer` visitors' differences:
    who sees the models, and is not this node, learns of a visitor what its epsilon allows. None: no noise."""
    clip: Annotated[float, Field(gt=0, allow_inf_nan=False)] = 1.0
    """Of noise: largest norm of one visitor's difference."""
    delta: Annotated[float, Field(gt=0, lt=1)] = 1e-5
    """Of noise: probability with which the bound may fail. Choose one over the number of visitors, or less."""
    epsilon: Annotated[float, Field(gt=0, allow_inf_nan=False)] | None = None
    """Of noise: what each visitor's visits may spend together; then it is refused. None: it is counted alone."""

    def __post_init__(self) -> None:
        """UsageError for what is no address, and for one that others reach without HTTPS."""
        if not self.listen:
            return
        host = self.host
        if not self.listen.rpartition(":")[1] or not host or not 0 < self.port <= MAX_PORT:
            raise UsageError(f"visits.listen: {self.listen!r} is no address", "one looks like 0.0.0.0:8443")
        if self.buffer > self.most_a_round:
            raise UsageError(
                f"visits.buffer {self.buffer} is above visits.most_a_round", "no round would count visitors"
            )
        self._check_noise()
        if (self.certificate is None) != (self.key is None):
            raise UsageError("[visits] has a certificate without its key, or a key alone", "give both, or neither")
        if self.certificate is None and not self.plain and not is_loopback(host):
            hint = "give visits.certificate and visits.key; or visits.plain=true, and anybody on the way reads along"
            raise UsageError(f"visits.listen {self.listen} is not loopback, and there is no certificate", hint)

    def _check_noise(self) -> None:
        """Raise UsageError for noise that would bound nothing, and for a budget that allows nothing."""
        if self.noise is None:
            if self.epsilon is not None:
                hint = "set visits.noise, or leave it out"
                raise UsageError(f"visits.epsilon={self.epsilon:g} limits nothing: there is no visits.noise", hint)
            return
        if self.trim:
            message = f"visits.trim={self.trim:g} does not go with visits.noise: a sum with noise leaves nobody out"
            raise UsageError(message, "set visits.trim=0")
        for name, value, least, most in (
            ("noise", self.noise, LEAST_NOISE, MOST_NOISE),
            ("clip", self.clip, LEAST_CLIP, MOST_CLIP),
        ):
            if not least <= value <= most:
                raise UsageError(f"visits.{name}={value:g} is not from {least:g} to {most:g}", "take another")
        first = epsilon_of([Release(mechanism="visitors", noise=self.noise, rate=1.0, count=1)], self.delta)
        if self.epsilon is not None and first > self.epsilon:
            message = f"visits.epsilon={self.epsilon:g} is less than one visit spends: {first:.4g} at visits.delta"
            raise UsageError(message, "give more visits.noise, or a larger visits.epsilon")

    @property
    def on(self) -> bool:
        """Return whether there are visitors."""
        return bool(self.listen)

    @property
    def host(self) -> str:
        """Return the host of `listen`, without brackets."""
        return self.listen.rpartition(":")[0].removeprefix("[").removesuffix("]")

    @property
    def port(self) -> int:
        """Return the port of `listen`; 0 where it has none."""
        text = self.listen.rpartition(":")[2]
        return int(text) if text.isascii() and text.isdecimal() else 0
