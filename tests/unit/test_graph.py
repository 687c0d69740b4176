"""Who waits for whom: what is refused, and by what words."""

from itertools import pairwise

import pytest
from hypothesis import given
from hypothesis import strategies as st

from wheel.errors import Conflict, CycleError, InvalidRequest, LimitError, NotFound
from wheel.graph import EDGES_MAX, LEVELS_MAX, Graph, layers, near


def everything(_name: str) -> bool:
    return True


def graph_of(**after: str) -> Graph:
    graph = Graph()
    for name, names in after.items():
        graph.set(name, names.split(), known=everything)
    return graph


def test_a_circle_is_refused_with_its_path_in_the_order_of_running():
    graph = graph_of(b="a", c="b x", d="c", y="b")
    with pytest.raises(CycleError) as refused:
        graph.set("a", ["z", "d"], known=everything)
    assert str(refused.value) == "a -> b -> c -> d -> a"
    assert graph.upstreams("a") == ()


def test_the_shortest_of_several_circles_is_named():
    graph = graph_of(b="a", c="b", d="c a")
    with pytest.raises(CycleError, match=r"^a -> d -> a$"):
        graph.check("a", ["d"], known=everything)


def test_waiting_for_oneself_is_a_circle():
    with pytest.raises(CycleError, match=r"^a -> a$"):
        Graph().set("a", ["a"], known=lambda name: name != "a")


def test_what_is_refused_changes_nothing():
    graph = graph_of(b="a", c="b")
    for after in (["c"], ["a", "a"], ["gone"], [f"u{i}" for i in range(EDGES_MAX + 1)]):
        with pytest.raises((InvalidRequest, NotFound)):
            graph.set("b", after, known=lambda name: name != "gone")
    assert graph.upstreams("b") == ("a",)
    assert graph.dependants("b") == ["c"]
    assert graph.downstream(["a"]) == ["b", "c"]


def test_an_upstream_that_is_no_schedule_is_refused():
    with pytest.raises(NotFound, match="'backups'"):
        Graph().set("report", ["backups"], known=lambda name: name == "backup")


def test_256_edges_stand_and_257_are_refused():
    graph = Graph()
    names = [f"u{i}" for i in range(EDGES_MAX)]
    graph.set("all", names, known=everything)
    assert graph.upstreams("all") == tuple(names)
    with pytest.raises(LimitError, match=r"257.*256"):
        graph.set("more", [*names, "one"], known=everything)


def test_a_chain_is_refused_when_it_would_be_too_long_wherever_it_grows():
    graph = Graph()
    for i in range(1, LEVELS_MAX):
        graph.set(f"n{i}", [f"n{i - 1}"], known=everything)
    with pytest.raises(LimitError, match="chain of 101"):
        graph.set("end", [f"n{LEVELS_MAX - 1}"], known=everything)
    with pytest.raises(LimitError, match=f"'n{LEVELS_MAX - 1}'"):
        graph.set("n0", ["before"], known=everything)
    graph.set("n50", [], known=everything)
    graph.set("n0", ["before"], known=everything)


def test_what_others_wait_for_is_removed_only_by_force_and_they_go_on_waiting():
    graph = graph_of(b="a", c="a b")
    with pytest.raises(Conflict, match="'a' is waited for by 'b', 'c'"):
        graph.remove("a")
    graph.remove("a", force=True)
    assert graph.dependants("a") == ["b", "c"]
    with pytest.raises(CycleError, match=r"^a -> c -> a$"):
        graph.set("a", ["c"], known=everything)


def test_removing_forgets_whom_it_waited_for():
    graph = graph_of(b="a")
    graph.remove("b")
    graph.remove("a")
    graph.remove("never there")
    assert graph.dependants("a") == []


def test_a_refusal_names_a_few_dependants_and_counts_the_rest():
    graph = graph_of(**{f"d{i}": "a" for i in range(8)})
    with pytest.raises(Conflict, match="'d4' and 3 more"):
        graph.remove("a")


def test_layers_put_each_behind_what_it_waits_for_and_name_a_circle():
    assert layers({"a": [], "d": ["b", "c"], "b": ["a"], "c": ["outside"]}) == [
        ["a", "c"],
        ["b"],
        ["d"],
    ]
    assert layers({}) == []
    with pytest.raises(
        CycleError, match=r"^(report -> verify -> report|verify -> report -> verify)$"
    ):
        layers({"x": ["report"], "report": ["verify"], "verify": ["report"], "free": []})


def test_a_circle_of_layers_is_told_in_the_order_of_running():
    with pytest.raises(CycleError, match=r"^a -> b -> c -> a$"):
        layers({"a": ["c"], "b": ["a"], "c": ["b"]})


def test_a_misspelt_name_finds_the_one_that_is_meant():
    assert near("backup-bd", ["report", "backup-db", "backup-files"]) == "backup-db"
    assert near("weather", ["report", "backup-db"]) is None


NAMES = "abcdefgh"
EDGES = st.lists(st.sampled_from(NAMES), max_size=4, unique=True)


def reach(after: dict[str, tuple[str, ...]], start: str) -> set[str]:
    """Return all that start waits for, by walking until nothing new turns up."""
    found: set[str] = set()
    while new := {up for one in {start, *found} for up in after.get(one, ())} - found:
        found |= new
    return found


@given(st.lists(st.tuples(st.sampled_from(NAMES), EDGES), max_size=12))
def test_edges_are_taken_exactly_if_no_circle_comes_of_it(steps):
    graph, after = Graph(), {}
    for name, edges in steps:
        wanted = tuple(edges)
        circle = name in wanted or any(name in reach({**after, name: ()}, up) for up in wanted)
        if circle:
            with pytest.raises(CycleError) as refused:
                graph.set(name, wanted, known=everything)
            path = str(refused.value).split(" -> ")
            assert path[0] == path[-1] == name
            tried = {**after, name: wanted}
            assert all(one in tried[two] for one, two in pairwise(path))
        else:
            graph.set(name, wanted, known=everything)
            after[name] = wanted
    for name in NAMES:
        assert graph.upstreams(name) == after.get(name, ())
        assert set(graph.downstream([name])) == {x for x in NAMES if name in reach(after, x)}
        assert set(graph.upstream([name])) == reach(after, name)
        assert graph.dependants(name) == sorted(x for x in after if name in after[x])
    order = graph.order(NAMES)
    assert all(order.index(up) < order.index(x) for x in after for up in after[x])
    layered = [x for layer in layers(after) for x in layer]
    assert sorted(layered) == sorted(after)
    assert all(
        layered.index(up) < layered.index(x) for x in after for up in after[x] if up in after
    )
