"""The core takes no more instructions than its baseline, and one that takes more is named."""

import shutil
from dataclasses import replace

import pytest

from bench import instructions
from bench.instructions import BASELINE, CSRC, Counts, GateError, Workload, compare, count, read

DUMP = """\
desc: Trigger: --dump-after=work_cancel
fl=/x/bench/gate/workloads.c
fn=work_cancel
300 11
cfi=/x/csrc/wd_wheel.c
cfn=wd_wheel_cancel
calls=2 40
301 900
fl=/x/csrc/wd_wheel.c
fn=wd_wheel_cancel
40 5
+3 7
* 8
-1
fi=/usr/include/bits/string.h
12 100
fe=/x/csrc/wd_wheel.c
cob=/lib/libc.so
cfn=memmove
calls=2 9
44 780
fl=/x/csrc/wd_conn.c
fn=flush
9 20
"""
HAS_BASELINES_COMPILER = (
    shutil.which("valgrind") is not None
    and read(BASELINE.read_text()).compiler == instructions.compiler_version()
)


@pytest.fixture(scope="module")
def counted():
    return count()


def counts(**functions):
    return Counts(compiler="cc 1", workloads=(Workload(name="w", things=10, functions=functions),))


def test_each_function_counts_by_what_it_does_itself():
    assert instructions.exclusive(DUMP) == {
        "wd_wheel_cancel wd_wheel.c": 120,
        "flush wd_conn.c": 20,
    }


def test_a_rise_of_over_five_percent_names_what_rose_most():
    old = counts(a=1000, b=1000, c=1000)
    (text,) = compare(old, counts(a=1000, b=1151, c=1000)).rises
    assert text == "w: 3,000 -> 3,151 instructions (+5.0%)\n    b: 1,000 -> 1,151"
    assert compare(old, counts(a=1000, b=1150, c=1000)).rises == ()
    (text,) = compare(old, counts(a=1500, b=2000, c=900)).rises
    assert text.splitlines()[1:] == ["    b: 1,000 -> 2,000", "    a: 1,000 -> 1,500"]


def test_a_fall_of_over_five_percent_asks_for_a_new_baseline(capsys):
    verdict = compare(counts(a=1000, b=1000), counts(a=1000, b=800))
    assert verdict.rises == ()
    said = []
    assert instructions.judged(verdict, said.append) == 0
    assert said[0] == "LESS: w: 2,000 -> 1,800 instructions (-10.0%)\n    b: 1,000 -> 800"
    assert "make gate-update" in said[1]


def test_a_rise_fails_even_beside_a_fall():
    verdict = replace(compare(counts(a=1), counts(a=1)), rises=("r",), falls=("f",))
    assert instructions.judged(verdict, lambda _text: None) == 1


def test_another_compiler_is_said_loudly_and_fails_nothing(monkeypatch, tmp_path, capsys):
    path = tmp_path / "instructions.tsv"
    path.write_text(instructions.written(replace(counts(a=1), compiler="cc 2")))
    monkeypatch.setattr(instructions, "BASELINE", path)
    monkeypatch.setattr(instructions, "count", lambda: counts(a=2))
    monkeypatch.setattr(instructions.sys, "argv", ["gate"])
    assert instructions.main() == 0
    assert "NOT COMPARED: the baseline is of cc 2, this is cc 1." in capsys.readouterr().out
    path.write_text(instructions.written(counts(a=1)))
    assert instructions.main() == 1
    assert "MORE: w: 1 -> 2 instructions" in capsys.readouterr().out


def test_without_a_baseline_or_a_tool_the_gate_says_what_to_do(monkeypatch, tmp_path, capsys):
    with pytest.raises(GateError, match="make gate-update"):
        read("# nothing\n")
    monkeypatch.setenv("CC", str(tmp_path / "cc"))
    monkeypatch.setattr(instructions.sys, "argv", ["gate"])
    assert instructions.main() == 2
    assert "cc is not installed" in capsys.readouterr().err


def test_other_workloads_are_not_compared():
    with pytest.raises(GateError, match="does other work"):
        compare(
            Counts(compiler="", workloads=(Workload(name="w", things=9, functions={"a": 1}),)),
            counts(a=1),
        )
    with pytest.raises(GateError, match="workloads x stand only on one side"):
        compare(
            Counts(compiler="", workloads=(Workload(name="x", things=9, functions={"a": 1}),)),
            Counts(compiler="", workloads=()),
        )


def test_a_baseline_keeps_every_total_and_the_small_functions_as_one():
    many = {f"f{i}": 1 for i in range(10)}
    kept = read(instructions.written(counts(big=9_000, **many)))
    assert kept.compiler == "cc 1"
    assert kept.workloads[0].functions == {"big": 9_000, instructions.OTHERS: 10}
    assert compare(kept, counts(big=9_000, **many)).rises == ()
    (text,) = compare(kept, counts(big=9_000, new=800, **many)).rises
    assert text.splitlines()[1:] == ["    new: 0 -> 800"]


@pytest.mark.slow
@pytest.mark.filterwarnings("default")  # a core that takes less is no failure
@pytest.mark.skipif(
    not HAS_BASELINES_COMPILER,
    reason="not run: no valgrind, or another compiler than that of the baseline of instructions",
)
def test_the_core_takes_no_more_instructions_than_its_baseline(counted):
    said = []
    assert instructions.judged(compare(read(BASELINE.read_text()), counted), said.append) == 0, said


@pytest.mark.slow
@pytest.mark.skipif(shutil.which("valgrind") is None, reason="not run: valgrind is not installed")
def test_a_planted_slow_function_is_named(counted, tmp_path):
    """As much work again for each insert into the wheel: seen, and found at its place."""
    slow = tmp_path / "csrc"
    shutil.copytree(CSRC, slow)
    path = slow / "wd_wheel.c"
    text = path.read_text()
    head, brace, body = text.partition("void wd_wheel_insert(wd_wheel *w, uint32_t slot)\n{\n")
    assert brace
    path.write_text(f"{head}{brace}    for (volatile int i = 0; i < 200; i++) {{\n    }}\n{body}")
    verdict = compare(counted, count(slow))
    named = {text.partition(":")[0]: text.splitlines()[1].strip() for text in verdict.rises}
    assert {"schedule", "schedule_keyed", "lease_expires"} <= named.keys()
    assert all(name.startswith("wd_wheel_insert wd_wheel.c: ") for name in named.values()), named
    assert "cancel" not in named
    assert verdict.falls == ()
