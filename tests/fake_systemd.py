"""What `systemctl --user` and `loginctl` answer, of a manager that only remembers what it was told."""

from collections.abc import Callable, Sequence
from pathlib import Path

from node.services.service_manager import Done

OK = Done(code=0, out="", err="")
NO_BUS = Done(code=1, out="", err="Failed to connect to bus: No medium found\n")


class FakeSystemd:
    """Call it as `run_command`. `asked`: each command without its options. `on`: what happens before one is answered,
    by its verb."""

    def __init__(self, *, answers: bool = True) -> None:
        self.answers = answers
        self.asked: list[tuple[str, ...]] = []
        self.states: dict[str, str] = {}
        self.result = "success"
        self.on: dict[str, Callable[[], Done | None]] = {}
        self.lingers, self.may_linger = False, True

    def __call__(self, words: Sequence[str], *, timeout_s: float = 60.0) -> Done:
        told = tuple(word for word in words[1:] if not word.startswith("--"))
        self.asked.append(told)
        if (said := self.on.get(told[0], lambda: None)()) is not None:
            return said
        if words[0] == "loginctl":
            return self._loginctl(told)
        return self._systemctl(told) if self.answers else NO_BUS

    def verbs(self) -> list[str]:
        """What was asked that changes something."""
        return [each[0] for each in self.asked if each[0] not in ("show", "show-user")]

    def _systemctl(self, told: tuple[str, ...]) -> Done:
        verb, name = told[0], told[1] if len(told) > 1 else ""
        if verb == "start":
            self.states[name] = "active"
        if verb == "stop":
            self.states[name] = "inactive"
        if verb != "show":
            return OK
        state = self.states.get(name, "inactive")
        pid = 4711 if state == "active" else 0
        lines = [f"ActiveState={state}", f"MainPID={pid}", "NRestarts=0", f"Result={self.result}", "ExecMainStatus=1"]
        return Done(code=0, out="\n".join([*lines, "UnitFileState=enabled"]), err="")

    def _loginctl(self, told: tuple[str, ...]) -> Done:
        if told[0] == "enable-linger":
            self.lingers = self.may_linger
            return OK if self.may_linger else Done(code=1, out="", err="Could not enable linger: Access denied\n")
        return Done(code=0, out=f"Linger={'yes' if self.lingers else 'no'}\n", err="")


def unit_file(home: Path, name: str = "node") -> Path:
    return home / ".config" / "systemd" / "user" / f"p2ptrain-{name}.service"
