"""Flood: more announcements than anybody needs."""

from p2ptrain.attacks.base import Misdeeds


class Flood:
    """Broadcasts `announcements` in every round beside the true one.

    By default their signatures do not hold: they cost the liar nothing, each receiver a check, and the liar its
    standing. With `signed` each is valid and begins a new chain of the liar's: no offence, and harmless to a receiver
    that bounds what a peer may ask of it in a second. Such a liar gives up its own chain, which is older.
    """

    name = "flood"

    def __init__(self, *, announcements: int = 200, signed: bool = False) -> None:
        if announcements < 1:
            raise ValueError(f"flood: announcements must be at least 1, not {announcements}")
        self.announcements = announcements
        self.signed = signed

    def misdeeds(self, round: int) -> Misdeeds:
        """Return what to broadcast once the update of `round` is published."""
        return Misdeeds(epochs=self.announcements) if self.signed else Misdeeds(forgeries=self.announcements)
