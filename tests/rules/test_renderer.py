"""Rendering: the statements that a template may render, how they are read, and the errors of a bad template."""

from __future__ import annotations

import re

import pytest
from msgspec import structs

from nftproxy.model.addresses import Family
from nftproxy.model.codes import Code
from nftproxy.model.errors import Problem, TemplateError
from nftproxy.policy.facts import DrawFacts, Front, ListFacts, PortFacts, Slots, TableFacts
from nftproxy.policy.numbers import as_address
from nftproxy.policy.skeleton import compile_table
from nftproxy.rules.renderer import (
    DRAW_TEMPLATE,
    ENDPOINTS_TEMPLATE,
    LONG,
    LONG_LISTS,
    SERVICE_TEMPLATE,
    TABLE_TEMPLATE,
    TEMPLATE_NAMES,
    Renderer,
    read_statements,
)
from nftproxy.rules.ruleset import Block, Declaration, Element, NftKind
from tests.support.factories import IPV4, IPV6, addresses, node, pipeline, renderer, templates
from tests.support.selection import every

TABLE = "ip nftproxy"
NAME = "x.nft.j2"


def facts(family: Family = IPV4, **tweaks: bool) -> TableFacts:
    """The facts of a skeleton."""
    made = pipeline(**tweaks)  # type: ignore[arg-type]  # tweaks of the configuration
    return compile_table(made.state, made.settings, family)


def changed(name: str, old: str, new: str) -> Renderer:
    """A renderer of the project's templates, with a text in one of them replaced."""
    text = templates()[name]
    assert old in text
    return Renderer({**templates(), name: text.replace(old, new, 1)})


def problem_of(name: str, text: str) -> Problem:
    """The error of a template with this text, whether it is raised on parsing or on rendering."""
    with pytest.raises(TemplateError) as caught:
        Renderer({**templates(), name: text}).table(facts())
    (problem,) = caught.value.problems
    return problem


# Reading statements


def test_elements_are_read_line_by_line() -> None:
    """An element has a container and a key, and in a map a value.  A repeated element counts once."""
    text = (
        "add element ip nftproxy cluster-ips { 10.96.0.10 }\n"
        "\n"
        "add element ip nftproxy services { 10.96.0.10 . tcp . 80 : goto tcp-endpoints-of-2 }\n"
        "add element ip nftproxy cluster-ips { 10.96.0.10 }\n"
    )
    assert read_statements(text, TABLE, NAME) == Block(
        lines=("cluster-ips 10.96.0.10", "services 10.96.0.10 . tcp . 80 : goto tcp-endpoints-of-2")
    )


def test_ipv6_addresses_are_no_values() -> None:
    """The colons of an address don't end a key."""
    text = "add element ip6 nftproxy hairpin { fd00::1 . fd00::1 . tcp . 80 }\n"
    (found,) = read_statements(text, "ip6 nftproxy", NAME).elements
    assert found == Element("hairpin", "fd00::1 . fd00::1 . tcp . 80", "")


def test_declarations_are_read_with_their_comments() -> None:
    """Comments belong to the next declaration.  Spaces and blank lines don't matter, inside a body or outside."""
    text = (
        "table ip nftproxy {\n"
        "\n"
        "  # first\n"
        "  # second\n"
        "  set vips {\n"
        "    typeof   ip daddr\n"
        "  }\n"
        "  \n"
        "\tchain refuse {\n"
        "\n"
        "  reject \n"
        "}\n"
        "}\n"
    )
    assert read_statements(text, TABLE, NAME) == Block(
        declarations=(
            Declaration(NftKind.SET, "vips", ("typeof ip daddr",), ("# first", "# second")),
            Declaration(NftKind.CHAIN, "refuse", ("reject",)),
        )
    )


@pytest.mark.parametrize("text", ["", "\n", "  \n\t\n", "# a comment\n  # another\n", "table ip nftproxy {\n}\n"])
def test_blank_lines_and_comments_are_no_statements(text: str) -> None:
    """Blank lines and comments contribute nothing."""
    assert read_statements(text, TABLE, NAME) == Block()


@pytest.mark.parametrize(
    ("text", "where", "quoted"),
    [
        ("flush ruleset\n", "rendered line 1", "flush ruleset"),
        ("\n\ndelete element ip nftproxy vips { 1 }\n", "rendered line 3", "delete element ip nftproxy vips { 1 }"),
        ("add element ip other vips { 1 }\n", "rendered line 1", "add element ip other vips { 1 }"),
        ("add element ip6 nftproxy vips { 1 }\n", "rendered line 1", "add element ip6 nftproxy vips { 1 }"),
        ("add element ip nftproxy vips { 1 } ; x\n", "rendered line 1", "add element ip nftproxy vips { 1 } ; x"),
        ("add element ip nftproxy vips { }\n", "rendered line 1", "add element ip nftproxy vips { }"),
        ("add element ip nftproxy vips { 1, 2 }\n", "rendered line 1", "add element ip nftproxy vips { 1, 2 }"),
        ("table ip other {\n}\n", "rendered line 1", "table ip other {"),
        ("table ip nftproxy {\n  counter c { }\n}\n", "rendered line 2", "  counter c { }"),
        ("table ip nftproxy {\n  chain a b {\n  }\n}\n", "rendered line 2", "  chain a b {"),
        ("table ip nftproxy {\n", "rendered text", "a table block that is not closed"),
        ("table ip nftproxy {\n  set s {\n", "rendered text", "a declaration that is not closed"),
        ("}\n", "rendered line 1", "}"),
        (f"add element {TABLE} k {{  : drop }}\n", "rendered line 1", f"add element {TABLE} k {{  : drop }}"),
        ("x" * 300, "rendered line 1", "x" * 200),
    ],
)
def test_what_is_no_statement_is_refused(text: str, where: str, quoted: str) -> None:
    """The error of a line with neither form quotes it, with the template and its place in the rendered text."""
    with pytest.raises(TemplateError) as caught:
        read_statements(text, TABLE, NAME)
    assert caught.value.problems == [
        Problem(NAME, "", where, f"neither a declaration nor an element: {quoted!r}", Code.TEMPLATE_FAULT),
    ]


# Bad templates


def test_a_syntax_error_names_the_template_and_the_line() -> None:
    """A template that doesn't parse is an error before anything is rendered, with the line."""
    problem = problem_of(TABLE_TEMPLATE, "table {{ table }} {\n}\n{% if %}\n")
    assert (problem.source, problem.field) == ("table.nft.j2", "line 3")
    assert problem.message.startswith("Expected an expression")


def test_an_undefined_name_names_the_template_and_the_line() -> None:
    """A template that uses an unknown fact is an error when it is rendered, with the line."""
    problem = problem_of(TABLE_TEMPLATE, "table {{ table }} {\n}\n{{ tabel }}\n")
    assert problem == Problem("table.nft.j2", "", "line 3", "UndefinedError: 'tabel' is undefined", Code.TEMPLATE_FAULT)


def test_an_unknown_attribute_names_the_template_and_the_line() -> None:
    """A template that uses an unknown attribute of a fact is an error when it is rendered, with the line."""
    problem = problem_of(TABLE_TEMPLATE, "table {{ table }} {\n}\n{{ endings.rase }}\n")
    assert problem == Problem(
        "table.nft.j2",
        "",
        "line 3",
        "UndefinedError: 'nftproxy.policy.facts.Endings object' has no attribute 'rase'",
        Code.TEMPLATE_FAULT,
    )


def test_a_failing_filter_names_the_line_of_the_template() -> None:
    """If Python code that a template calls fails, the error has the template's line, not that code's."""
    problem = problem_of(TABLE_TEMPLATE, "table {{ table }} {\n}\n{{ 5 | join }}\n")
    assert (problem.source, problem.field) == ("table.nft.j2", "line 3")


def test_a_failing_expression_names_the_template_and_the_line() -> None:
    """Any exception of an expression is an error of the template, with the line."""
    problem = problem_of(TABLE_TEMPLATE, "{% for address in nodeport_addresses %}\n{% endfor %}\n{{ 1 / 0 }}\n")
    assert problem == Problem("table.nft.j2", "", "line 3", "ZeroDivisionError: division by zero", Code.TEMPLATE_FAULT)


def test_a_line_that_is_no_statement_names_the_template_and_the_line() -> None:
    """A template that renders anything but statements is an error, with the rendered line."""
    problem = problem_of(TABLE_TEMPLATE, "{# a comment #}\n\nflush ruleset\n")
    assert problem == Problem(
        "table.nft.j2",
        "",
        "rendered line 2",
        "neither a declaration nor an element: 'flush ruleset'",
        Code.TEMPLATE_FAULT,
    )


@pytest.mark.parametrize("name", TEMPLATE_NAMES)
def test_a_template_that_is_missing_is_named(name: str) -> None:
    """Every template is required, and the error names a missing template."""
    given = {known: text for known, text in templates().items() if known != name}
    with pytest.raises(TemplateError, match=rf"^NFT108: {name}: no such template$"):
        Renderer(given)


@pytest.mark.parametrize("name", [ENDPOINTS_TEMPLATE, DRAW_TEMPLATE, SERVICE_TEMPLATE])
def test_the_template_at_fault_is_named(name: str) -> None:
    """If a Service port's block fails, the error names the template at fault."""
    bad = Renderer({**templates(), name: "\n{{ nothing }}\n"})
    with pytest.raises(TemplateError, match=rf"^NFT108: {name}: line 2: UndefinedError: 'nothing' is undefined$"):
        bad.port(PORT, TABLE)


def test_templates_have_the_functions_of_jinja() -> None:
    """A template may call Jinja's global functions."""
    text = "{% for each in range(2) %}\nadd element {{ table }} {{ each }} { 1 }\n{% endfor %}\n"
    made = Renderer({**templates(), SERVICE_TEMPLATE: text}).port(PORT, TABLE)
    assert [each.container for each in made.elements if each.key == "1"] == ["0", "1"]


# Blocks

LIST = ListFacts(
    table=TABLE,
    ip="ip",
    protocol="tcp",
    prefix="",
    list="tcp-endpoints",
    asked="ct original ip daddr . tcp dport",
    asked_front="ct original ip daddr . meta l4proto . th dport",
    numbers="0.0.0.0/8",
    first="0.0.0.0",
    race="drop",
    affinities=(),
)
DRAW = DrawFacts(
    table=TABLE,
    ip="ip",
    prefix="",
    list="tcp-endpoints",
    suffix="",
    count=2,
    number="0.0.0.2",
    sticky=(),
    draw="numgen random mod 2",
    how="draws one of 2 slots",
    slots=(),
    of_port="0.0.0.2",
)
STICKY = structs.replace(LIST, affinities=((60, "0.0.0.60"),))
FRONT = Front("", "10.96.0.10 . tcp . 80", "10.96.0.10 . 80")
(POD,) = addresses(["10.1.0.4"])
PORT = PortFacts(
    protocol="tcp",
    cluster_ips=addresses(["10.96.0.10"]),
    services=((FRONT, "0.0.0.2"),),
    endpoints=(Slots("tcp-endpoints", FRONT, (("0.0.0.0", POD, 8080), ("0.0.0.1", POD, 8081))),),
    lists=(LIST,),
    draws=(DRAW,),
)


def long_list(*pods: str) -> PortFacts:
    """The facts of a Service port with these endpoints."""
    rows = tuple((as_address(slot, IPV4), pod, 8080) for slot, pod in enumerate(addresses(pods)))
    return structs.replace(PORT, endpoints=(Slots("tcp-endpoints", FRONT, rows),))


MANY = [f"10.1.{number >> 8}.{number & 255}" for number in range(LONG + 100)]
LISTS = {
    "all": MANY,
    "one replaced": [*MANY[:50], "10.2.0.1", *MANY[51:]],
    "shorter": MANY[:-7],
    "longer": [*MANY, "10.2.0.1"],
    "short": MANY[: LONG - 1],
    "in another order": MANY[::-1],
}


@pytest.mark.parametrize("what", every(3, list(LISTS)))
def test_a_long_list_is_what_its_rows_are(what: str) -> None:
    """With any previous rows in the cache, the block of a long list is that of a new renderer."""
    used = Renderer(templates())
    for other in LISTS.values():
        used.port(long_list(*other), TABLE)
        assert used.port(long_list(*LISTS[what]), TABLE) == Renderer(templates()).port(long_list(*LISTS[what]), TABLE)


def test_a_long_list_has_its_rows_in_the_block_of_its_port() -> None:
    """The rows of a long list are elements of its port's block, like the rows of a short list."""
    elements = tuple(renderer().port(long_list(*MANY), TABLE).elements)
    keys = [f"10.96.0.10 . 80 . {as_address(slot, IPV4)}" for slot in range(len(MANY))]
    rows = [Element("tcp-endpoints", key, f"{pod} . 8080") for key, pod in zip(keys, MANY, strict=True)]
    others = renderer().port(structs.replace(PORT, endpoints=()), TABLE).elements
    assert elements == (*others, *rows)


def remembered_too(slots: Slots) -> PortFacts:
    """The facts of a Service port with a list, whose endpoints may be remembered for a client."""
    return structs.replace(PORT, endpoints=(slots,), sticky=(slots,))


def test_only_new_rows_of_a_long_list_are_written(monkeypatch: pytest.MonkeyPatch) -> None:
    """After an endpoint is replaced, the template renders one row of each list that has it, even if other lists changed
    in between.
    """
    used, lines = Renderer(templates()), list[str]()

    def listening(text: str, table: str, name: str) -> Block:
        lines.extend(text.splitlines())
        return read_statements(text, table, name)

    others = [long_list(*MANY[number:]) for number in range(LONG_LISTS // 2 - 1)]
    for number, facts in enumerate([long_list(*MANY), *others]):
        front = Front("", f"10.96.0.{number} . tcp . 80", f"10.96.0.{number} . 80")
        used.port(remembered_too(structs.replace(facts.endpoints[0], front=front)), TABLE)
    first = Front("", "10.96.0.0 . tcp . 80", "10.96.0.0 . 80")
    replaced = structs.replace(long_list(*LISTS["one replaced"]).endpoints[0], front=first)
    monkeypatch.setattr("nftproxy.rules.renderer.read_statements", listening)
    used.port(remembered_too(replaced), TABLE)
    assert [line for line in lines if "tcp-endpoints {" in line] == [
        "add element ip nftproxy tcp-endpoints { 10.96.0.0 . 80 . 0.0.0.50 : 10.2.0.1 . 8080 }",
        "add element ip nftproxy sticky-tcp-endpoints { 10.96.0.0 . 80 . 10.2.0.1 : 10.2.0.1 . 8080 }",
    ]


@pytest.mark.slow
def test_lists_whose_rows_are_remembered_are_few() -> None:
    """With more long lists than the cache holds, each list still renders its own rows."""
    used = Renderer(templates())
    wanted = []
    for number in range(LONG_LISTS + 1):
        front = Front("", f"10.96.0.{number} . tcp . 80", f"10.96.0.{number} . 80")
        facts = structs.replace(PORT, endpoints=(structs.replace(long_list(*MANY).endpoints[0], front=front),))
        wanted.append((facts, Renderer(templates()).port(facts, TABLE)))
    for facts, fresh in 2 * wanted:
        assert used.port(facts, TABLE) == fresh
    assert len(used._rows) == LONG_LISTS


def test_a_template_may_make_more_of_a_row() -> None:
    """If a template writes two elements for a row, nothing is cached and no element is missing."""
    row = "add element {{ table }} {{ slots.list }} {"
    used = changed(SERVICE_TEMPLATE, row, "add element {{ table }} pods { {{ address }} }\n" + row)
    for pods in LISTS.values():
        elements = set(used.port(long_list(*pods), TABLE).elements)
        assert {each.key for each in elements if each.container == "pods"} == set(pods)
        assert sum(each.container == "tcp-endpoints" for each in elements) == len(pods)


@pytest.mark.parametrize(
    ("tweaks", "names"),
    [
        ({}, ["tcp-endpoints-of-2"]),
        ({"list": "nodeport-udp-local-endpoints", "count": 3}, ["nodeport-udp-local-endpoints-of-3"]),
        ({"sticky": ("0.16.0.2",)}, ["tcp-endpoints-of-2", "tcp-endpoints-of-2-sticky"]),
        ({"suffix": "-by-client"}, ["tcp-endpoints-of-2-by-client"]),
    ],
)
def test_a_chain_is_named_for_what_it_does(tweaks: dict[str, object], names: list[str]) -> None:
    """A chain's name has its list, the number of endpoints, and the algorithm."""
    draw = structs.replace(DRAW, **tweaks)
    declared = renderer().port(structs.replace(PORT, lists=(), draws=(draw,)), TABLE).declarations
    assert [(declaration.kind, declaration.name) for declaration in declared] == [
        (NftKind.CHAIN, name) for name in names
    ]


def test_a_port_is_its_elements_and_what_it_shares() -> None:
    """A Service port's block has its memberships, its lists of endpoints and the chains that draw from them."""
    block = renderer().port(PORT, TABLE)
    assert tuple(block.elements) == (
        Element("cluster-ips", "10.96.0.10", ""),
        Element("services", "10.96.0.10 . tcp . 80", "0.0.0.2"),
        Element("tcp-endpoints", "10.96.0.10 . 80 . 0.0.0.0", "10.1.0.4 . 8080"),
        Element("tcp-endpoints", "10.96.0.10 . 80 . 0.0.0.1", "10.1.0.4 . 8081"),
    )
    key = "ct original ip daddr . tcp dport . ip daddr"
    dnat = f"meta l4proto tcp dnat ip addr . port to {key} map @tcp-endpoints"
    assert [(declaration.kind, declaration.name, declaration.body) for declaration in block.declarations] == [
        (NftKind.MAP, "tcp-endpoints", (f"typeof {key} : ip daddr . tcp dport",)),
        (
            NftKind.CHAIN,
            "translate-tcp-endpoints",
            (
                f'{dnat} comment "the slot has an endpoint: translates to it"',
                'ip daddr set 0.0.0.0 comment "the slot is missing, or was just deleted: takes slot 0"',
                f'{dnat} comment "slot 0 has an endpoint: translates to it"',
                'drop comment "slot 0 is missing, or was just deleted: drops the packet"',
            ),
        ),
        (
            NftKind.CHAIN,
            "tcp-endpoints-of-2",
            (
                'ip daddr set numgen random mod 2 comment "draws one of 2 slots: writes it over the packet\'s address"',
                'goto translate-tcp-endpoints comment "goes to translate to the endpoint in this slot"',
            ),
        ),
    ]


def test_a_chain_that_draws_comes_with_what_leads_to_it() -> None:
    """The element that leads to the chain for N belongs to the chain, not to a Service port."""
    (chain,) = (each for each in renderer().port(PORT, TABLE).declarations if each.entries)
    assert (chain.name, chain.entries) == (
        "tcp-endpoints-of-2",
        (Element("draws", "0.0.0.2", "goto tcp-endpoints-of-2"),),
    )


def test_a_map_that_is_shared_comes_with_its_elements() -> None:
    """The fixed elements of a shared map belong to the map, not to a Service port."""
    draw = structs.replace(DRAW, slots=(("tcp-slots-2", (("tcp . 0", "::"), ("tcp . 1", "::1"))),))
    block = renderer().port(structs.replace(PORT, draws=(draw,)), TABLE)
    (found,) = (each for each in block.declarations if each.kind is NftKind.MAP and each.entries)
    assert (found.name, found.entries) == (
        "tcp-slots-2",
        (Element("tcp-slots-2", "tcp . 0", "::"), Element("tcp-slots-2", "tcp . 1", "::1")),
    )
    assert not any(each.container == "tcp-slots-2" for each in block.elements)


@pytest.mark.parametrize("name", [ENDPOINTS_TEMPLATE, DRAW_TEMPLATE])
@pytest.mark.parametrize("element", ["draws { 1 : goto nowhere }", "fronts { 1 }"])
def test_a_shared_element_belongs_to_something_that_is_declared_with_it(name: str, element: str) -> None:
    """An element of a chain or set that its template doesn't declare is an error that quotes the element."""
    bad = Renderer({**templates(), name: f"add element {{{{ table }}}} {element}\n"})
    wrong = f"this template doesn't declare the owner of an element: {element}"
    with pytest.raises(TemplateError, match=rf"^NFT108: {name}: {re.escape(wrong)}$"):
        bad.port(PORT, TABLE)


def test_what_is_shared_is_declared_once() -> None:
    """Algorithms that share a list declare each shared container once in a block."""
    declared = renderer().port(
        structs.replace(PORT, lists=(LIST, STICKY), draws=(DRAW, structs.replace(DRAW, count=3))), TABLE
    )
    assert [declaration.name for declaration in declared.declarations] == [
        "tcp-endpoints",
        "translate-tcp-endpoints",
        "tcp-affinity-60",
        "sticky-tcp-endpoints",
        "tcp-endpoints-timeouts",
        "follow-tcp-endpoints",
        "follow-tcp-endpoints-60",
        "revisit-tcp-endpoints",
        "remember-tcp-60",
        "tcp-endpoints-of-2",
        "tcp-endpoints-of-3",
    ]


def test_a_list_is_the_same_with_and_without_affinity() -> None:
    """The shared declarations of a list have the same text with session affinity and without."""
    plain = renderer().port(PORT, TABLE).declarations
    assert set(plain) < set(renderer().port(structs.replace(PORT, lists=(STICKY,)), TABLE).declarations)


@pytest.mark.parametrize("family", Family)
def test_the_skeleton_declares_every_set_that_a_port_may_be_in(family: Family) -> None:
    """The skeleton, or a chain in the same block, declares every set to which service.nft.j2 adds elements."""
    block = renderer().table(facts(family))
    assert len({(declaration.kind, declaration.name) for declaration in block.declarations}) == len(block.declarations)
    assert {declaration.name for declaration in block.declarations if declaration.kind is not NftKind.CHAIN} == {
        "cluster-ips",
        "nodeport-ips",
        "service-cidrs",
        "guarded",
        "allowed",
        "hairpin",
        "remembering",
        *(
            f"{prefix}{name}"
            for prefix in ("", "nodeport-")
            for name in (
                "services",
                "draws",
                "masqueraded",
                "local-policy",
                "short-circuit",
                "fronts",
                "no-endpoints",
                "affinity",
            )
        ),
    }


# Shape


@pytest.mark.parametrize(
    ("name", "old", "new"),
    [
        (TABLE_TEMPLATE, "  set cluster-ips {\n", "  set service-ips {\n"),
        (TABLE_TEMPLATE, "    flags interval\n", "    flags interval\n    auto-merge\n"),
        (TABLE_TEMPLATE, "hook output priority -101", "hook output priority -111"),
        (TABLE_TEMPLATE, "  chain refuse {\n", "  chain reset {\n"),
        (ENDPOINTS_TEMPLATE, "size 1048576", "size 65536"),
    ],
)
def test_the_shape_changes_with_what_the_kernel_cannot_change(name: str, old: str, new: str) -> None:
    """Another set, type, flag, size, hook or priority is another shape."""
    assert changed(name, old, new).shape(facts()) != renderer().shape(facts())


@pytest.mark.parametrize(
    ("name", "old", "new"),
    [
        (TABLE_TEMPLATE, "    reject comment", "    counter reject comment"),
        (TABLE_TEMPLATE, "  # load balancer", "  # LB"),
        (ENDPOINTS_TEMPLATE, "    {{ race }} comment", "    counter {{ race }} comment"),
        (DRAW_TEMPLATE, "    jump follow", "    counter jump follow"),
        (SERVICE_TEMPLATE, "cluster-ips { {{ address }} }", "cluster-ips { {{ address }} timeout 1s }"),
    ],
)
def test_the_shape_is_not_that_of_rules(name: str, old: str, new: str) -> None:
    """Other rules, comments or elements keep the shape, because a reload replaces rules in place."""
    assert changed(name, old, new).shape(facts()) == renderer().shape(facts())


def test_the_shape_does_not_depend_on_node_or_configuration() -> None:
    """Another node or configuration keeps the shape, so the table and its session affinity survive."""
    shape = renderer().shape(facts())
    assert renderer().shape(facts(masquerade_all=True)) == shape
    made = pipeline(node=node(zone="", internal_ips=[], pod_cidrs=[]), node_port_addresses=["0.0.0.0/0"])
    assert renderer().shape(compile_table(made.state, made.settings, IPV4)) == shape


def test_each_family_has_its_shape() -> None:
    """The shapes of the two families differ, as their types do.  Each has 16 hexadecimal digits."""
    shapes = {renderer().shape(facts(family)) for family in (IPV4, IPV6)}
    assert len(shapes) == 2
    assert {len(shape) for shape in shapes} == {16}
    assert all(int(shape, 16) for shape in shapes)
