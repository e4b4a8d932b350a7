"""The page's token: in a file of the owner's alone, or none; and which addresses want one."""

import pytest

from node.config.schema import from_raw
from node.config.sections import NodeConfig
from node.events.progress import NodeProgress
from node.metrics.node_metrics import Metrics
from node.page.feed import Feed
from node.page.status_server import StatusServer, server_of
from node.roles.bootstrap import from_raw as bootstrap_from_raw
from node.system.errors import RunError, UsageError
from node.system.page_token import check_exposure, cookie_of, is_loopback, load_or_create, matches

TOKEN = "a token of the test"


def test_a_token_is_made_once_and_for_its_owner_alone(tmp_path):
    path = tmp_path / "token"
    token = load_or_create(path)
    assert len(token) == 43
    assert path.stat().st_mode & 0o777 == 0o600
    assert load_or_create(path) == token


@pytest.mark.parametrize("mode", [0o640, 0o604, 0o660, 0o644])
def test_a_token_that_others_read_is_none(tmp_path, mode):
    path = tmp_path / "token"
    load_or_create(path)
    path.chmod(mode)
    with pytest.raises(UsageError, match="others may read") as caught:
        load_or_create(path)
    assert caught.value.hint == f"chmod 600 {path}"


@pytest.mark.parametrize("text", ["", "short\n", "two words are no token at all\n", "sixteen\nand more lines"])
def test_a_file_that_holds_no_token_is_said_to(tmp_path, text):
    path = tmp_path / "token"
    path.write_text(text)
    path.chmod(0o600)
    with pytest.raises(UsageError, match="holds no token"):
        load_or_create(path)


@pytest.mark.parametrize("name", ["", "missing/token", "binary"])
def test_a_file_that_cannot_be_used_is_one_clear_error(tmp_path, name):
    (tmp_path / "binary").write_bytes(b"\xff" * 40)
    (tmp_path / "binary").chmod(0o600)
    with pytest.raises(RunError, match="no token in"):
        load_or_create(tmp_path / name)


def test_the_cookie_is_not_the_token():
    assert TOKEN not in cookie_of(TOKEN)
    assert matches(TOKEN, TOKEN)
    assert not matches(TOKEN, f"{TOKEN}x")
    assert not matches(TOKEN, "\udcff")


@pytest.mark.parametrize("host", ["127.0.0.1", "127.8.8.8", "::1", "[::1]", "localhost", "LOCALHOST"])
def test_loopback_needs_none(host):
    assert is_loopback(host)
    check_exposure(host, None)


@pytest.mark.parametrize(
    "host",
    ["0.0.0.0", "::", "192.168.1.4", "example.org", "localhost.example.org", "", "]127.0.0.1[", "[[::1]]", "[::1"],
)
def test_what_others_reach_needs_one(host, tmp_path):
    assert not is_loopback(host)
    check_exposure(host, tmp_path / "token")
    with pytest.raises(UsageError, match="not loopback") as caught:
        check_exposure(host, None)
    assert "node.status_token_file" in caught.value.hint
    with pytest.raises(UsageError, match="not loopback"):
        StatusServer(Metrics(), Feed(NodeProgress()), host=host)


def test_the_settings_are_refused_before_anything_starts(tmp_path):
    raw = {"node": {"metrics_host": "0.0.0.0"}}
    for load in (from_raw, bootstrap_from_raw):
        with pytest.raises(UsageError, match=r"node\.metrics_host 0\.0\.0\.0 is not loopback"):
            load(raw)
        load({"node": raw["node"] | {"metrics_port": -1}})
        load({"node": raw["node"] | {"status_token_file": str(tmp_path / "token")}})


def test_the_server_is_what_the_settings_say(tmp_path):
    parts = Metrics(), Feed(NodeProgress())
    assert server_of(NodeConfig(metrics_port=-1), *parts) is None
    assert server_of(NodeConfig(), *parts) is not None
    assert not list(tmp_path.iterdir())
    assert server_of(NodeConfig(metrics_host="0.0.0.0", status_token_file=tmp_path / "token"), *parts) is not None
    assert (tmp_path / "token").is_file()
