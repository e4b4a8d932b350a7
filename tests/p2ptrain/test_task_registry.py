"""Tasks by name, and every mistake that can be made in naming one."""

import sys

import pytest

from p2ptrain.tasks import TaskError, UnknownMemberError, get
from p2ptrain.tasks.digits import Digits

BROKEN = {
    "bare": "create = lambda: object()\n",
    "needy": "import a_module_that_nobody_has\n",
    "garbled": "def create(:\n",
}


@pytest.fixture
def here(tmp_path, monkeypatch):
    """A current directory of its own, which is not on the path yet, and no trace of its modules afterwards."""
    monkeypatch.setattr(sys, "path", list(sys.path))
    monkeypatch.setattr(sys, "dont_write_bytecode", True)
    monkeypatch.chdir(tmp_path)
    known = set(sys.modules)
    yield tmp_path
    for name in set(sys.modules) - known:
        if getattr(sys.modules[name], "__file__", "").startswith(str(tmp_path)):
            del sys.modules[name]


def test_a_built_in_task_takes_its_options():
    task = get("digits", partition="label")
    assert isinstance(task, Digits)
    assert task.partition == "label"


def test_an_unknown_name_lists_the_known_ones():
    with pytest.raises(UnknownMemberError, match="byte-lm, digits"):
        get("bite-lm")


@pytest.mark.parametrize("options", [{"colour": 1}, {"partitions": "iid"}])
def test_an_unknown_option_lists_those_there_are(options):
    with pytest.raises(TaskError, match="partition, alpha"):
        get("digits", **options)


@pytest.mark.parametrize(
    ("name", "options", "says"),
    [
        ("byte-lm", {"size": "huge"}, "nano, micro, small, base"),
        ("byte-lm", {"context": 0}, "context"),
        ("digits", {"partition": "odd"}, "iid, dirichlet, label"),
        ("digits", {"alpha": 0}, "alpha"),
        ("quadratic", {"dimension": 0}, "dimension"),
        ("quadratic", {"condition": 0.5}, "condition"),
        ("quadratic", {"noise": -1.0}, "noise"),
    ],
)
def test_an_option_that_does_not_fit_is_named(name, options, says):
    with pytest.raises(TaskError, match=says):
        get(name, **options)


def test_a_users_module_is_found_in_the_current_directory(here):
    (here / "mine_found.py").write_text(
        "from p2ptrain.tasks.digits import Digits\ndef create(alpha):\n    return Digits(alpha=alpha)\n"
    )
    task = get("mine_found:create", alpha=0.5)
    assert isinstance(task, Digits)
    assert task.alpha == 0.5
    with pytest.raises(TaskError, match="needs the option 'alpha'; its options: alpha"):
        get("mine_found:create")
    with pytest.raises(TaskError, match="takes no option 'beta'; its options: alpha"):
        get("mine_found:create", alpha=0.5, beta=1)


@pytest.mark.parametrize(
    ("name", "says"),
    [
        ("bare:create", "returned a object that lacks name, metric, build_model"),
        ("bare:created", "no function 'created'"),
        ("bare:__name__", "no function '__name__'"),
        ("needy:create", "needs 'a_module_that_nobody_has', which is not installed"),
        ("garbled:create", "cannot be imported"),
        ("absent_module:create", "there is no module 'absent_module'"),
        ("bare.deeper:create", "there is no module 'bare.deeper'"),
        (":create", "module:factory"),
        ("bare:", "module:factory"),
    ],
)
def test_mistakes_say_what_to_do(here, name, says):
    for module, text in BROKEN.items():
        (here / f"{module}.py").write_text(text)
    with pytest.raises(TaskError, match=says):
        get(name)
