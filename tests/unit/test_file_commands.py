"""``wheeld apply`` and ``wheeld cron import-...`` against a server of a few scripted replies."""

import json

import pytest

import wheeld
from tests.unit.test_commands import Scripted
from wheel.commands import machine

NEXT_MS = 1_798_099_200_000  # 2026-12-24T08:00:00Z
BAD_MINUTE = b"-CRON minute '99' at position 0: 99 is not 0 to 59\r\n"
FILE = """\
prefix = "shop/"

[schedule."shop/日報"]
cron = "0 9 * * 1"
handler = "digest.send"

[schedule."shop/report"]
after = ["shop/日報"]
handler = "report.build"
"""
CRONTAB = """\
PATH=/usr/bin
@reboot root start
0 5 * * * root /opt/backup.sh %yes
"""


class Schedules(Scripted):
    """Holds schedules by name; ``refuse`` has CRON SET of a name fail."""

    def __init__(self):
        self.held = {}
        self.refuse = {}
        super().__init__()
        self.replies["CRON"] = self

    def __len__(self):
        return 1  # the base class answers with our first item for ever

    def __getitem__(self, _index):
        words = self.asked[-1]
        verb, name = words[1], words[2] if len(words) > 2 else ""
        if verb == "SET":
            return self._set(words, name)
        if verb == "GET":
            return self.held.get(name)
        if verb == "LIST":
            return ["0", [self.held[name] for name in sorted(self.held)]]
        if verb == "DEL":
            del self.held[name]
        if verb == "PAUSE":
            self.held[name]["state"] = "paused"
        return "OK"

    def _set(self, words, name):
        if name in self.refuse:
            return self.refuse[name]
        after = []
        if "AFTER" in words:
            at = words.index("AFTER")
            after = words[at + 2 : at + 2 + int(words[at + 1])]
        word = "unchanged" if name in self.held else "created"
        if "DRY" not in words:
            self.held.setdefault(name, {"name": name, "state": "active", "after": after})
        return [1, word, NEXT_MS]

    def changes(self):
        return [
            words[1:3]
            for words in self.asked
            if words[0] == "CRON" and words[1] in {"SET", "DEL", "PAUSE"} and "DRY" not in words
        ]


@pytest.fixture
def server(monkeypatch):
    scripted = Schedules()
    monkeypatch.setenv("WHEELD_URL", scripted.url)
    monkeypatch.setenv("TZ", "Europe/Rome")
    yield scripted
    scripted.close()


@pytest.fixture
def file(tmp_path):
    def write(text, name="schedules.toml"):
        path = tmp_path / name
        path.write_text(text)
        return str(path)

    return write


def rows(capsys):
    return [line.split("\t") for line in capsys.readouterr().out.splitlines()]


# ------------------------------------------------------------------------------ apply


def test_apply_makes_the_schedules_upstreams_first(server, file, capsys):
    assert wheeld.main(["apply", file(FILE)]) == 0
    assert server.changes() == [["SET", "shop/日報"], ["SET", "shop/report"]]
    assert rows(capsys) == [
        ["shop/日報", "created", "1", "2026-12-24T08:00:00Z"],
        ["shop/report", "created", "1", "2026-12-24T08:00:00Z"],
    ]
    assert wheeld.main(["apply", file(FILE), "--json"]) == 0
    document = json.loads(capsys.readouterr().out)
    assert [item["word"] for item in document["items"]] == ["unchanged", "unchanged"]


def test_a_dry_run_changes_nothing(server, file, capsys):
    server.held["shop/old"] = {"name": "shop/old", "after": []}
    assert wheeld.main(["apply", file(FILE), "--prune", "--dry-run"]) == 0
    assert server.changes() == []
    printed = capsys.readouterr()
    assert "shop/old\tdeleted" in printed.out
    assert "nothing was changed" in printed.err


def test_one_entry_that_the_server_refuses_refuses_the_file_with_its_line(server, file, capsys):
    server.refuse["shop/日報"] = BAD_MINUTE
    path = file(FILE.replace("0 9", "99 9"))
    assert wheeld.main(["apply", path, "--prune"]) == 2
    assert server.changes() == []
    said = capsys.readouterr().err
    assert f"{path} is refused, nothing was changed" in said
    assert "line 3: schedule 'shop/日報': CRON minute '99' at position 0" in said


def test_a_bad_file_is_refused_before_the_server_is_asked(server, file, capsys):
    assert wheeld.main(["apply", file(FILE.replace("handler", "handle"))]) == 2
    assert server.asked == []
    said = capsys.readouterr().err
    assert "line 5: unknown key 'handle'; did you mean 'handler'?" in said
    assert "line 9: unknown key 'handle'" in said


def test_a_circle_is_refused_with_its_line_and_its_path(server, file, capsys):
    circle = FILE.replace('cron = "0 9 * * 1"', 'after = ["shop/report"]')
    assert wheeld.main(["apply", file(circle)]) == 2
    assert server.changes() == []
    said = capsys.readouterr().err
    assert "line 3: " in said or "line 7: " in said
    assert "shop/report -> shop/日報" in said


def test_prune_deletes_what_the_file_lacks_and_keeps_to_its_prefix(server, file, capsys):
    for name, after in (("shop/a", ["shop/b"]), ("shop/b", []), ("other", [])):
        server.held[name] = {"name": name, "after": after}
    assert wheeld.main(["apply", file(FILE), "--prune"]) == 0
    assert server.changes()[2:] == [["DEL", "shop/a"], ["DEL", "shop/b"]]
    assert sorted(server.held) == ["other", "shop/report", "shop/日報"]
    assert ["shop/b", "deleted", "", ""] in rows(capsys)


def test_without_prune_nothing_is_deleted(server, file):
    server.held["shop/a"] = {"name": "shop/a", "after": []}
    assert wheeld.main(["apply", file(FILE)]) == 0
    assert "shop/a" in server.held


@pytest.mark.parametrize(
    ("who", "says"),
    [
        ("other", "'other' on the server waits for 'shop/a', which would go"),
        ("shop/report", "line 7: 'shop/report' waits for 'shop/a', which would go"),
    ],
)
def test_prune_refuses_to_delete_what_is_waited_for(server, file, capsys, who, says):
    server.held["shop/a"] = {"name": "shop/a", "after": []}
    server.held["other"] = {"name": "other", "after": ["shop/a"] if who == "other" else []}
    text = FILE if who == "other" else FILE.replace('["shop/日報"]', '["shop/a"]')
    assert wheeld.main(["apply", file(text), "--prune"]) == 2
    assert server.changes() == []
    assert says in capsys.readouterr().err


@pytest.mark.parametrize(
    ("content", "says"),
    [(b"[schedule.x]\n\xff", "line 2: it is not UTF-8"), (None, "No such file")],
)
def test_a_file_that_cannot_be_read_is_refused(server, tmp_path, capsys, content, says):
    path = tmp_path / "s.toml"
    if content is not None:
        path.write_bytes(content)
    assert wheeld.main(["apply", str(path)]) == 2
    assert says in capsys.readouterr().err
    assert server.asked == []


def test_a_file_that_is_too_large_is_refused(server, file, capsys, monkeypatch):
    monkeypatch.setattr(machine, "FILE_BYTES_MAX", 10)
    assert wheeld.main(["apply", file(FILE)]) == 2
    assert "is larger than" in capsys.readouterr().err


# ------------------------------------------------------------------------------ imports


def test_a_crontab_is_imported_and_each_thing_that_differs_is_named(server, file, capsys):
    path = file(CRONTAB, "crontab")
    argv = ["cron", "import-crontab", path, "--prefix", "web1/", "--user-column"]
    assert wheeld.main(argv) == 0
    printed = capsys.readouterr()
    assert [line.split("\t") for line in printed.out.splitlines()] == [
        ["line 3", "created", "web1/backup.sh", "0 5 * * *", "shell.run", "user",
         "as user root: its worker must be run by root"],
        ["line 3", "", "", "", "", "percent",
         "% in the command: what is behind it is its standard input, as cron does"],
        ["crontab", "noted", "", "", "", "zone", "its lines are read in Europe/Rome"],
        ["line 1", "noted", "", "", "", "path",
         "PATH: set for the commands below, kept in each schedule's payload"],
        ["line 2", "skipped", "", "", "", "reboot",
         "'start' is left out: nothing here starts with the machine; use systemd"],
    ]  # fmt: skip
    assert printed.err == "1 schedule, 1 left out\n"
    [asked] = [words for words in server.asked if words[1] == "SET" and "DRY" not in words]
    assert asked[2:5] == ["web1/backup.sh", "0 5 * * *", "shell.run"]
    assert json.loads(asked[5]) == {
        "command": "/opt/backup.sh",
        "stdin": "yes\n",
        "env": {"PATH": "/usr/bin"},
        "user": "root",
    }
    assert asked[6:] == [
        "TZ", "Europe/Rome", "OVERLAP", "allow", "CATCHUP", "skip", "RETRIES", "0", "TIMEOUT", "0",
    ]  # fmt: skip


def test_a_dry_import_changes_nothing_and_says_so(server, file, capsys):
    path = file(CRONTAB, "crontab")
    assert wheeld.main(["cron", "import-crontab", path, "--dry-run", "--json"]) == 0
    assert server.changes() == []
    document = json.loads(capsys.readouterr().out)
    assert document["dry_run"]
    assert [item["word"] for item in document["items"]] == ["created"]
    assert [remark["kind"] for remark in document["remarks"]] == ["zone", "path", "reboot"]


def test_a_rule_that_the_server_refuses_refuses_the_crontab(server, file, capsys):
    server.refuse["run"] = BAD_MINUTE
    path = file("0 5 * * * fine\n99 5 * * * run\n", "crontab")
    assert wheeld.main(["cron", "import-crontab", path]) == 2
    assert server.changes() == []
    assert "line 2: schedule 'run': CRON minute" in capsys.readouterr().err


def test_suspended_cronjobs_are_paused(server, file, capsys):
    job = {
        "kind": "CronJob",
        "metadata": {"name": "backup"},
        "spec": {"schedule": "@daily", "suspend": True, "timeZone": "UTC"},
    }
    path = file(json.dumps({"items": [job]}), "jobs.json")
    for _ in range(2):  # the second time it is paused already
        assert wheeld.main(["cron", "import-kubernetes", path, "--handler", "mine"]) == 0
    assert server.changes() == [
        ["SET", "default/backup"],
        ["PAUSE", "default/backup"],
        ["SET", "default/backup"],
    ]
    assert "created, paused\tdefault/backup\t@daily\tmine\tsuspend" in capsys.readouterr().out


def test_a_beat_dict_is_imported(server, file, capsys):
    path = file(json.dumps({"n": {"task": "t", "schedule": 30}}), "beat.json")
    assert wheeld.main(["cron", "import-celery", path, "--tz", "Asia/Tokyo"]) == 0
    assert server.changes() == [["SET", "n"]]
    assert "TZ" in server.asked[-1]
    assert "@every 30s\tt\tinterval" in capsys.readouterr().out


@pytest.mark.parametrize(
    ("variable", "timezone", "localtime", "zone"),
    [
        (":Europe/Rome", None, None, "Europe/Rome"),
        ("", "Asia/Tokyo\n", None, "Asia/Tokyo"),
        ("", None, "/usr/share/zoneinfo/America/New_York", "America/New_York"),
        ("", None, None, None),
    ],
)
def test_the_machines_zone_is_found(monkeypatch, variable, timezone, localtime, zone):
    def read_text(self, **_):
        if timezone is None:
            raise FileNotFoundError(str(self))
        return timezone

    def readlink(self):
        if localtime is None:
            raise OSError(str(self))
        return localtime

    monkeypatch.setenv("TZ", variable)
    monkeypatch.setattr(machine.Path, "read_text", read_text)
    monkeypatch.setattr(machine.Path, "readlink", readlink)
    assert machine.local_zone() == zone
