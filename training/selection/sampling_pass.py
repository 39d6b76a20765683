"""`SamplingPass`: what one iterator over a `Selection` has of its own."""

from __future__ import annotations

from looptap.training.sampling.in_flight import BatchesInFlight


class SamplingPass:
    """A pass of ``left`` instances, offered by the walk that all passes share.

    Passes may overlap. Together they offer all instances equally often, each as many as an epoch has.
    """

    __slots__ = ("flight", "given", "left", "length", "running")

    def __init__(
        self, flight: BatchesInFlight, left: int, given: int = 0, length: int | None = None, *, running: bool = True
    ) -> None:
        self.flight = flight
        """Its batches on which no step was observed."""
        self.left, self.given, self.length = left, given, length
        """Instances still to be offered, batches handed over, and all batches, where ranks have agreed on them."""
        self.running = running
        """False while it has no iterator: it is resumed, or was left early."""

    @property
    def over(self) -> bool:
        """True if it has had its last batch."""
        return self.left <= 0 if self.length is None else self.given >= self.length
