"""What the swarm commands print: for programs a JSON object, for people lines. No secret but an invite's own line."""

import json as jsonlib
from collections.abc import Mapping, Sequence
from dataclasses import fields
from enum import Enum
from pathlib import Path
from typing import TYPE_CHECKING, Any, TypeAlias

import typer
from rich.console import Console
from rich.table import Table

from node.system import text

if TYPE_CHECKING:
    from gossip.membership import Manifest, ManifestBody, Revocation
    from node.swarm.admin_actions import ChangeOutcome
    from node.swarm.create import CreatedSwarm

Said: TypeAlias = "tuple[dict[str, Any], Sequence[str | Table]]"
"""What is said, as JSON and as lines."""

Pairs: TypeAlias = dict[str, tuple[Any, Any]]
"""By name, what it was and what it is to be."""

STATE_WIDTH = len("revoked:")
"""So wide is the column that says who is a member, however narrow the terminal."""


def out(said: Said, *, json: bool) -> None:
    """Print a result, as lines or as JSON. Lines that a person copies are never wrapped."""
    as_json, lines = said
    if json:
        typer.echo(jsonlib.dumps(as_json))
        return
    console = Console()
    for line in lines:
        console.print(line, soft_wrap=not isinstance(line, Table), highlight=False, markup=False)


def founded(made: "CreatedSwarm") -> Said:
    """Return what `swarm create` prints."""
    from node.swarm.folder import AUTHORITY, INVITE

    path, terms = made.folder.path, made.chain.newest.terms
    task = terms.settings.get("task")
    external = isinstance(task, Mapping) and task.get("name") == "external"  # as p2ptrain/tasks has it, without torch
    joins = (
        [f'p2ptrain.join(model, optimizer, swarm="{path}"), in your own program', "p2ptrain.join(..., swarm=FILE)"]
        if external
        else [f"{text.program()} node --swarm {path}", f"{text.program()} node --invite FILE --run-dir FOLDER"]
    )
    facts = {
        "swarm": made.chain.swarm.hex(),
        "name": terms.name,
        "folder": str(path),
        "peer_id": str(made.peer_id),
        "bootstrap": list(terms.bootstrap),
        "policy": terms.policy.value,
        "invite_file": str(path / INVITE),
    }
    lines = [
        f"The swarm {terms.name} is founded in {path}. Keep {path / AUTHORITY} safe: who has it is the admin.",
        f"Members find this node at {terms.bootstrap[0]}" if terms.bootstrap else "",
        "",
        "Start its first node:",
        f"  {joins[0]}",
        f"Others join with this line, which is a password (it is in {path / INVITE}, too):",
        f"  {made.line}",
        f"by putting it in a file{'' if external else ' and running'}:",
        f"  {joins[1]}",
        f"More invites: {text.program()} swarm invite {path}",
    ]
    return facts, lines


def invited(line: str, file: Path | None, picture: str | None) -> Said:
    """Return what `swarm invite` prints."""
    if file is not None:
        return {"invite_file": str(file)}, [f"the invite is in {file}", *([picture] if picture else [])]
    return {"invite": line}, [line, *([picture] if picture else [])]


def shown(view: dict[str, Any]) -> Said:
    """Return what `swarm show` prints."""
    from node.swarm.parsing import moment

    lines = _of_line(view) if "missing" in view else _of_swarm(view)
    if invite := view.get("invite"):
        lines.append(
            f"the invite makes a {invite['role']} of {invite['uses'] or 'any number'} at most{_bound(invite)}; "
            f"their membership ends: {moment(invite['expires'])}"
        )
    for each in view.get("invites", ()):
        lines.append(
            f"invite     {each['id'][:12]}  {each['role']}  {each['joined']} of {each['uses'] or 'any number'} joined"
            f"  ends {moment(each['expires'])}{_bound(each)}  {each['name']}{'  REVOKED' if each['revoked'] else ''}"
        )
    if view.get("conflicts"):
        numbers = ", ".join(map(str, view["conflicts"]))
        lines.append(
            f"CONFLICT   two manifests of version {numbers}: admins signed twice; rotate heals it, or (where they "
            "removed each other) an invite by an admin of one side for each member of the other"
        )
    return view, lines


def _bound(invite: dict[str, Any]) -> str:
    return f", of region {invite['region']} alone" if invite["region"] else ""


def _of_line(view: dict[str, Any]) -> list[str]:
    """What a short invite says by itself."""
    return [
        f"swarm      {view['swarm']}",
        f"manifest   {view['manifest']}..., or one that follows it: not here, as {view['missing']}",
        f"found at   {', '.join(view['bootstrap'])}",
        f"hidden     {_hidden(view)}",
    ]


def _hidden(view: dict[str, Any]) -> str:
    return "behind a pre-shared key, too" if view["psk"] else "by Noise; there is no pre-shared key"


def _of_swarm(view: dict[str, Any]) -> list[str]:
    lines = [
        f"swarm      {view['name']} ({view['swarm']})",
        f"manifest   version {view['version']}, settings hold from round {view['applies_at']}",
        f"admins     {view['threshold']} of {len(view['admins'])} sign: {', '.join(view['admins'])}",
        f"members    {_who(view)}",
        f"found at   {', '.join(view['bootstrap']) or 'no address is named: members need --peer'}",
        f"needs      p2ptrain {view['min_app'] or '(any)'}, protocol {view['min_protocol']}",
        f"hidden     {_hidden(view)}",
        f"data       {view['same_data'] or 'each member has its own'}",
        f"recipe     {view['recipe']}",
    ]
    for section, keys in view["settings"].items():
        lines.append(f"  [{section}] " + "  ".join(f"{key}={value}" for key, value in keys.items()))
    return lines


def listed(rows: list[dict[str, Any]], name: str) -> Said:
    """Return what `swarm members` prints."""
    from node.swarm.parsing import day

    table = Table(box=None, pad_edge=False)
    dated, bound = any(row.get("expires") for row in rows), any(row.get("region") for row in rows)
    extra = (*(("region",) if bound else ()), *(("ends",) if dated else ()))
    for column in ("peer", "role", "name", "since", *extra, "here", "invite", "state"):
        wraps = column in ("name", "state")
        least = STATE_WIDTH if column == "state" else len(column)
        style = "bold" if column == "peer" else ""
        table.add_column(
            column, no_wrap=not wraps, min_width=least, overflow="fold" if wraps else "ellipsis", style=style
        )
    for row in rows:
        here = {True: "yes", False: "no", None: text.NOTHING}[row.get("connected")]
        state = row["state"] if row["revoked"] in (None, "yes") else f"{row['state']}: {row['revoked']}"
        since = day(row["since"]) if row["since"] else text.NOTHING
        region = (row.get("region") or text.NOTHING,) if bound else ()
        ends = (day(row["expires"]) if row.get("expires") else text.NOTHING,) if dated else ()
        invite = (row.get("grant") or text.NOTHING)[: 8 if dated else 12]
        role = row["role"] or text.NOTHING
        table.add_row(text.peer(row["peer"]), role, row["name"], since, *region, *ends, here, invite, state)
    return {"name": name, "members": rows}, [table]


def ends_note(expires: int | None) -> str | None:
    """Return what the giver of an invite should know of its end; None where it has none."""
    from gossip.core.membership_limits import TOLERANCE_S
    from node.swarm.parsing import moment

    if expires is None:
        return None
    return (
        f"memberships by it end {moment(expires)}; as clocks differ, they and the invite are taken up to "
        f"{TOLERANCE_S // 60} minutes longer (revoke it to end it at once)"
    )


def revoked(signed: "Revocation", handed: Sequence[Path]) -> Said:
    """Return what `swarm revoke` prints."""
    target = signed.target if isinstance(signed.target, str) else signed.target.hex()
    facts = {"what": signed.what.value, "target": target, "reason": signed.reason, "handed_to": list(map(str, handed))}
    whom = "peer" if signed.what.value == "peer" else "invite"
    lines = [f"revoked the {whom} {target}", *_handed(handed)]
    if signed.what.value == "peer":
        lines.append("an invite that it came by and that has uses left lets it in under another key: revoke that, too")
    return facts, lines


def proposed(before: "Manifest", manifest: "Manifest", here: int | None = None) -> list[str]:
    """Return the lines that say what another version would change, before it is signed. `here`: our node's round."""
    settings, members = _changes(before, manifest)
    lines = [f"version {manifest.version} of the swarm {before.terms.name} ({before.swarm.hex()}):"]
    lines += [f"  {name}: {old} -> {new}, from round {manifest.applies_at}" for name, (old, new) in settings.items()]
    if settings and here is not None and here > manifest.applies_at:
        when = "not in one round at all members, but at each as it hears of it"
        lines.append(f"  round {manifest.applies_at} is over, the swarm is in round {here}: so {when}")
    lines += [f"  {name}: {old} -> {new}, at once" for name, (old, new) in members.items()]
    for gone in sorted(set(before.terms.admins) - set(manifest.terms.admins)):
        void = "who came by its invites is out, and whom it revoked is not"
        lines.append(f"  all that {gone.hex()[:16]} signed is void, at once: {void}")
    return lines


def changed(outcome: "ChangeOutcome") -> Said:
    """Return what `swarm rotate` and `swarm sign` print."""
    manifest = outcome.manifest
    settings, members = _changes(outcome.before, manifest)
    facts = {
        "version": manifest.version,
        "applies_at": manifest.applies_at,
        "changes": {name: {"from": old, "to": new} for name, (old, new) in {**settings, **members}.items()},
        "signed": outcome.signed,
        "needed": outcome.needed,
        "proposal": None if outcome.file is None else str(outcome.file),
        "handed_to": list(map(str, outcome.handed_to)),
    }
    lines = proposed(outcome.before, manifest, outcome.here)
    if outcome.file is not None:
        lines.append(f"{outcome.signed} of {outcome.needed} admins have signed. The next one runs:")
        lines.append(f"  {text.program()} swarm sign DIR {outcome.file}")
    elif outcome.handed_to:
        lines += _handed(outcome.handed_to)
        if _more_rounds(settings):
            go_on = f"{text.program()} node --run-dir FOLDER"
            lines.append(f"members that have trained all rounds by now go on when they are started again: {go_on}")
    else:
        lines.append("enough admins have signed; an admin with a node runs `swarm sign` once more to hand it over")
    return facts, lines


def _more_rounds(settings: Pairs) -> bool:
    old, new = settings.get("train.rounds", (None, None))
    return bool((new or 0) > (old or 0))


def _changes(before: "Manifest", after: "Manifest") -> tuple[Pairs, Pairs]:
    from node.swarm.agreed_settings import differing

    settings, terms = differing(before.terms.settings, after.terms.settings), _terms_changed(before.terms, after.terms)
    if not settings and after.applies_at != before.applies_at:  # no later version's settings may hold before it
        terms["applies_at"] = (before.applies_at, after.applies_at)
    return settings, terms


def _terms_changed(before: "ManifestBody", after: "ManifestBody") -> Pairs:
    """What differs beside the settings. Each field of a manifest is held against the one before: an admin who signs
    must see all that is changed."""
    names = [each.name for each in fields(before) if each.name != "settings"]
    found = {name: (_as_json(getattr(before, name)), _as_json(getattr(after, name))) for name in names}
    return {name: pair for name, pair in found.items() if pair[0] != pair[1]}


def _as_json(value: Any) -> Any:
    match value:
        case Enum():
            return value.value
        case bytes():
            return value.hex()
        case frozenset():
            return sorted(value)
        case tuple():
            return [_as_json(each) for each in value]
        case _:
            return value


def _handed(folders: Sequence[Path]) -> list[str]:
    from node.swarm.views import is_running

    return [
        f"handed to the node in {each}, which {'passes it on now' if is_running(each) else 'passes it on when it runs'}"
        for each in folders
    ]


def _who(view: dict[str, Any]) -> str:
    policy = {
        "open": "everybody who is not revoked",
        "invite_only": "who has an invite",
        "allow": f"{text.plural(len(view['allow'] or ()), 'peer')} on a list, with an invite",
    }[view["policy"]]
    return policy + (f"; {view['max_members']} at most" if view["max_members"] else "")
