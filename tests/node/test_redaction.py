"""Every kind of secret that there is here, in every form in which it may come, through every way out."""

import base64
import io
import json
import logging
import secrets
from urllib.parse import quote

import pytest
import structlog
from hypothesis import given
from hypothesis import strategies as st

from gossip.core.identity import Identity
from gossip.transport.pnet import PresharedKey
from node.events import library_logs
from node.events.event_types import Failed
from node.events.log import EventLog, read_events
from node.events.redaction import HIDDEN, Redactor
from node.system.page_token import cookie_of

SEED = bytes(range(100, 132))
PASSPHRASE = "correct horse"
TOKEN = "hVg7_Q2cbd-0pXyz4w1LmN"
INVITE = "p2p1" + base64.urlsafe_b64encode(bytes(range(256))).decode().rstrip("=")
PSK = PresharedKey(SEED).text().decode()

BY_FORM = {
    "invite": f"cannot read {INVITE}: cut short",
    "invite of a later version": f"'{INVITE.replace('p2p1', 'p2p3')}'",
    "token in a URL": f"GET /status?token={TOKEN}&x=1",
    "token in a header": f"authorization: Bearer {TOKEN}",
    "cookie": f"cookie: p2ptrain-9400={TOKEN}; a=b",
    "basic": f"Authorization: Basic {TOKEN}",
    "user's password in a URL": f"http://grafana:{TOKEN}@host:3000/",
    "passphrase with a name": f"{{'passphrase': '{TOKEN}'}}",
    "password in quotes": f'password="{TOKEN} and more"',
    "psk as bytes": f"Terms(psk={SEED!r})",
    "key of a service": f"WANDB_API_KEY: {TOKEN}".replace("WANDB_", ""),
    "seed in hex": f"Identity(seed={SEED.hex()})",
    "seed as bytes": f"Identity(seed={SEED!r})",
    "swarm.key": PSK,
    "identity.key": f"p2ptrain-ed25519-1\n{SEED.hex()}\n",
    "pem": f"-----BEGIN OPENSSH PRIVATE KEY-----\n{TOKEN}\n-----END OPENSSH PRIVATE KEY-----",
}
PARTS = (TOKEN, SEED.hex(), repr(SEED)[2:-1], INVITE[8:])


@pytest.mark.parametrize("text", BY_FORM.values(), ids=BY_FORM)
def test_a_secret_is_known_by_its_form(text):
    assert any(part in text for part in PARTS)
    seen = Redactor().text(text)
    assert HIDDEN in seen
    assert not [part for part in PARTS if part in seen]


FORMS = {
    "text": str,
    "in quotes": repr,
    "url": lambda secret: quote(secret, safe=""),
    "hex": lambda secret: secret.encode().hex(),
    "HEX": lambda secret: secret.encode().hex().upper(),
    "bytes": lambda secret: repr(secret.encode()),
    "base64": lambda secret: base64.b64encode(secret.encode()).decode(),
    "base64url": lambda secret: base64.urlsafe_b64encode(secret.encode()).decode().rstrip("="),
}


@pytest.mark.parametrize("form", FORMS.values(), ids=FORMS)
@pytest.mark.parametrize("secret", [PASSPHRASE, "a'b\"c%d", "dämmerung", TOKEN])
def test_what_was_learned_is_hidden_in_any_form(secret, form):
    text = f"<{form(secret)}>"
    assert form(secret) in text
    assert form(secret).strip("'\"=") not in Redactor([secret]).text(text)


@given(st.binary(min_size=8, max_size=40))
def test_bytes_that_were_learned_are_hidden(secret):
    for form in (secret.hex(), repr(secret)[2:-1], base64.b64encode(secret).decode().rstrip("=")):
        assert form not in Redactor([secret]).text(f"key <{form}> of a node")


def test_a_short_passphrase_goes_as_a_word_and_takes_no_letters_along():
    assert Redactor(["no"]).text("no: the node knows 'no'") == f"{HIDDEN}: the node knows '{HIDDEN}'"


PUBLIC = (
    "p2ptrain node --peer /ip4/1.2.3.4/p2p/12D3KooWHGAmvR8MZ1ZBJ7CgRrP4jDVYjP5qSmBF5wxkbhWqB1yT --set train.seed=7",
    "/root/p2p1",
    "/ip4/1.2.3.4/tcp/1/p2p/12D3KooWFQmyRnfGWasS7TEoP2p5wxkbhWqB1yT7CgRrP4jDVYjP",
    "train.seed=1234567890",
    "node.status_token_file=/etc/token, 4096 tokens: 3.5",
    f"digest {SEED.hex()}",
    "the key x lies under a passphrase; give it with --passphrase-file",
    "http://127.0.0.1:9400/metrics",
)


@pytest.mark.parametrize("text", PUBLIC)
def test_what_is_no_secret_stays(text):
    assert Redactor([PASSPHRASE]).text(text) == text


def test_fields_are_hidden_by_their_name_and_at_any_depth():
    fields = {"psk": SEED, "peer": "x", "deep": [{"Token": TOKEN, "n": 1.5}, (PASSPHRASE,)], "seed": 7, "token": None}
    hidden = {"psk": HIDDEN, "peer": "x", "deep": [{"Token": HIDDEN, "n": 1.5}, [HIDDEN]], "seed": 7, "token": None}
    assert Redactor([PASSPHRASE]).fields(fields) == hidden


def test_names_of_inner_fields_are_text_as_well():
    told = Redactor([PASSPHRASE]).fields({"by_word": {f"of {PASSPHRASE}": 1, 7: {PASSPHRASE: {}}}})
    assert told == {"by_word": {f"of {HIDDEN}": 1, "7": {HIDDEN: {}}}}


def test_an_event_tells_nobody(tmp_path):
    heard = []
    with EventLog(tmp_path / "events.jsonl", sinks=[heard.append]) as emit:
        emit.redact.learn(SEED)
        emit(Failed(error=f"bad invite {INVITE}", hint=SEED.hex()))
    told = [*read_events(tmp_path / "events.jsonl"), *heard]
    assert [event.error for event in told] == [f"bad invite {HIDDEN}"] * 2
    assert [event.hint for event in told] == [HIDDEN] * 2


class Terminal(io.StringIO):
    def __init__(self, *, is_one=True):
        super().__init__()
        self.is_one = is_one

    def isatty(self):
        return self.is_one


@pytest.fixture
def logging_to(tmp_path):
    import gossip.transport.libp2p.libp2p_transport  # noqa: F401  # as in a node: libp2p sets its loggers apart when it is imported

    root, network = logging.getLogger(), logging.getLogger("libp2p")
    before, networks = (root.handlers[:], root.level), (network.propagate, network.level)
    network.propagate, network.level = False, logging.WARNING

    def to(stream=None, *, debug=True):
        library_logs.configure(tmp_path / "node.log", Redactor([PASSPHRASE]), debug=debug, stream=stream)
        return tmp_path / "node.log"

    yield to
    for handler in root.handlers[:]:
        handler.close()
    root.handlers, root.level = before
    network.propagate, network.level = networks
    structlog.reset_defaults()


def fail(passphrase):
    raise ValueError(f"cannot open it with {passphrase}")


def say_something():
    logging.getLogger("libp2p.net").warning("dialled %s with %s", "x", PASSPHRASE, extra={"tries": 3})
    logging.getLogger("libp2p.net").debug("chatter")
    try:
        fail(PASSPHRASE)
    except ValueError as error:
        structlog.get_logger("p2ptrain").error("the node failed", exc_info=error, invite=INVITE)


@pytest.mark.parametrize("is_one", [True, False], ids=["terminal", "pipe"])
def test_a_line_of_the_log_is_json_in_a_file_and_words_on_a_terminal(logging_to, is_one):
    stream = Terminal(is_one=is_one)
    file = logging_to(stream)
    say_something()
    warning, chatter, failure = (json.loads(line) for line in file.read_text().splitlines())
    assert list(warning) == ["ts", "level", "logger", "message", "tries"]
    assert warning["message"] == f"dialled x with {HIDDEN}"
    assert (warning["level"], warning["logger"], warning["tries"]) == ("warning", "libp2p.net", 3)
    assert chatter["message"] == "chatter"
    assert failure["message"] == "the node failed"
    assert failure["exception"].endswith(f"ValueError: cannot open it with {HIDDEN}")
    assert failure["invite"] == HIDDEN
    shown = stream.getvalue()
    assert "chatter" not in shown
    assert PASSPHRASE not in shown + file.read_text()
    assert "the node failed" not in shown, "the command line shows it"
    if is_one:
        assert shown.count("\n") == 1
        assert "dialled x with" in shown
        assert "\x1b[" in shown
    else:
        assert [json.loads(line)["level"] for line in shown.splitlines()] == ["warning"]


def test_without_debug_nothing_is_shown_and_little_is_written(logging_to):
    stream = Terminal()
    file = logging_to(stream, debug=False)
    logging.getLogger("zeroconf").info("chatter")
    assert not file.exists()
    logging.getLogger("zeroconf").warning("no such name")
    say_something()
    told = [json.loads(line)["message"] for line in file.read_text().splitlines()]
    assert told == ["no such name", "the node failed"], "how much libp2p says is for strangers to decide"
    assert stream.getvalue() == ""


def test_a_line_that_cannot_be_formatted_tells_where_it_is_from_and_no_argument(logging_to, capsys):
    """`logging` itself prints its arguments on stderr, past the redactor."""
    stream = Terminal()
    file = logging_to(stream)
    logging.getLogger("libp2p.net").warning("port %d", PASSPHRASE)
    logging.getLogger("libp2p.net").warning("and on")
    said = capsys.readouterr().err
    assert PASSPHRASE not in said + stream.getvalue() + file.read_text()
    assert said.count("could not be written: TypeError") == 2  # of the file and of the stream
    assert f"libp2p.net ({__file__}:" in said
    assert [json.loads(line)["message"] for line in file.read_text().splitlines()] == ["and on"]


def test_a_full_log_is_set_aside(logging_to, monkeypatch):
    monkeypatch.setattr(library_logs, "LOG_BYTES", 500)
    file = logging_to(debug=False)
    for number in range(30):
        logging.getLogger("noise").warning("number %d", number)
    assert sorted(path.name for path in file.parent.iterdir()) == ["node.log", "node.log.1"]
    assert json.loads(file.read_text().splitlines()[-1])["message"] == "number 29"


def test_what_a_node_holds_is_what_it_hides():
    from node.events.progress import NodeProgress
    from node.metrics.node_metrics import Metrics
    from node.page.feed import Feed
    from node.page.status_server import StatusServer
    from node.swarm.credentials import Credentials, ManifestListeners

    seed, psk = secrets.token_bytes(32), PresharedKey.generate()
    held = Credentials(identity=Identity(seed), private=None, psk=psk, news=ManifestListeners())
    assert held.secrets() == (seed, bytes.fromhex(psk.text().split()[-1].decode()))
    server = StatusServer(Metrics(), Feed(NodeProgress("x")), token=TOKEN)
    assert server.secrets() == (TOKEN, cookie_of(TOKEN))
