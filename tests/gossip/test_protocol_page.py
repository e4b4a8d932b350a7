"""docs/protocol.md says what the code does: its numbers are the code's, and its examples are made by the code.

A block of the page that begins with ```hex NAME holds bytes in hex, comments after `#`. A table row that begins with
`module.CONSTANT` holds that constant's value. Both directions are held: nothing in the page is wrong, and no bound of
the wire is missing from it.
"""

import ast
import importlib
import re
from pathlib import Path

import pytest
import torch

from gossip.blobs.blob import blob_manifest_of, parse_blob_manifest
from gossip.core import limits
from gossip.core.digests import NO_DIGEST, digest_of, swarm_id_of
from gossip.core.envelope import DOMAIN, EnvelopeKind, Scope, open_envelope, seal
from gossip.core.errors import Reason
from gossip.core.identity import Identity
from gossip.core.ids import RunId
from gossip.core.messages import (
    HeadersRequest,
    encode_answer,
    encode_refusal,
    encode_request,
    parse_headers_answer,
    parse_request,
)
from gossip.core.statements import UpdateHeaderBody, parse_update_header, update_header_statement
from gossip.updates import score_table
from node.config.schema import load
from node.roles.assembly import run_info
from p2ptrain import compress
from p2ptrain.training.flat import fingerprint

PAGE = (Path(__file__).parents[2] / "docs" / "protocol.md").read_text(encoding="utf-8")
OWN_FOLDERS = (
    "gossip.core",
    "gossip.updates",
    "gossip.blobs",
    "gossip.discovery",
    "gossip.reachability",
    "gossip.allreduce",
    "gossip.regions",
    "gossip.hellos",
    "gossip.secure_aggregation",
)
"""Those whose every bound stands in the page. Of private swarms docs/private-swarms.md tells."""
FOLDERS = (
    *OWN_FOLDERS,
    "gossip",
    "gossip.transport",
    "gossip.transport.libp2p",
    "gossip.membership",
    "p2ptrain.compress",
    "p2ptrain.sync",
)
ELSEWHERE = {
    "api",
    "atomic_file",
    "config",
    "identity",
    "keyfile",
    "member_messages",
    "membership_limits",
    "secret_file",
    "upnp",
}
"""Files whose bounds are of private swarms (docs/private-swarms.md), of this machine or of its router."""
NO_BOUNDS = {"limits.KIB", "limits.MIB", "throughput.LEAST_S"}
"""Two units, and a guard of a division."""
SCOPE = Scope(swarm=swarm_id_of("p2ptrain"), run=RunId(b"r" * 16))
ALICE = Identity(bytes([1]) * 32)
EPOCH = 1_767_225_600_000
CODECS = ("none", "fp16", "bf16", "int8", "int4", "q2", "sign1", "topk")
VECTOR = torch.tensor([0.5, -0.25, 1.5, 0.0, -2.0])


def hex_blocks(page: str) -> dict[str, bytes]:
    found = {}
    for name, body in re.findall(r"^```hex (\S+)\n(.*?)^```$", page, re.MULTILINE | re.DOTALL):
        assert name not in found, f"{name} stands twice"
        found[name] = bytes.fromhex("".join(line.partition("#")[0] for line in body.splitlines()))
    return found


def frame(body: bytes) -> bytes:
    return len(body).to_bytes(4, "big") + body


def made_by_the_code() -> dict[str, bytes]:
    blob = blob_manifest_of(b"payload")
    base_body = UpdateHeaderBody(round=0, kind="genesis", genesis=digest_of(b"the initial model"))
    base = parse_update_header(
        seal(
            ALICE, SCOPE, update_header_statement(epoch=EPOCH, seq=0, prev=NO_DIGEST, address=NO_DIGEST, body=base_body)
        )
    )
    delta_body = UpdateHeaderBody(round=1, kind="delta", codec="q2", size=7, steps=20, tokens=320)
    delta = seal(
        ALICE,
        SCOPE,
        update_header_statement(epoch=EPOCH, seq=1, prev=base.digest, address=blob.address, body=delta_body),
    )
    torch.manual_seed(0)
    model = torch.nn.Linear(2, 3)
    x_d = torch.cat([parameter.detach().reshape(-1) for _, parameter in model.named_parameters()])
    run = run_info(load((), ["task.name=digits"]), fingerprint(model), x_d)
    return {
        "public-key": ALICE.public_key,
        "swarm-id": swarm_id_of("p2ptrain"),
        "fingerprint": fingerprint(model),
        "run-id": run.run_id,
        "genesis-link": base.raw,
        "genesis-link-digest": base.digest,
        "manifest": blob.encode(),
        "blob-address": blob.address,
        "delta-link": delta.raw,
        "delta-link-digest": delta.digest,
        "links-request": frame(encode_request(HeadersRequest(epoch=EPOCH, first=1, count=1))),
        "links-answer-empty": frame(encode_answer([])),
        "refusal": frame(encode_refusal(Reason.UNAVAILABLE, "we do not hold this blob")),
        **{f"codec-{name}": compress.get(name).encode(VECTOR) for name in CODECS if name != "topk"},
        "codec-topk": compress.get("topk", ratio=0.4).encode(VECTOR),
        "codec-topk-2": compress.get("topk", ratio=0.4, value_bits=2).encode(VECTOR),
    }


def test_the_pages_examples_are_what_the_code_makes():
    assert hex_blocks(PAGE) == made_by_the_code()


def test_the_pages_examples_are_what_the_code_reads():
    shown = hex_blocks(PAGE)
    base, delta = (parse_update_header(open_envelope(shown[name], SCOPE)) for name in ("genesis-link", "delta-link"))
    assert (base.place, base.body.kind, base.digest) == ((EPOCH, 0), "genesis", shown["genesis-link-digest"])
    assert (delta.prev, delta.address, delta.body.codec) == (base.digest, shown["blob-address"], "q2")
    assert parse_blob_manifest(shown["manifest"], delta.address, delta.body.size).size == 7
    assert parse_request(shown["links-request"][4:]) == HeadersRequest(epoch=EPOCH, first=1, count=1)
    assert parse_headers_answer(shown["links-answer-empty"][4:]) == ()
    assert ALICE.peer_id in PAGE
    assert DOMAIN == b"p2ptrain-envelope-v1\x00"
    assert "the 21 bytes `p2ptrain-envelope-v1` and `00`" in PAGE


def decoded(name: str, payload: bytes) -> torch.Tensor:
    return compress.get(name.removesuffix("-2")).decode(payload, VECTOR.numel())


@pytest.mark.parametrize("name", [*CODECS, "topk-2"])
def test_the_decoded_examples_are_those_of_the_page(name):
    written = re.search(rf"^`{name}` gives `(.*)`", PAGE, re.MULTILINE)
    assert written is not None, name
    values = torch.tensor([float(value) for value in written[1].split(", ")])
    assert torch.equal(values, decoded(name, hex_blocks(PAGE)[f"codec-{name}"]))


def constants_of(page: str) -> dict[str, str]:
    return dict(re.findall(r"^\| `(\w+\.[A-Z][A-Z0-9_]+)` \| ([^|]*?) \|", page, re.MULTILINE))


def in_code(name: str) -> object:
    module, constant = name.split(".")
    for folder in FOLDERS:
        try:
            return getattr(importlib.import_module(f"{folder}.{module}"), constant)
        except (ModuleNotFoundError, AttributeError):
            continue
    raise AssertionError(f"{name}: nowhere")


def test_every_constant_of_the_page_has_its_value_in_the_code():
    named = constants_of(PAGE)
    assert len(named) > 40
    for name, text in named.items():
        written = ast.literal_eval(text.strip("`").replace(",", "")) if text[0] != '"' else text.strip('"')
        assert in_code(name) == written, name


def bounds_of(folder: str) -> set[str]:
    """Public numbers and words that its modules define, as the page names them."""
    package = importlib.import_module(folder)
    found = set()
    for path in Path(*package.__path__).glob("*.py"):
        module = importlib.import_module(f"{folder}.{path.stem}")
        for node in ast.parse(path.read_text(encoding="utf-8")).body:
            target = node.target if isinstance(node, ast.AnnAssign) else None
            name = target.id if isinstance(target, ast.Name) else ""
            if re.fullmatch("[A-Z][A-Z0-9_]*", name) and isinstance(getattr(module, name), int | float | str):
                found.add(f"{path.stem}.{name}")
    return found


@pytest.mark.slow
@pytest.mark.parametrize("folder", OWN_FOLDERS)
def test_no_bound_of_the_protocol_is_missing_from_the_page(folder):
    bounds = {name for name in bounds_of(folder) if name.partition(".")[0] not in ELSEWHERE}
    assert bounds
    assert bounds - constants_of(PAGE).keys() <= NO_BOUNDS
    assert {f"limits.{name}" for name in vars(limits) if name.isupper()} <= bounds_of("gossip.core")


def test_every_reason_stands_in_the_page_with_its_points():
    section = PAGE.partition("\n## Offences\n")[2].partition("\n## ")[0]
    rows = dict(re.findall(r"^\| `([a-z_]+)` \| ([0-9.]+) \|", section, re.MULTILINE))
    assert {Reason(name): float(points) for name, points in rows.items()} == score_table.POINTS


def test_every_kind_of_statement_and_request_has_a_heading():
    headings = {
        name for line in re.findall(r"^### (`.*)$", PAGE, re.MULTILINE) for name in re.findall(r"`(\w+)`", line)
    }
    requests = {"hello", "links", "snapshot", "manifest", "chunk", "goodbye", "find", "pause", "secure"}
    of_members = {"membership", "buckets", "roster", "terms"}
    assert {kind.value for kind in EnvelopeKind} | requests | of_members <= headings
    assert set(CODECS) <= headings
