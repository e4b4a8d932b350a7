"""What holds for every exporter, with its real library; skipped where that is not installed."""

import logging
import threading
from collections.abc import Iterator

import pytest
from exporters_story import ODD, built, story

from node import exporters
from node.cli import main
from node.exporters import EXPORTERS
from node.exporters.base import Exporter
from node.system.errors import UsageError

pytestmark = [
    pytest.mark.slow,  # importing the packages that they write for
    pytest.mark.filterwarnings("default"),  # theirs
]


@pytest.fixture(autouse=True)
def collector(monkeypatch):
    """Nobody listens there: what would be sent is refused at once."""
    monkeypatch.setenv("OTEL_EXPORTER_OTLP_ENDPOINT", "http://127.0.0.1:9")
    monkeypatch.setenv("OTEL_EXPORTER_OTLP_TIMEOUT", "0.1")


@pytest.fixture(autouse=True)
def there_before():
    """Threads that other tests have left: a pool's."""
    return set(threading.enumerate())


@pytest.fixture(autouse=True)
def log() -> Iterator[None]:
    """What libraries log goes elsewhere than to the terminal, as in a node, where node.log takes it."""
    handler = logging.NullHandler()
    logging.getLogger().addHandler(handler)
    yield
    logging.getLogger().removeHandler(handler)


@pytest.fixture(params=EXPORTERS.names())
def exporter(request, tmp_path):
    return request.param, built(request.param, tmp_path)


def test_it_takes_a_whole_run_and_says_nothing(exporter, capfd, tmp_path):
    name, member = exporter
    assert isinstance(member, Exporter)
    for event in story():
        if name == "otel" and event["event"] == "round":
            with pytest.raises(OSError, match="takes no spans"):
                member.export(event)
        else:
            member.export(event)
    member.close()
    assert capfd.readouterr() == ("", "")
    written = {path.relative_to(tmp_path / "node-0").parts[0] for path in tmp_path.rglob("*") if path.is_file()}
    assert written <= {name}, "it writes into its own folder"


def test_it_passes_over_what_it_does_not_know(exporter):
    name, member = exporter
    for event in ODD:
        if name == "otel" and event["event"] == "round":
            continue  # it would want to send
        member.export(event)
    member.close()


def test_it_leaves_no_thread_that_would_keep_the_process(exporter, there_before):
    _, member = exporter
    member.close()
    assert [each for each in threading.enumerate() if not each.daemon and each not in there_before] == []


def test_a_missing_extra_is_one_line_that_names_it(monkeypatch):
    monkeypatch.setattr(exporters, "find_spec", lambda name: None)
    for name in exporters._BUILT_IN:
        with pytest.raises(UsageError) as caught:
            exporters.check([name])
        assert caught.value.line() == f"the exporter {name} is not installed; pip install 'p2ptrain[{name}]'"


@pytest.mark.parametrize("command", ["up", "node"])
def test_it_is_said_before_anything_is_written(command, monkeypatch, tmp_path, capsys):
    monkeypatch.setattr(exporters, "find_spec", lambda name: None)
    words = [command, "--export", "tensorboard", "--task", "digits", "--run-dir", str(tmp_path / "run")]
    assert main(words) == 2
    said = "error: the exporter tensorboard is not installed; pip install 'p2ptrain[tensorboard]'\n"
    assert capsys.readouterr().err == said
    assert not (tmp_path / "run").exists()


def test_an_unknown_exporter_lists_those_there_are():
    with pytest.raises(UsageError, match=r"unknown monitoring.exporters 'mlflow'") as caught:
        exporters.check(["mlflow"])
    assert "otel, tensorboard, wandb" in caught.value.hint
