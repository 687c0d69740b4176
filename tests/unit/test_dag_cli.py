"""``wheeld dag`` and ``wheel.dag``: schedules that run after one another, seen as one graph."""

import json

import pytest

import wheeld
from tests.unit.test_commands import Scripted
from wheel.errors import CycleError, InvalidRequest
from wheel.graphs import dag

NEXT_MS = 1_798_099_200_000  # 2026-12-24T08:00:00Z


def entry(name, *after, dag="nightly", next_ms=None):
    return {
        "name": name,
        "version": 1,
        "handler": f"{name}.run",
        "state": "active",
        "next_ms": next_ms,
        "dag": dag,
        "after": list(after),
    }


ENTRIES = [
    entry("alone", dag=None, next_ms=NEXT_MS),
    entry("db", next_ms=NEXT_MS + 1000),
    entry("files", next_ms=NEXT_MS),
    entry("report", "verify", "elsewhere"),
    entry("verify", "db", "files"),
]


@pytest.fixture
def server(monkeypatch):
    scripted = Scripted()
    monkeypatch.setenv("WHEELD_URL", scripted.url)
    yield scripted
    scripted.close()


def run(server, *argv, replies=(), status=0):
    """Run a command on a server with ENTRIES; return what it asked behind the list."""
    listed = ENTRIES if argv[0] == "list" else [one for one in ENTRIES if one["dag"] == argv[1]]
    server.replies["CRON"] = [["0", listed], *replies]
    server.asked.clear()
    assert wheeld.main(["dag", *argv]) == status
    assert ("DAG" in server.asked[1]) == (argv[0] != "list"), "only the graph's are asked for"
    return [words[1:] for words in server.asked[2:]]


def rows(capsys):
    return [line.split("\t") for line in capsys.readouterr().out.splitlines()]


def test_list_counts_the_tasks_of_each_graph(server, capsys):
    run(server, "list")
    assert rows(capsys) == [["nightly", "4", "2026-12-24T08:00:00Z"]]
    run(server, "list", "--json")
    assert json.loads(capsys.readouterr().out) == {
        "items": [{"name": "nightly", "tasks": 4, "next": "2026-12-24T08:00:00Z"}]
    }


def test_show_puts_each_task_behind_all_that_it_waits_for(server, capsys):
    run(server, "show", "nightly")
    assert [(row[0], row[1], row[3]) for row in rows(capsys)] == [
        ("0", "db", ""),
        ("0", "files", ""),
        ("1", "verify", "db, files"),
        ("2", "report", "verify, elsewhere"),
    ]


def test_show_of_a_date_tells_what_became_of_each_task(server, capsys):
    done = {"run": "x@y", "nominal_ms": NEXT_MS, "date": "2026-12-24", "outcome": "succeeded"}
    held = {**done, "run": "r@y", "outcome": "held", "reason": "upstream_failed"}
    pages = [["0", [done]], ["0", []], ["0", [done]], ["0", [held, done]]]
    asked = run(server, "show", "nightly", "--date", "2026-12-24", replies=pages)
    assert [words[1] for words in asked] == ["db", "files", "verify", "report"]
    assert all(words[2:4] == ["DATE", "2026-12-24"] for words in asked)
    assert [row[4:] for row in rows(capsys)] == [
        ["x@y", "succeeded", ""],
        ["", "none", ""],
        ["x@y", "succeeded", ""],
        ["r@y", "held", "upstream_failed"],
    ]


def test_graph_is_edges_or_the_language_of_graphviz(server, capsys):
    run(server, "graph", "nightly")
    assert rows(capsys) == [
        ["db", ""],
        ["files", ""],
        ["verify", "db, files"],
        ["report", "verify, elsewhere"],
    ]
    run(server, "graph", "nightly", "--dot")
    lines = capsys.readouterr().out.splitlines()
    assert lines[0] == 'digraph "nightly" {'
    assert '  "db" -> "verify";' in lines
    assert '  "elsewhere" -> "report";' in lines


def test_rerun_runs_each_task_once_upstreams_first(server, capsys):
    made = [["db@x~1"], ["files@x~1"], ["verify@x~1"], ["report@x~1"]]
    looks = [of_date("x", "succeeded")] * 4
    asked = run(server, "rerun", "nightly", "2026-12-24", replies=[*looks, *made])
    assert [words[:3] for words in asked[4:]] == [
        ["RERUN", task, "2026-12-24"] for task in ("db", "files", "verify", "report")
    ]
    assert all("DOWNSTREAM" not in words for words in asked)
    assert rows(capsys) == [[run_id, "made"] for [run_id] in made]


def of_date(name, *outcomes):
    run = {"run": f"{name}@x", "nominal_ms": NEXT_MS, "date": "2026-12-24"}
    return ["0", [{**run, "outcome": outcome} for outcome in outcomes]]


def test_rerun_after_a_failure_leaves_held_runs_to_go_on(server, capsys):
    """What waited for the one that failed is held: to run that again was a conflict, half way."""
    looks = [of_date("db", "dead"), of_date("files", "succeeded")]
    looks += [of_date("verify", "upstream_failed"), of_date("report", "held")]
    made = [["db@x~1"], ["files@x~1"]]
    words = ["rerun", "nightly", "2026-12-24"]
    asked = run(server, *words, replies=[*looks, *made])
    assert [asked[0][:2], *(words[:2] for words in asked[4:])] == [
        ["RUNS", "db"],
        ["RERUN", "db"],
        ["RERUN", "files"],
    ]
    held = [["verify@x", "held"], ["report@x", "held"]]
    assert rows(capsys) == [["db@x~1", "made"], ["files@x~1", "made"], *held]
    run(server, *words, "--json", replies=[*looks, *made])
    assert json.loads(capsys.readouterr().out)["held"] == ["verify@x", "report@x"]


def test_rerun_of_a_date_without_runs_makes_each_once(server, capsys):
    """The run of an upstream makes that of its follower, which was then no more to be made."""
    looks = [of_date("x")] * 4
    made = [["db@x"], ["files@x"], of_date("verify", "held"), of_date("report"), ["report@x"]]
    asked = run(server, "rerun", "nightly", "2026-12-24", replies=[*looks, *made])
    assert [words[:2] for words in asked[4:]] == [
        ["RERUN", "db"],
        ["RERUN", "files"],
        ["RUNS", "verify"],
        ["RUNS", "report"],
        ["RERUN", "report"],
    ]
    assert [row[0] for row in rows(capsys)] == ["db@x", "files@x", "verify@x", "report@x"]


@pytest.mark.parametrize("outcome", ["running", "waiting"])
def test_rerun_beside_a_run_that_is_under_way_changes_nothing(server, capsys, outcome):
    looks = [of_date("db", "succeeded"), of_date("files", outcome), of_date("v"), of_date("r")]
    asked = run(server, "rerun", "nightly", "2026-12-24", replies=looks, status=5)
    assert {words[0] for words in asked} == {"RUNS"}
    assert f"files@x is {outcome}, so nothing was run again" in capsys.readouterr().err


def test_backfill_is_of_the_tasks_with_a_rule(server, capsys):
    asked = run(
        server, "backfill", "nightly", "2026-12-24T00:00Z", "now", "--dry-run",
        replies=[["db@x"], ["files@x"]],
    )  # fmt: skip
    assert [words[1] for words in asked] == ["db", "files"]
    assert all("DRY" in words for words in asked)
    assert [row[0] for row in rows(capsys)] == ["db@x", "files@x"]


def test_a_graph_that_is_not_there_exits_3(server, capsys):
    run(server, "show", "daily", status=3)
    assert "'daily'" in capsys.readouterr().err


# ---------------------------------------------------------------- wheel.dag


def nightly(**options):
    return dag("nightly", cron="0 2 * * *", tz="Europe/Rome", jitter="5m", **options)


def test_a_graph_gives_definitions_upstreams_first():
    graph = nightly(catch_up="all", catch_up_window="7d")
    report = graph.task("report", "report.build", after="verify", jitter="1m")
    db = graph.task("db", "backup.db", {"full": True}, timeout="2h", tz="UTC")
    files = graph.task("files", "backup.files")
    graph.task("verify", "backup.verify", after=[db, files])
    graph.task("notify", "mail.ops", after=[report, "elsewhere"], when="all_done")
    found = {definition.name: definition for definition in graph}
    order = list(found)
    assert order.index("verify") > max(order.index("db"), order.index("files"))
    assert order.index("report") > order.index("verify")
    assert [found[name].rule for name in ("db", "files", "verify", "report", "notify")] == [
        "0 2 * * *", "0 2 * * *", "-", "-", "-",
    ]  # fmt: skip
    assert {definition.options["dag"] for definition in graph} == {"nightly"}
    assert found["db"].options["tz"] == "UTC", "a task's own option comes first"
    assert found["files"].options["tz"] == "Europe/Rome"
    assert found["files"].options["jitter"] == "5m"
    assert "jitter" not in found["verify"].options, "it has no rule whose times could move"
    assert found["report"].options["jitter"] == "1m", "but what a task says itself is said"
    assert found["notify"].after == ("report", "elsewhere")
    assert found["notify"].options["after_rule"] == "all_done"
    assert found["verify"].options["catch_up_window"] == "7d"
    for definition in graph:
        definition.words()


def test_tasks_that_wait_for_each_other_are_refused_with_their_path():
    graph = nightly()
    graph.task("verify", "v", after="report")
    graph.task("report", "r", after="verify")
    with pytest.raises(CycleError) as found:
        list(graph)
    assert sorted(set(found.value.path)) == ["report", "verify"]
    assert found.value.path[0] == found.value.path[-1]


def test_a_task_that_stands_twice_is_refused():
    graph = nightly()
    graph.task("db", "backup.db")
    with pytest.raises(InvalidRequest, match="'db' stands twice in the graph 'nightly'"):
        graph.task("db", "backup.db")
    with pytest.raises(InvalidRequest, match="control character"):
        graph.task("a\nb", "backup.db")
