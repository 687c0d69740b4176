"""CronJobs of Kubernetes and Celery's beat, read from JSON."""

import json

import pytest
from hypothesis import given
from hypothesis import strategies as st

from wheel.files.celery import read_beat
from wheel.files.found import FileRefused
from wheel.files.jsonlines import json_lines
from wheel.files.kubernetes import read_cronjobs

TEMPLATE = {
    "spec": {
        "activeDeadlineSeconds": 600,
        "backoffLimit": 2,
        "template": {"spec": {"containers": [{"name": "c", "image": "busybox"}]}},
    }
}


KEYS = st.text('ab{}[]:,"', min_size=1, max_size=3)


def at_line_1(place):
    """Return the path of a place in a text of one line; the whole place if it has none."""
    line, _, path = place.partition(", ")
    assert line == "line 1"
    return path or line


def cronjob(name="backup", namespace="prod", **spec):
    return {
        "apiVersion": "batch/v1",
        "kind": "CronJob",
        "metadata": {"name": name, "namespace": namespace},
        "spec": {"schedule": "0 2 * * *", "jobTemplate": TEMPLATE, **spec},
    }


def kubernetes(*items, **options):
    return read_cronjobs(json.dumps({"kind": "List", "items": items}), "f.json", **options)


def test_a_cronjob_becomes_a_schedule_that_does_as_there():
    [entry] = kubernetes(
        cronjob(
            timeZone="Europe/Rome",
            concurrencyPolicy="Forbid",
            startingDeadlineSeconds=200,
            suspend=True,
        ),
        prefix="k8s/",
    ).entries
    made = entry.definition
    assert (made.name, made.rule, made.handler) == (
        "k8s/prod/backup",
        "0 2 * * *",
        "kubernetes.job",
    )
    assert made.options == {
        "tz": "Europe/Rome",
        "dst": "literal",
        "overlap": "skip",
        "catch_up": "latest",
        "catch_up_window": 200,
        "retries": 2,
        "timeout": 600,
    }
    assert made.payload == {"namespace": "prod", "name": "backup", "jobTemplate": TEMPLATE}
    assert entry.paused
    assert [remark.kind for remark in entry.remarks] == ["suspend"]


@pytest.mark.parametrize(
    ("policy", "overlap"),
    [("Allow", "allow"), ("Forbid", "skip"), ("Replace", "cancel_running"), (None, "allow")],
)
def test_each_concurrency_policy_has_its_counterpart(policy, overlap):
    [entry] = kubernetes(
        cronjob(**({} if policy is None else {"concurrencyPolicy": policy}))
    ).entries
    assert entry.definition.options["overlap"] == overlap
    assert not entry.paused


def test_what_a_cronjob_leaves_out_is_as_there():
    bare = cronjob(jobTemplate={"spec": {"parallelism": 3}})
    [entry] = kubernetes(bare).entries
    assert entry.definition.options == {
        "dst": "literal",
        "overlap": "allow",
        "catch_up": "latest",
        "retries": 6,
        "timeout": 0,
    }
    assert [remark.kind for remark in entry.remarks] == ["zone", "parallelism"]


@pytest.mark.parametrize(
    ("deadline_s", "options", "kinds"),
    [
        (0, {"catch_up": "skip"}, []),
        (1, {"catch_up": "latest", "catch_up_window": 1}, []),
        (10**9, {"catch_up": "latest", "catch_up_window": 366 * 86_400}, ["deadline"]),
    ],
)
def test_every_starting_deadline_has_its_counterpart(deadline_s, options, kinds):
    [entry] = kubernetes(cronjob(startingDeadlineSeconds=deadline_s, timeZone="UTC")).entries
    given = entry.definition.options
    assert {key: given[key] for key in given if key.startswith("catch_up")} == options
    assert [remark.kind for remark in entry.remarks] == kinds


def test_a_job_that_may_run_for_years_may_run_as_long_as_any_here():
    [entry] = kubernetes(
        cronjob(timeZone="UTC", jobTemplate={"spec": {"activeDeadlineSeconds": 10**9}})
    ).entries
    assert entry.definition.options["timeout"] == 30 * 86_400
    assert [remark.kind for remark in entry.remarks] == ["deadline"]


@pytest.mark.parametrize(
    ("rule", "read"),
    [
        ("0 0 */2 * 1", "0 0 1-31/2 * 1"),
        ("0 0 1,*/2 * 1", "0 0 1,1-31/2 * 1"),
        ("0 0 13 * */2", "0 0 13 * 0-6/2"),
        ("TZ=UTC 0 0 ?/2 * 1", "TZ=UTC 0 0 1-31/2 * 1"),
        ("? ? * ? 1", "* * * * 1"),
        ("*/5  *\t* * *", "*/5 * * * *"),
        ("@daily", "@daily"),
        ("@every 90m", "@every 90m"),
        ("CRON_TZ=UTC @hourly", "CRON_TZ=UTC @hourly"),
    ],
)
def test_a_rule_is_written_so_that_it_means_here_what_it_means_there(rule, read):
    [entry] = kubernetes(cronjob(schedule=rule, timeZone="UTC")).entries
    assert entry.definition.rule == read
    stars = "/2" in rule
    assert [remark.kind for remark in entry.remarks] == (["day-step"] if stars else [])


def test_a_single_cronjob_is_read_and_other_kinds_are_left_out_and_named():
    [entry] = read_cronjobs(json.dumps(cronjob()), "f.json").entries
    assert entry.definition.name == "prod/backup"
    found = kubernetes({"kind": "Pod"}, cronjob("日報"), cronjob("日報"))
    assert [entry.definition.name for entry in found.entries] == ["prod/日報", "prod/日報-2"]
    [remark] = found.remarks
    assert (remark.place, remark.kind, remark.skipped) == ("line 1, items[0]", "kind", True)


@pytest.mark.parametrize(
    ("text", "place", "says"),
    [
        ("", "line 1", "not JSON"),
        ("[]", "line 1", "not an object"),
        ('{\n"a": NaN}', "line 1", "NaN"),
        ("[" * 100_000, "line 1", "nested too deeply"),
        ('{"items": {}}', "items", "not a list"),
        ('{"items": []}', "the document", "no items"),
        ('{"items": [5]}', "items[0]", "not an object"),
        (json.dumps({"items": [{"spec": {"schedule": "@daily"}}]}), "items[0].metadata.name",
         "missing"),
        (json.dumps({"items": [cronjob(schedule=None)]}), "items[0].spec.schedule", "missing"),
        (json.dumps({"items": [cronjob(schedule=5)]}), "items[0].spec.schedule", "not text"),
        (json.dumps({"items": [cronjob(schedule="x" * 300)]}), "items[0]", "300 bytes"),
        (json.dumps({"items": [cronjob(concurrencyPolicy="Never")]}),
         "items[0].spec.concurrencyPolicy", "Allow, Forbid or Replace"),
        (json.dumps({"items": [cronjob(startingDeadlineSeconds="1h")]}),
         "items[0].spec.startingDeadlineSeconds", "not a whole number"),
        (json.dumps({"items": [cronjob(suspend="yes")]}), "items[0].spec.suspend",
         "neither true nor false"),
    ],
)  # fmt: skip
def test_a_faulty_list_is_refused_with_the_path(text, place, says):
    with pytest.raises(FileRefused) as refused:
        read_cronjobs(text, "f.json")
    problem = refused.value.problems[-1]
    assert at_line_1(problem.place) == place
    assert says in problem.text


LINES = """{
  "kind": "List", "note": "a \\"brace\\" { and\\n a bracket [",
  "items": [
    {"metadata": {"name": "good"},
     "spec": {"schedule": "@daily"}},
    {"metadata": {"name": "bad"}, "spec": {
      "schedule":
        5
    }},

    7,
    {"metadata": {},
     "spec": {"schedule": "@daily"}}
  ]
}
"""


def test_every_fault_is_told_with_its_line():
    with pytest.raises(FileRefused) as refused:
        read_cronjobs(LINES, "f.json")
    assert [problem.place for problem in refused.value.problems] == [
        "line 11, items[2]",
        "line 7, items[1].spec.schedule",
        "line 12, items[3].metadata.name",
    ]
    assert (
        "f.json is refused, nothing was changed:\n  line 11, items[2]: 7 is not an object"
        in str(refused.value)
    )


@given(
    st.recursive(
        st.none() | st.booleans() | st.integers() | st.text(max_size=5),
        lambda inner: st.lists(inner, max_size=4) | st.dictionaries(KEYS, inner, max_size=4),
        max_leaves=12,
    )
)
def test_each_value_of_any_document_is_found_at_its_line(value):
    text = json.dumps(value, indent=1, ensure_ascii=False)
    lines = json_lines(text)
    written = text.split("\n")

    def look(path, inner):
        line = written[lines[path] - 1]
        if isinstance(inner, dict) and inner:
            for key, below in inner.items():
                look(f"{path}.{key}" if path else key, below)
                assert (
                    json.dumps(key, ensure_ascii=False)
                    in written[lines[f"{path}.{key}" if path else key] - 1]
                )
        elif isinstance(inner, list) and inner:
            for at, below in enumerate(inner):
                look(f"{path}[{at}]", below)
        else:
            assert json.dumps(inner, ensure_ascii=False) in line

    look("", value)


# ------------------------------------------------------------------------------ Celery


def celery(schedule, *, task="shop.send", **more):
    entry = {"task": task, "schedule": schedule, **more}
    return read_beat(json.dumps({"send": entry}), "beat.json", tz="Europe/Rome")


RULES = [
    (30, "@every 30s"),
    (30.0, "@every 30s"),
    (1.5, "@every 1500ms"),
    ({"interval": {"every": 10, "period": "minutes"}}, "@every 600s"),
    ({"__type__": "interval", "every": 60.0, "relative": False}, "@every 60s"),
    ({"type": "interval", "every": 2_500_000, "period": "microseconds"}, "@every 2500ms"),
    ({"crontab": {}}, "* * * * *"),
    ({"crontab": {"minute": 0, "hour": [7, 19]}}, "0 7,19 * * *"),
    ({"__type__": "crontab", "minute": "*/15", "hour": "22-2"}, "*/15 22-23,0-2 * * *"),
    ({"crontab": {"minute": 0, "hour": 0, "day_of_week": "Mon, Fri"}}, "0 0 * * mon,fri"),
    ({"crontab": {"minute": 0, "hour": 0, "day_of_month": "*/2", "day_of_week": "1-5"}},
     "0 0 */2 * 1-5"),
    ({"crontab": {"minute": 0, "hour": 0, "day_of_month": "1-7,15-21", "day_of_week": "mon"}},
     "0 0 * * mon#1,mon#3"),
    ({"crontab": {"minute": 0, "hour": 0, "month_of_year": "11-2"}}, "0 0 * 11-2 *"),
    ({"crontab": {"day_of_week": "Sunday", "month_of_year": "january-March"}},
     "* * * jan-mar sun"),
]  # fmt: skip


@pytest.mark.parametrize(("schedule", "rule"), RULES)
def test_a_schedule_of_celery_becomes_a_rule(schedule, rule):
    [entry] = celery(schedule).entries
    assert entry.definition.rule == rule
    assert entry.definition.handler == "shop.send"
    assert entry.definition.options == {
        "tz": "Europe/Rome",
        "overlap": "allow",
        "catch_up": "latest",
    }
    assert [remark.kind for remark in entry.remarks] == (
        ["interval"] if rule.startswith("@") else []
    )


def test_the_sun_is_left_out_and_named():
    found = celery({"solar": {"event": "sunset", "latitude": -37.8, "longitude": 144.9}})
    assert found.entries == ()
    [remark] = found.remarks
    assert at_line_1(remark.place) == "send.schedule.solar"
    assert (remark.kind, remark.skipped) == ("solar", True)
    assert "no rule follows sunset" in remark.text


def test_arguments_and_options_are_taken_over_or_named():
    [entry] = celery(30, kwargs={"to": "é"}).entries
    assert entry.definition.payload == {"to": "é"}
    [entry] = celery(
        30, args=[1, "x"], options={"queue": "slow", "expires": 60, "priority": 3}, one_off=True,
        enabled=False,
    ).entries  # fmt: skip
    assert entry.definition.payload == {"args": [1, "x"], "kwargs": {}}
    assert entry.definition.options["expire"] == 60
    assert entry.definition.options["max_runs"] == 1
    assert entry.paused
    assert [remark.kind for remark in entry.remarks] == ["interval", "options", "args"]
    assert "queue, priority" in entry.remarks[1].text


def test_a_key_of_an_entry_that_is_not_read_is_named():
    [entry] = celery(30, relative=True).entries
    assert [remark.kind for remark in entry.remarks] == ["interval", "options"]
    assert "relative is left out" in entry.remarks[1].text


def test_a_whole_configuration_is_read_with_its_zone():
    beat = {"日報": {"task": "t", "schedule": 60}}
    [entry] = read_beat(
        json.dumps({"timezone": "Asia/Tokyo", "beat_schedule": beat}), "beat.json", prefix="shop/"
    ).entries
    assert (entry.place, entry.definition.name) == ("line 1, beat_schedule.日報", "shop/日報")
    assert entry.definition.options["tz"] == "Asia/Tokyo"


@pytest.mark.parametrize(
    ("entry", "place", "says"),
    [
        ({"schedule": 30}, "send.task", "missing"),
        ({"task": "t"}, "send.schedule", "write a number of seconds"),
        ({"task": "t", "schedule": True}, "send.schedule", "write a number of seconds"),
        ({"task": "t", "schedule": "daily"}, "send.schedule", "write a number of seconds"),
        ({"task": "t", "schedule": 0}, "send.schedule", "less than a second"),
        ({"task": "t", "schedule": -5}, "send.schedule", "less than a second"),
        ({"task": "t", "schedule": {"rrule": {}}}, "send.schedule", "not one of crontab"),
        ({"task": "t", "schedule": {"interval": {"every": "x"}}}, "send.schedule.interval.every",
         "not a number"),
        ({"task": "t", "schedule": {"interval": {"every": 1, "period": "weeks"}}},
         "send.schedule.interval.period", "not one of days"),
        ({"task": "t", "schedule": {"crontab": {"day_of_month": "13", "day_of_week": "5"}}},
         "send.schedule.crontab", "must both match in Celery"),
        ({"task": "t", "schedule": {"crontab": {"hour": 1.5}}}, "send.schedule.crontab.hour",
         "not a field"),
        ({"task": "t", "schedule": {"crontab": {"hour": []}}}, "send.schedule.crontab.hour",
         "not a field"),
        ({"task": "t", "schedule": {"crontab": {"hour": "22-2/2"}}}, "send.schedule.crontab.hour",
         "in steps"),
        ({"task": "t", "schedule": {"crontab": {"minut": 5}}}, "send.schedule.crontab.minut",
         "there is no 'minut'; did you mean 'minute'?"),
        ({"task": "t", "schedule": {"type": "crontab", "hours": 5}}, "send.schedule.hours",
         "did you mean 'hour'?"),
        ({"task": "t", "schedule": {"interval": {"every": 1, "perio": "days"}}},
         "send.schedule.interval.perio", "did you mean 'period'?"),
        ({"task": "t", "schedule": 30, "args": {}}, "send.args", "not a list"),
        ({"task": "t" * 300, "schedule": 30}, "send", "handler"),
        (5, "send", "not an object"),
    ],
)  # fmt: skip
def test_a_faulty_entry_is_refused_with_the_path(entry, place, says):
    with pytest.raises(FileRefused) as refused:
        read_beat(json.dumps({"send": entry}), "beat.json")
    assert [(place, True)] == [
        (at_line_1(problem.place), says in problem.text) for problem in refused.value.problems[:1]
    ]


def test_an_empty_dict_is_refused():
    with pytest.raises(FileRefused, match="no schedule"):
        read_beat("{}", "beat.json")
