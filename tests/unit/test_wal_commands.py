"""`wheeld wal` over stores with real jobs and checkpoints, as a shell sees it."""

import json
import re

import pytest

from server.commands.wal import wal_group
from tests.store import Life, filled
from tests.unit.test_server_commands import shell


@pytest.fixture
def data(tmp_path):
    return filled(tmp_path / "data")


def damage(path, at):
    content = bytearray(path.read_bytes())
    content[at] ^= 1
    path.write_bytes(content)


def document(capsys, *words, status=0):
    found, out, err = shell(capsys, wal_group, *words, "--json")
    assert found == status, err
    return json.loads(out)


# ---- verify ----


def test_verify_shows_checkpoints_and_what_a_start_reads(capsys, data):
    status, out, _ = shell(capsys, wal_group, "verify", data)
    assert status == 0
    lines = out.splitlines()
    assert lines[0].split()[:2] == ["checkpoint", "jobs"]
    assert [line.split()[-1] for line in lines[1:3]] == ["ok", "ok"]
    assert "no damage" in out
    found = document(capsys, "verify", data)
    assert [one["in_force"] for one in found["checkpoints"]] == [True, True]
    assert found["checkpoint_lsn"] == found["checkpoints"][-1]["start_lsn"] > 0
    assert f"Checkpoint lsn {found['checkpoint_lsn']} + 1 segment restores everything." in out


def test_verify_of_a_damaged_checkpoint_is_damage_although_a_start_would_make_up_for_it(
    capsys, data
):
    newest = max((data / "snap").iterdir())
    damage(newest, 5000)
    status, out, _ = shell(capsys, wal_group, "verify", data)
    assert status == 11
    assert f"DAMAGED: {newest.name}" in out
    found = document(capsys, "verify", data, status=11)
    assert found["refused"] is None
    offset = int(re.search(r"offset (\d+)", found["checkpoints"][-1]["problem"])[1])
    assert 4096 <= offset <= 5000
    assert found["checkpoint_lsn"] == found["checkpoints"][0]["start_lsn"]


def test_verify_of_a_damaged_manifest_is_what_a_start_would_say(capsys, data):
    damage(data / "MANIFEST", 60)
    assert document(capsys, "verify", data, status=11)["refused"]["rule"] == "manifest"


# ---- inspect ----


def test_inspect_says_every_record_in_words(capsys, data):
    status, out, err = shell(capsys, wal_group, "inspect", data)
    assert (status, err) == (0, "")
    assert "CREATED" in out
    assert "handler 1 (pay)" in out or "handler 1 (mail)" in out
    assert "payload 'payload-3'" in out
    assert "(by ACK)" in out
    found = document(capsys, "inspect", data)["items"]
    assert [item["lsn"] for item in found] == list(range(1, len(found) + 1))
    assert {"HANDLER", "POLICY", "CREATED", "LEASED", "ENDED", "DIED", "RETRY"} <= {
        item["kind"] for item in found
    }


def test_inspect_takes_a_range_kinds_a_job_and_a_limit(capsys, data):
    found = document(capsys, "inspect", data, "--from", 10, "--to", 20)["items"]
    assert [item["lsn"] for item in found] == list(range(10, 21))
    ended = document(capsys, "inspect", data, "--kind", "ended", "--limit", 2)["items"]
    assert [item["kind"] for item in ended] == ["ENDED", "ENDED"]
    assert document(capsys, "inspect", data, "--kind", "ended", "--limit", 2)["more"] is True
    assert document(capsys, "inspect", data, "--from", 10, "--to", 20)["more"] is False
    _, _, err = shell(capsys, wal_group, "inspect", data, "--limit", "2")
    assert "there are more than 2" in err
    job = ended[0]["id"]
    about = document(capsys, "inspect", data, "--job", job)["items"]
    assert [item["kind"] for item in about] == ["CREATED", "LEASED", "ENDED"]
    assert {item["id"] for item in about} == {job}


def test_inspect_of_a_segment_stops_where_it_does_not_verify_with_what_came_before(capsys, data):
    segment = max((data / "wal").iterdir())
    whole = document(capsys, "inspect", segment)["items"]
    damage(segment, whole[-1]["offset_bytes"] + 70)
    found = document(capsys, "inspect", segment, status=11)
    assert found["items"] == whole[: len(found["items"])]
    assert 0 < len(found["items"]) < len(whole)
    assert "fails its checksum" in found["problem"]
    status, out, err = shell(capsys, wal_group, "inspect", segment)
    assert status == 11
    assert out
    assert "fails its checksum" in err


def test_inspect_of_a_checkpoint_lists_its_chunks(capsys, data):
    newest = max((data / "snap").iterdir())
    found = document(capsys, "inspect", newest)["items"]
    assert found[0]["offset_bytes"] == 4096
    assert {"handlers", "policies", "rows", "ended", "once"} <= {item["kind"] for item in found}
    assert found[-1]["kind"] == "end"
    assert sum(item["size_bytes"] for item in found) + 4096 == newest.stat().st_size
    damage(newest, newest.stat().st_size - 20)
    assert document(capsys, "inspect", newest, status=11)["problem"]


@pytest.mark.parametrize("word", ["verify", "inspect", "stat"])
def test_what_is_not_there_is_status_3(capsys, tmp_path, word):
    status, _, err = shell(capsys, wal_group, word, tmp_path / "none")
    assert status == 3
    assert "none" in err


# ---- stat ----


def test_stat_counts_files_records_and_what_a_restart_reads(capsys, data):
    found = document(capsys, "stat", data)
    files = list((data / "wal").iterdir())
    assert found["segments"] == len(files)
    assert found["segment_bytes"] == sum(path.stat().st_size for path in files)
    assert found["checkpoints"] == 2
    snaps = sorted((data / "snap").iterdir())
    assert found["restart_checkpoint_bytes"] == snaps[-1].stat().st_size
    assert found["checkpoint_jobs"] == 38  # what has not ended of the 43
    assert found["kinds"]["CREATED"] == 43
    assert found["records"] == sum(found["kinds"].values())
    assert found["jobs_live"] == 43 - 4 - 1  # four done, one cancelled
    assert 0 < found["live_ratio"] < 1
    status, out, _ = shell(capsys, wal_group, "stat", data)
    assert status == 0
    assert "a restart    reads" in out


# ---- repair ----


def test_repair_needs_the_exact_number_and_says_it(capsys, data):
    segment = max((data / "wal").iterdir())
    items = document(capsys, "inspect", data)["items"]
    last = items[-1]["lsn"]
    damage(segment, items[-1]["offset_bytes"] + 70)
    found = document(capsys, "verify", data, status=11)["refused"]
    lsn = found["lsn"]
    lost = last - lsn + 1
    words = ("repair", data, "--truncate-at", lsn, "--i-accept-losing")
    status, _, err = shell(capsys, wal_group, *words, f"{lost + 1}-records")
    assert status == 2
    assert f"loses {lost} records" in err
    assert shell(capsys, wal_group, *words, "all")[0] == 2
    done = document(capsys, *words, f"{lost}-records")
    assert done["records_lost"] == lost
    assert document(capsys, "verify", data)["next_lsn"] == lsn
    life = Life(data)
    assert life.core.lsn() == lsn - 1
    assert life.ask("SCHEDULE mail +1h x").startswith(b"$")
    assert life.core.check() == 0
    life.stop()


def test_repair_keeps_off_a_store_that_is_served(capsys, data):
    life = Life(data)
    status, _, err = shell(
        capsys, wal_group, "repair", data, "--truncate-at", 5, "--i-accept-losing", "1-records"
    )
    assert status == 1
    assert "is held by process" in err
    life.stop()


def test_repair_of_what_it_cannot_mend_is_status_11(capsys, data):
    (data / "snap").rename(data / "gone")
    status, _, err = shell(
        capsys, wal_group, "repair", data, "--truncate-at", 5, "--i-accept-losing", "1-records"
    )
    assert status == 11
    assert "does not mend" in err


def test_repair_makes_a_lost_manifest_and_ident_anew_and_gives_nothing_up(capsys, data):
    next_lsn = document(capsys, "verify", data)["next_lsn"]
    (data / "MANIFEST").unlink()
    damage(data / "IDENT", 20)
    refused = document(capsys, "verify", data, status=11)["refused"]
    assert refused["rule"] == "manifest"
    _, out, _ = shell(capsys, wal_group, "verify", data)
    assert "wheeld wal repair DATA --i-accept-losing 0-records" in out
    words = ("repair", data, "--i-accept-losing")
    assert shell(capsys, wal_group, *words, "3-records")[0] == 2
    done = document(capsys, *words, "0-records")
    assert done == {
        "lsn": next_lsn,
        "records_lost": 0,
        "set_aside": [],
        "made_anew": ["IDENT", "MANIFEST"],
    }
    assert (data / "IDENT.broken").exists()
    found = document(capsys, "verify", data)
    assert (found["next_lsn"], found["spare_problem"]) == (next_lsn, None)
    life = Life(data)
    assert life.ask("JOB k35").startswith(b"*")
    life.stop()
    assert shell(capsys, wal_group, *words, "0-records")[0] == 2, "there is nothing to mend"


def test_repair_of_a_lost_mark_asks_where_the_log_ended(capsys, data):
    next_lsn = document(capsys, "verify", data)["next_lsn"]
    (data / "MARK").unlink()
    words = ("repair", data, "--i-accept-losing", "0-records")
    status, _, err = shell(capsys, wal_group, *words)
    assert status == 2
    assert f"--truncate-at {next_lsn}" in err
    done = document(capsys, *words, "--truncate-at", next_lsn)
    assert done["made_anew"] == ["MARK"]
    Life(data).stop()
