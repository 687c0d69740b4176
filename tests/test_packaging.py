"""Promises of the distribution: beside PyPA's wheel, beside a user's own ``server``, without a
compiler, and without the server extra.

``checkout`` is this tree; ``editable`` and ``built`` are environments of their own, one with
``pip install -e`` of a copy of the tree, one with the wheel that was built from the sdist; ``base``
is ``built`` without the server extra. Folders of users hold a ``server`` and a ``wal`` of theirs.
"""

import ast
import json
import os
import re
import shutil
import signal
import subprocess
import sys
import venv
import zipfile
from contextlib import contextmanager
from importlib import metadata
from pathlib import Path

import pytest

import wheeld
from wheel import facade

ROOT = Path(__file__).parents[1]
JUNK = (".git", ".venv", "build", "dist", "*.so", "*.egg-info", "__pycache__", ".*_cache")

# Every top-level name that some PyPA wheel release (0.29 to 0.48) puts into wheel/.
PYPA_NAMES = frozenset(
    "__main__ _bdist_wheel _commands _metadata _setuptools_logging _version archive bdist_wheel "
    "cli decorator egg2wheel eggnames install macosx_libfile metadata paths pep425tags pkginfo "
    "signatures test tool util vendored wheelfile wininst2wheel".split()
)

CLIENT = """
import sys
path = list(sys.path)
import wheeld as wheel
wheel.Client, wheel.schedule_at, wheel.WheeldError
assert sys.path == path
print(sorted({"server", "wal", "asyncio", "structlog", "cffi", "_wheeld"} & set(sys.modules)))
"""

# A command of the daemon, then a child process that it starts by spawning.
DAEMON_AND_CHILD = """
import multiprocessing, wheeld

def whose():
    import server, wal
    return server.__doc__ + wal.__doc__

if __name__ == "__main__":
    assert wheeld.main(["token", "-h"]) == 0
    with multiprocessing.get_context("spawn").Pool(1) as pool:
        assert pool.apply(whose) == whose()
        assert "theirs" not in whose()
"""

# What `wheeld serve` needs, and what these need in turn.
SERVER_NEEDS = (
    "click",
    "cffi",
    "croniter",
    "python-dateutil",
    "sortedcontainers",
    "structlog",
    "tzdata",
)
USERS_FILES = {
    "module": {"server.py": '"""theirs"""\n', "wal.py": '"""theirs"""\n'},
    "package": {
        "server/__init__.py": '"""theirs"""\n',
        "server/commands/__init__.py": "",
        "wal/__init__.py": '"""theirs"""\n',
        "wal/frame.py": "",
    },
}


def start(*argv, cwd=ROOT, pythonpath="", **env):
    """Run a program to its end."""
    return subprocess.run(
        [str(part) for part in argv],
        cwd=cwd,
        env={**os.environ, "PYTHONPATH": str(pythonpath), **env},
        stdin=subprocess.DEVNULL,
        capture_output=True,
        text=True,
        check=False,
        timeout=240,
    )


def run(*argv, **options):
    """Run a program that must succeed; give what it printed."""
    done = start(*argv, **options)
    assert done.returncode == 0, done.stdout + done.stderr
    return done.stdout.strip()


def pip(folder, *args):
    run(sys.executable, "-P", "-m", "pip", "-q", "--python", folder / "bin" / "python", *args)


def site(folder):
    return next(folder.glob("lib/python*/site-packages"))


def make_venv(folder, *lent):
    """Make an environment without pip that borrows some of this one's distributions."""
    venv.create(folder, symlinks=True)
    for name in lent:
        files = metadata.distribution(name).files or []
        for top in {file.parts[0] for file in files} - {"..", "__pycache__"}:
            (site(folder) / top).symlink_to(metadata.distribution(name).locate_file(top))
    return folder


def copy_tree(folder):
    """Give what a fresh clone would hold."""
    return Path(shutil.copytree(ROOT, folder, ignore=shutil.ignore_patterns(*JUNK)))


@pytest.fixture(scope="session")
def distribution(tmp_path_factory):
    """Build the sdist of a fresh copy, then from it the wheel."""
    source = copy_tree(tmp_path_factory.mktemp("clone") / "tree")
    out = tmp_path_factory.mktemp("dist")
    run(sys.executable, "-P", "-m", "build", "--no-isolation", "--outdir", out, cwd=source)
    return next(out.glob("*.whl"))


@pytest.fixture(scope="session")
def built(distribution, tmp_path_factory):
    folder = make_venv(tmp_path_factory.mktemp("built"), *SERVER_NEEDS)
    pip(folder, "install", "--no-deps", distribution)
    return folder


@pytest.fixture(scope="session")
def base(distribution, tmp_path_factory):
    folder = make_venv(tmp_path_factory.mktemp("base"), "click")
    pip(folder, "install", "--no-deps", distribution)
    return folder


@pytest.fixture(scope="session")
def editable(tmp_path_factory):
    source = copy_tree(tmp_path_factory.mktemp("source") / "tree")
    folder = make_venv(
        tmp_path_factory.mktemp("editable"), *SERVER_NEEDS, "setuptools", "pycparser"
    )
    pip(folder, "install", "--no-deps", "--no-build-isolation", "-e", source)
    return folder


@pytest.fixture(params=["editable", "built"])
def scripts(request):
    """Give the bin/ folder of one environment."""
    return request.getfixturevalue(request.param) / "bin"


@pytest.fixture(params=[["wheeld"], ["python", "-m", "wheeld"]], ids=["script", "module"])
def command(request, scripts):
    """Give the two spellings of the command."""
    program, *args = request.param
    return [scripts / program, *args]


@pytest.fixture(params=USERS_FILES)
def users_folder(request, tmp_path):
    for name, text in USERS_FILES[request.param].items():
        (tmp_path / name).parent.mkdir(exist_ok=True)
        (tmp_path / name).write_text(text)
    return tmp_path


@pytest.fixture
def users_distribution(tmp_path):
    """Build a wheel that installs the user's packages ``server`` and ``wal``."""
    path = tmp_path / "theirs-1-py3-none-any.whl"
    info = {
        "METADATA": "Metadata-Version: 2.1\nName: theirs\nVersion: 1\n",
        "WHEEL": "Wheel-Version: 1.0\nRoot-Is-Purelib: true\nTag: py3-none-any\n",
        "RECORD": "",
    }
    with zipfile.ZipFile(path, "w") as archive:
        for name, text in USERS_FILES["package"].items():
            archive.writestr(name, text)
        for name, text in info.items():
            archive.writestr(f"theirs-1.dist-info/{name}", text)
    return path


# ---------------------------------------------------------------- names


def test_no_module_of_ours_takes_a_name_of_pypas():
    ours = {path.stem for path in (ROOT / "wheel").iterdir()} - {"__init__", "__pycache__"}
    assert ours & PYPA_NAMES == set()


def test_setuptools_vendored_wheel_stays_importable():
    run(sys.executable, "-c", "import setuptools.command.bdist_wheel as b, wheel; b.WheelFile")


def test_importing_the_facades_loads_nothing_but_the_table():
    code = "import os, sys; old = {*sys.modules}; import wheel, wheeld; print({*sys.modules} - old)"
    assert ast.literal_eval(run(sys.executable, "-S", "-c", code)) == {"wheel", "wheeld"}


def test_every_spelling_of_the_facade_has_the_same_names():
    """The table, wheeld.__all__ and the types that checkers read must not drift apart."""
    stub = ast.parse((ROOT / "wheel" / "__init__.pyi").read_text())
    typed = {
        alias.name: node.module
        for node in stub.body
        if isinstance(node, ast.ImportFrom)
        for alias in node.names
        if alias.name == alias.asname
    }
    table = {name: module for module, names in facade.MODULES.items() for name in names}
    assert typed == table
    assert sorted(wheeld.__all__) == sorted([*table, "main"])
    for name in table:
        assert getattr(wheeld, name) is facade.load(name, "wheel")


def test_an_unknown_name_is_an_attribute_error_that_names_it():
    with pytest.raises(AttributeError, match="'wheeld' has no attribute 'shedule_at'"):
        facade.load("shedule_at", "wheeld")


def test_the_version_is_written_once_for_each_reader():
    text = (ROOT / "pyproject.toml").read_text()
    assert re.findall(r'^version = "(.+)"$', text, re.MULTILINE) == [wheeld.__version__]


# ---------------------------------------------------------------- what is built


def tree(folder, target):
    files = (path for path in (ROOT / folder).rglob("*") if path.is_file())
    return {
        f"{target}/{path.relative_to(ROOT / folder).as_posix()}"
        for path in files
        if path.parent.name != "__pycache__"
    }


@pytest.mark.slow
def test_distribution_holds_the_whole_tree_and_no_top_level_server_or_wal(distribution):
    with zipfile.ZipFile(distribution) as archive:
        names = set(archive.namelist())
        (top_level,) = (name for name in names if name.endswith(".dist-info/top_level.txt"))
        assert archive.read(top_level).split() == [b"_wheeld", b"wheel", b"wheeld"]
    assert "-cp311-abi3-" in distribution.name
    made = {"_wheeld.abi3.so", "wheel.py", "wheeld/__init__.py"}
    made |= {"wheeld/__main__.py", "wheeld/py.typed"}
    daemon = {
        path for name in ("server", "wal", "bench") for path in tree(name, f"wheeld/_daemon/{name}")
    }
    library = tree("wheel", "wheel") - {"wheel/__init__.py"}
    assert {name for name in names if ".dist-info/" not in name} == made | daemon | library


@pytest.mark.slow
def test_base_install_needs_click_and_nothing_else(distribution):
    with zipfile.ZipFile(distribution) as archive:
        (name,) = (name for name in archive.namelist() if name.endswith(".dist-info/METADATA"))
        needs = re.findall(r"^Requires-Dist: (.+)$", archive.read(name).decode(), re.MULTILINE)
    assert [need for need in needs if "extra ==" not in need] == ["click>=8.1"]


# ---------------------------------------------------------------- base install


@pytest.mark.slow
def test_client_of_a_base_install_loads_nothing_of_the_daemon(base, tmp_path):
    assert run(base / "bin" / "python", "-c", CLIENT, cwd=tmp_path) == "[]"


@pytest.mark.slow
@pytest.mark.parametrize(
    "words", [["serve", "--data", "data"], ["wal", "verify", "data"], ["bench"]]
)
def test_base_install_says_which_extra_the_daemon_needs(base, words, tmp_path):
    (tmp_path / "data").mkdir()
    command = words[0]
    done = start(base / "bin" / "wheeld", *words, cwd=tmp_path)
    assert done.returncode == 1
    assert done.stdout == ""
    assert re.fullmatch(
        rf"Error: `wheeld {command}` needs the server extra, and '\w+' is not installed: "
        r"pip install 'wheeld\[server\]'\n",
        done.stderr,
    )


@pytest.mark.slow
def test_base_install_runs_every_command_of_the_users_side(base, tmp_path):
    for command in ("schedule", "jobs", "work"):
        assert "Examples:" in run(base / "bin" / "wheeld", command, "-h", cwd=tmp_path)
    version = json.loads(run(base / "bin" / "wheeld", "version", "--json", cwd=tmp_path))
    assert version["version"] == wheeld.__version__


# ---------------------------------------------------------------- beside the user's own names


@pytest.mark.slow
def test_daemon_starts_where_the_user_has_a_server(command, users_folder, tmp_path_factory):
    elsewhere = tmp_path_factory.mktemp("elsewhere")
    assert "Usage: wheeld" in run(*command, "serve", "-h", cwd=users_folder)
    assert "Usage: wheeld" in run(*command, "wal", "-h", cwd=elsewhere, pythonpath=users_folder)


@pytest.mark.slow
def test_built_bench_lists_its_groups_and_says_what_needs_a_checkout(built, users_folder):
    (users_folder / "bench.py").write_text("raise SystemExit('theirs')")
    command = [built / "bin" / "wheeld", "bench"]
    assert "W1: " in run(*command, "-h", cwd=users_folder, pythonpath=users_folder)
    done = start(*command, "wheel", "--quick", cwd=users_folder)
    assert done.returncode == 1, done.stderr
    assert "wd_wheel.c is not installed with wheeld: measure this in a checkout" in done.stdout


@pytest.mark.slow
def test_children_of_the_daemon_find_its_packages(scripts, users_folder):
    (users_folder / "start.py").write_text(DAEMON_AND_CHILD)
    run(scripts / "python", "start.py", cwd=users_folder)


@pytest.mark.slow
def test_a_server_that_was_imported_first_is_named(scripts, users_folder):
    code = "import server, sys, wheeld; sys.exit(wheeld.main(['serve', '-h']))"
    done = start(scripts / "python", "-c", code, cwd=users_folder)
    assert done.returncode == 1
    assert "a module named 'server'" in done.stderr
    assert "start the script `wheeld` instead" in done.stderr


@pytest.mark.slow
def test_client_loads_no_server_and_leaves_the_path_alone(scripts, users_folder):
    assert run(scripts / "python", "-c", CLIENT, cwd=users_folder) == "[]"


@pytest.mark.slow
def test_strict_mypy_accepts_a_user_who_has_a_server(built, users_folder):
    (users_folder / "typed.py").write_text(
        "import wheeld as wheel\n\n"
        "client: wheel.Client = wheel.Client()\n"
        'wheel.schedule_in("24h", 7)  # type: ignore[arg-type]\n'
        'made: wheel.Schedule = wheel.schedule_cron("n", "@daily", "h", {"a": 1}, jitter="5m")\n'
        "times: list[wheel.Fire] = made.next(3)\n"
        'wheel.schedule_cron("n", "@daily", "h", overlap="queue")  # type: ignore[arg-type]\n'
        'wheel.schedule_cron("n", "@daily", "h", zone="UTC")  # type: ignore[call-arg]\n'
        'wheel.dag("d", cron="@daily").task("t", "h", when="some")  # type: ignore[arg-type]\n'
    )
    mypy = [sys.executable, "-P", "-m", "mypy", "--strict", "--cache-dir", os.devnull]
    run(*mypy, "--python-executable", built / "bin" / "python", "typed.py", cwd=users_folder)


@contextmanager
def serving(folder, *, cwd):
    """Run the daemon of an environment on a free port; give its process and its URL."""
    words = ["serve", "--data", "data", "--listen", "127.0.0.1:0"]
    with subprocess.Popen(
        [folder / "bin" / "wheeld", *words],
        cwd=cwd,
        stdin=subprocess.DEVNULL,
        stdout=subprocess.DEVNULL,
        stderr=subprocess.PIPE,
        text=True,
    ) as process:
        try:
            lines = iter(process.stderr)
            ready = next((line for line in lines if '"server_ready"' in line), None)
            assert ready is not None, f"it ended with {process.wait()}"
            (port,) = re.findall(r"127\.0\.0\.1:(\d+)", ready)
            yield process, f"wheeld://127.0.0.1:{port}"
        finally:
            process.kill()


@pytest.mark.slow
@pytest.mark.crash
def test_built_server_keeps_a_job_of_a_base_client_over_a_kill(built, base, users_folder):
    client = base / "bin" / "wheeld"
    with serving(built, cwd=users_folder) as (process, url):
        words = ["schedule", "--in", "1h", "mail", '{"user": 7}', "--json", "--url", url]
        job = json.loads(run(client, *words, cwd=users_folder))
        process.kill()
        assert process.wait() == -signal.SIGKILL
    with serving(built, cwd=users_folder) as (process, url):
        words = ["jobs", "show", job["id"], "--json", "--url", url]
        found = json.loads(run(client, *words, cwd=users_folder))
        process.terminate()
        assert process.wait(60) == 0
    assert (found["id"], found["uid"], found["state"]) == (job["id"], job["uid"], "scheduled")


# ---------------------------------------------------------------- other distributions


@pytest.mark.slow
@pytest.mark.parametrize(
    "other",
    [
        pytest.param("wheel==0.37.1", marks=pytest.mark.long),
        pytest.param("wheel==0.45.1", marks=pytest.mark.long),
        "wheel",
        "theirs",
    ],
)
def test_any_order_of_installs_and_uninstalls_leaves_the_rest_whole(
    other, distribution, users_distribution, tmp_path
):
    env = make_venv(tmp_path / "env", *SERVER_NEEDS)
    other_name, other_works = other.partition("=")[0], ["-m", "wheel", "version"]
    if other == "theirs":
        other = users_distribution
        other_works = [
            "-c",
            "import server, wal; assert server.__doc__ + wal.__doc__ == 2 * 'theirs'",
        ]

    def ours_works():
        assert "Usage: wheeld" in run(env / "bin" / "wheeld", "serve", "-h", cwd=tmp_path)
        assert run(env / "bin" / "python", "-c", CLIENT, cwd=tmp_path) == "[]"

    def theirs_works():
        run(env / "bin" / "python", *other_works, cwd=tmp_path)

    pip(env, "install", other)
    with zipfile.ZipFile(distribution) as archive:
        assert not [name for name in archive.namelist() if (site(env) / name).exists()]
    pip(env, "install", "--no-deps", distribution)
    ours_works()
    theirs_works()
    pip(env, "uninstall", "-y", other_name)
    ours_works()
    pip(env, "install", other)
    ours_works()
    theirs_works()
    pip(env, "uninstall", "-y", "wheeld")
    theirs_works()
    assert not list(site(env).glob("wheeld*")) + list(site(env).glob("_wheeld*"))


# ---------------------------------------------------------------- building where something lacks

FALSE_CC = """#!/bin/sh
for word in "$@"; do
    case "$word" in *.c) if grep -q "Python.h" "$word"; then exit 1; fi ;; esac
done
exec gcc "$@"
"""


def build_core(folder, cc):
    argv = [sys.executable, "-P", "setup.py", "-q", "build_ext", "--build-lib", "out"]
    return start(*argv, cwd=folder, CC=str(cc))


def test_a_missing_compiler_is_one_sentence(tmp_path):
    done = build_core(copy_tree(tmp_path / "tree"), "/nonexistent/cc")
    assert done.returncode == 1
    assert done.stderr.splitlines()[-1] == (
        "wheeld: the C core needs a C compiler and Python's headers, and no compiler works here: "
        "install both (Debian: apt-get install gcc python3-dev), then try again"
    )
    assert "Traceback" not in done.stderr


@pytest.mark.slow
def test_pip_shows_the_sentence_about_the_compiler(tmp_path):
    source = copy_tree(tmp_path / "tree")
    argv = ["wheel", "--no-build-isolation", "--no-deps", "--wheel-dir", tmp_path, source]
    done = start(sys.executable, "-P", "-m", "pip", *argv, CC="/nonexistent/cc")
    assert done.returncode != 0
    said = done.stdout + done.stderr
    assert "needs a C compiler and Python's headers, and no compiler works here" in said
    assert "Traceback" not in said


def test_missing_python_headers_are_one_sentence(tmp_path):
    cc = tmp_path / "cc"
    cc.write_text(FALSE_CC)
    cc.chmod(0o755)
    tree = copy_tree(tmp_path / "tree")
    for path in (tree / "csrc").glob("wd_*.c"):
        path.unlink()  # the module that cffi writes is the one that needs Python.h
    done = build_core(tree, cc)
    assert done.returncode == 1
    assert "Python's headers, and the headers are not here: install both" in done.stderr
    assert "Traceback" not in done.stderr


def test_a_fault_in_the_core_is_not_blamed_on_the_compiler(tmp_path):
    tree = copy_tree(tmp_path / "tree")
    for path in (tree / "csrc").glob("wd_*.c"):
        path.unlink()
    (tree / "csrc" / "wd_broken.c").write_text("int f(void) { return undeclared; }\n")
    done = build_core(tree, "gcc")
    assert done.returncode != 0
    assert "undeclared" in done.stderr
    assert "needs a C compiler" not in done.stderr
