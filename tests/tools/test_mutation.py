"""The mutation check itself: the damage to code, the names of mutants, and the report of survivors."""

from __future__ import annotations

import ast
import shutil
from collections import Counter
from pathlib import Path

import pytest

from tests.test_imports import PURE_ELSEWHERE
from tools.mutation import python, template, trials
from tools.mutation.__main__ import Report, all_mutants, drawn, explanations
from tools.mutation.campaign import outcomes
from tools.mutation.killers import CHECKOUT, PACKETS, STAGES, TARGETS
from tools.mutation.mutant import Fault, Identity, Mutant, mutants_of
from tools.mutation.trials import Result, Tree


def python_faults(source: str) -> dict[str, str]:
    """Return the damaged texts of some code, by the names of the faults."""
    text = source.encode()
    made = mutants_of("x.py", text, python.faults(text))
    assert all(ast.parse(each.applied(text)) for each in made)
    return {each.identity.change: each.applied(text).decode() for each in made}


@pytest.mark.parametrize(
    ("source", "change", "result"),
    [
        ("f(a == b)", "== -> !=", "f(a != b)"),
        ("f(a <= b)", "<= -> <", "f(a < b)"),
        ("f(a not in b)", "not in -> in", "f(a in b)"),
        ("f((a) is (b))", "is -> is not", "f((a) is not (b))"),
        ("f(a and b)", "and -> or", "f(((a) or (b)))"),
        ("f(a and b)", "a dropped from and", "f(((b)))"),
        ("f(not a)", "not dropped", "f((a))"),
        ("f(a + b * c)", "+ -> -", "f((a) - (b * c))"),
        ("f(1, True)", "1 -> 2", "f(2, True)"),
        ("f(1, True)", "True -> False", "f(1, False)"),
        ("f('x')", 'string -> ""', 'f("")'),
        ("f('')", '"" -> "mutant"', 'f("mutant")'),
        ("f(f'{a}')", 'f-string -> ""', 'f("")'),
        ("f(a if b else c)", "condition True", "f((a))"),
        ("f(a if b else c)", "condition False", "f((c))"),
        ("f(x, y=1)", "y= dropped", "f(x)"),
        ("f((a, b))", "a dropped", "f((b,))"),
        ("f([a, b, c])", "b dropped", "f([a, c])"),
        ("f({'a': 1, 'b': 2})", "'b' dropped", "f({'a': 1})"),
        ("f(policy.LOCAL)", "LOCAL -> CLUSTER", "f(policy.CLUSTER)"),
        ("f(any(x))", "any -> all", "f(all(x))"),
        ("f(a[:1])", "slice dropped", "f(a)"),
        ("f(x for x in a if b)", "condition True", "f(x for x in a if True)"),
        ("f(x for x in a if b)", "first only", "f(x for x in list(a)[:1] if b)"),
        ("for x in a:\n    f(x)", "no loop", "for x in ():\n    f(x)"),
        ("for x in a:\n    f(x)", "dropped", "for x in a:\n    pass"),
        ("if a:\n    f()\nelse:\n    g()", "condition False", "if False:\n    f()\nelse:\n    g()"),
        ("a.b = c", "dropped", "pass"),
        ("a |= b", "|= -> =", "a = b"),
        ("del a", "dropped", "pass"),
        ("def f() -> bool:\n    return a", "returns the opposite", "def f() -> bool:\n    return not (a)"),
        ("def f() -> int | None:\n    return a", "returns None", "def f() -> int | None:\n    return None"),
        ("def f() -> set[int]:\n    return a", "returns set()", "def f() -> set[int]:\n    return set()"),
        ("match a:\n    case 1 if b:\n        f()", "condition True", "match a:\n    case 1 if True:\n        f()"),
        ("match a:\n    case 1:\n        f()", "case dropped", "match a:\n    case 1:\n        pass"),
    ],
)
def test_code_is_damaged(source: str, change: str, result: str) -> None:
    """Each kind of fault is made, and the damaged code is still Python."""
    assert python_faults(source)[change] == result


@pytest.mark.parametrize(
    "source",
    [
        '"""Documentation."""',
        "import a",
        "x: int",
        "def f(a: list[int]) -> None:\n    pass",
        "@cache(1)\ndef f():\n    pass",
        "class A(B, frozen=True):\n    pass",
        "T = TypeVar('T')",
        "Pair = tuple[int, str] | None",
        "def f():\n    x = a\n    return x",
    ],
)
def test_what_only_a_reader_or_the_interpreter_would_notice_is_left_alone(source: str) -> None:
    """Documentation, annotations, decorators, imports and names with a single binding are not damaged."""
    assert python_faults(source) == {}


def template_faults(line: str) -> dict[str, str]:
    """Return the damaged texts of a rule, by the names of the faults."""
    text = f"table {{{{ table }}}} {{\n  chain x {{\n    {line}\n  }}\n}}\n"
    sets = "".join(f"  set {name} {{\n    typeof ip daddr\n  }}\n" for name in ("one", "other"))
    chains = "".join(f"  chain {name} {{\n    drop\n  }}\n" for name in ("first", "second"))
    names = template.Names({"x": text, "y": f"table t {{\n{sets}{chains}}}\n"})
    made = mutants_of("x", text.encode(), template.faults(text, names))
    assert {each.identity.where for each in made} == {"chain x"}
    return {each.identity.change: each.applied(text.encode()).decode().split("\n")[2].strip() for each in made}


@pytest.mark.parametrize(
    ("line", "change", "result"),
    [
        ("drop", "dropped", ""),
        ("drop", "drop -> accept", "accept"),
        ("ct state new jump first", "ct state new left out", "jump first"),
        ("ct state new jump first", "jump -> goto", "ct state new goto first"),
        ("ct state new jump first", "first -> second", "ct state new jump second"),
        ("ct status & dnat == 0 drop", "== 0 -> != 0", "ct status & dnat != 0 drop"),
        ("{{ ip }} daddr @one drop", "one -> other", "{{ ip }} daddr @other drop"),
        ("{{ ip }} daddr @one drop", "@ -> != @", "{{ ip }} daddr != @one drop"),
        ("{{ ip }} daddr @one drop", "{{ ip }} daddr @one left out", "drop"),
        ("{{ ip }} daddr @one drop", "daddr -> saddr", "{{ ip }} saddr @one drop"),
        ("meta l4proto tcp reject with tcp reset", "with tcp reset left out", "meta l4proto tcp reject"),
        (
            "add element {{ table }} one { {{ address }} }",
            "one -> other",
            "add element {{ table }} other { {{ address }} }",
        ),
        ("{% for a in b %}", "first only", "{% for a in b[:1] %}"),
        ("{% for a in b %}", "no loop", "{% for a in () %}"),
        ("{% if a %}", "condition false", "{% if false %}"),
        ("type filter hook input priority 0", "input -> forward", "type filter hook forward priority 0"),
    ],
)
def test_templates_are_damaged(line: str, change: str, result: str) -> None:
    """Each kind of fault is made in a line of a template."""
    assert template_faults(line)[change] == result


def test_rules_change_places() -> None:
    """Two adjacent rules of a chain are swapped, but a rule and a loop aren't."""
    text = "table t {\n  chain x {\n    accept\n    drop\n{% for a in b %}\n    reject\n{% endfor %}\n  }\n}\n"
    made = mutants_of("x", text.encode(), template.faults(text, template.Names({"x": text})))
    (swapped,) = (each for each in made if each.identity.change == "swapped with the next")
    assert b"    drop\n    accept\n{% for" in swapped.applied(text.encode())


def test_a_mutant_keeps_its_name_when_it_moves() -> None:
    """A mutant's identity is unique, and doesn't change if lines are added before its function."""
    source = b"def f():\n    g(1, 1)\n    g(1)\n"
    moved = b"# comment\n\n" + source
    one, other = (mutants_of("x.py", text, python.faults(text)) for text in (source, moved))
    assert [each.identity for each in one] == [each.identity for each in other]
    assert [each.identity.change for each in one] == ["dropped", "1 -> 2", "1 -> 2 (2)", "dropped", "1 -> 2"]
    assert {(each.identity.where, each.identity.line) for each in one} == {("f", "g(1, 1)"), ("f", "g(1)")}


def test_every_explanation_is_of_a_mutant() -> None:
    """Each entry of explained.toml is the identity of a mutant of the present code."""
    mutants = [each.identity for each in all_mutants()]
    assert len(mutants) == len(set(mutants))
    assert [str(each) for each in explanations() if each not in set(mutants)] == []


ONE, OTHER, GONE = (Identity("x.py", "f", line, "dropped") for line in ("one", "other", "gone"))


def test_every_place_of_a_decision_is_damaged() -> None:
    """Every template, every module of policy and rules, the pipeline and the agent's pure modules are targets.

    The answers of its socket are shapes of data, and decide nothing.
    """
    folders = [("templates", "**/*.nft.j2"), ("nftproxy/policy", "**/*.py"), ("nftproxy/rules", "**/*.py")]
    present = {path.relative_to(CHECKOUT).as_posix() for at, names in folders for path in (CHECKOUT / at).glob(names)}
    of_agent = {name for name in PURE_ELSEWHERE if name.startswith("agent/")} - {"agent/socket/answers"}
    elsewhere = {f"nftproxy/{name}.py" for name in ("pipeline", *of_agent)}
    assert present | elsewhere <= set(TARGETS)
    assert {
        "templates/extensions/failover/table.nft.j2",
        "nftproxy/policy/choosing/choice.py",
        "nftproxy/policy/limits.py",
    } <= present


def test_all_that_may_kill_is_there() -> None:
    """All named test files and targets exist, as a missing test file would kill every mutant."""
    named = [path for stage in STAGES for path in stage.paths] + list(TARGETS)
    assert [path for path in named if not (CHECKOUT / path).exists()] == []


@pytest.mark.parametrize(
    ("results", "explained", "known", "unexplained", "stale"),
    [
        ({ONE: "passed", OTHER: "failed"}, (), {ONE, OTHER}, [ONE], []),
        ({ONE: "passed", OTHER: "failed"}, [ONE], {ONE, OTHER}, [], []),
        ({ONE: "passed", OTHER: "failed"}, [ONE, OTHER, GONE], {ONE, OTHER}, [], [OTHER, GONE]),
        ({ONE: "unknown"}, (), {ONE}, [ONE], []),
        ({}, [ONE], {ONE}, [], []),
    ],
    ids=["unexplained", "explained", "killed or gone", "machine too busy", "not tried"],
)
def test_a_mutant_lives_exactly_if_it_is_explained(
    results: dict[Identity, str],
    explained: list[Identity],
    known: set[Identity],
    unexplained: list[Identity],
    stale: list[Identity],
) -> None:
    """The report names survivors without a reason, and reasons for killed or missing mutants."""
    report = Report({identity: Result(status) for identity, status in results.items()}, explained, known)
    assert (report.unexplained, report.stale) == (unexplained, stale)


def test_a_sample_keeps_its_mutants() -> None:
    """A sample keeps its mutants if mutants outside of it are removed, and another seed draws another sample."""
    known = all_mutants("policy/claims")
    sample = drawn(known, 10, seed=1)
    others = [mutant for mutant in known if mutant not in sample]
    assert (len(sample), len(others) > 20) == (10, True)
    assert drawn([*others[::2], *sample], 10, seed=1) == sample
    assert drawn(known, 10, seed=2) != sample


ENTRY = "[[explained]]\nmutants = [['a', '', 'b', 'c']]\nreason = "


@pytest.mark.parametrize("entries", [f"{ENTRY}''\n", f"{ENTRY}'x'\n{ENTRY}'y'\n"])
def test_an_explanation_has_one_reason(entries: str, tmp_path: Path) -> None:
    """An entry without a reason and a second entry for the same mutant are refused."""
    path = tmp_path / "explained.toml"
    path.write_text(entries)
    with pytest.raises(ValueError, match="explained twice, or without a reason"):
        explanations(path)


def checkout(directory: Path, tests: str, text: str) -> Path:
    """Make a project with a single function, which returns 1, and a single test file."""
    root = directory / "checkout"
    for path, content in (("nftproxy/x.py", "def f():\n    return 1\n"), (tests, text)):
        (root / path).parent.mkdir(parents=True)
        (root / path).write_text(content)
    shutil.copy(CHECKOUT / "pyproject.toml", root)  # pytest's options, which trials must work with
    return root


def mutant_of_x(body: str) -> Mutant:
    """Return a mutant of that function with another body."""
    return Mutant(Identity("nftproxy/x.py", "f", "return 1", "body"), Fault(13, 21, body, "body", "f", (2, 2)))


TEST = "from nftproxy.x import f\n\n\ndef test_it() -> None:\n    assert f() == 1\n"


@pytest.mark.parametrize(
    ("body", "result"),
    [
        ("return 1", Result("passed")),
        ("return 2", Result("failed", "tests/test_x.py::test_it")),
        ("return", Result("failed", "tests/test_x.py::test_it")),
        ("syntax error", Result("failed", "import of tests/test_x.py")),
        ("import os; os.abort()", Result("failed", "a crash")),
        ("while True: pass", Result("timed out")),
    ],
)
def test_a_trial_tells_what_became_of_a_mutant(body: str, result: Result, tmp_path: Path) -> None:
    """A trial reports whether the tests of a mutant pass, fail, crash or hang, and then restores the file."""
    tree = Tree(tmp_path / "copy", checkout(tmp_path, "tests/test_x.py", TEST))
    with tree.damaged(mutant_of_x(body)):
        limit = 2 if result.status == "timed out" else 60  # a trial that ends by itself may take long on a busy machine
        assert trials.run(tree, ["tests/test_x.py::test_it"], limit) == result
    assert (tree.root / "nftproxy/x.py").read_text() == "def f():\n    return 1\n"


CHANCY = """
import pathlib

from nftproxy.x import f

MARK = pathlib.Path("mark")


def test_before():
    pass


def test_by_chance():
    assert f() == 1 or MARK.exists() or MARK.touch()


def test_after():
    assert f() < 3
"""


@pytest.mark.parametrize(
    ("body", "is_doubted", "status", "killer", "flaky"),
    [
        ("return 2", True, "passed", "", {"test_by_chance": 1}),
        ("return 3", True, "failed", "test_after", {"test_by_chance": 1}),
        ("return 2", False, "failed", "test_by_chance", {}),
        ("return 1.0", True, "passed", "", {}),
        ("raise OSError", True, "failed", "test_by_chance", {}),
    ],
)
def test_a_failure_by_chance_is_no_kill(
    body: str,
    is_doubted: bool,
    status: str,
    killer: str,
    flaky: dict[str, int],
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """A test must fail twice to kill an explained mutant, or else it is noted as flaky and later tests are run."""
    file = PACKETS.paths[0]
    monkeypatch.setattr("tools.mutation.campaign.CHECKOUT", checkout(tmp_path, file, CHANCY))
    mutant = mutant_of_x(body)
    doubted = {mutant.identity} if is_doubted else set[Identity]()
    (outcome,) = outcomes([mutant], [PACKETS], tmp_path, 1, doubted)
    assert outcome.result == Result(status, f"{file}::{killer}" if killer else "")
    assert Counter(outcome.flaky) == {f"{file}::{test}": times for test, times in flaky.items()}
