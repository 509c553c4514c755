"""`python -m tools.structure [CHECKOUT]`: how far the features that only nftproxy has reach into the proxy, as a table.

It reads the source of any checkout, also of one from before there were extensions.  Only the modules that `run` loads
are imported, in a process of their own.
"""

from __future__ import annotations

import ast
import functools
import io
import re
import subprocess
import sys
import tokenize
from collections.abc import Iterator
from pathlib import Path

import click

FEATURES = {
    "algorithms": "algorithm maglev round_robin placement",
    "client_limits": "client_limits screen screens screened screening rate_facts denied_ranges",
    "counts": "service_counts counted_fronts counted_table count_reader count_no count_race",
    "external_addresses": "ping pings closes_external tells_external own_external closed_external unused_addresses",
    "failover": "failover silent silence_watch refusing gone_addresses watchers failing_over fails_over",
    "fast_path": "fast_path flowtable",
    "least_connections": "least_connections balanced_list balanced_row load_watch load_factors factors",
    "localhost": "localhost forwarder forwardings",
    "masquerade_address": "masquerade_address node_source interface_addresses",
}
"""The words for each feature in names of the code: of its classes, modules, fields, sets and chains.

Some words are left out as the proxy has them, too.  `scheduler` is kube-proxy's field for IPVS.  `none_local` is the
reason of a metric of kube-proxy's.  Sweeps and `top` call a connection `unanswered` and count connections, in any
Service.  A Service of type LoadBalancer is `balanced`."""

OTHER_MEANINGS = {
    "fast_path": {
        "flowtables",  # of any program, which `doctor` reads as it reads tables and chains
        "get_flowtable",  # and nftables' numbers for that question
        "flowtable_name",
    },
    "failover": {
        "agent_silent",  # the code for an agent that doesn't answer a command
        "_is_silent",  # of a watch of the API
    },
    "localhost": {
        "localhost",  # an address (RFC 6761), and the value of Kubernetes' nodePortAddresses (KEP-6032)
        "localhost_gate",  # Kubernetes' feature gate for that value
        "allow_localhost_node_ports",
        "allows_localhost",
        "localhost_node_ports",  # kube-proxy's iptables.localhostNodePorts, which `doctor` reads
        "_localhost_node_ports",
        "_serves_localhost",
        "localhost_accepted",  # and kube-proxy's count of packets to these
        "localhost_counter",
    },
}
"""Names that contain a word of a feature, and mean something else."""

LOADED = """
import sys
sys.argv = ["nftproxy", "run", "--version"]
from nftproxy.commands.cli import main
try: main()
except SystemExit: pass
import nftproxy.agent.daemon, nftproxy.library
print(*(name for name in sys.modules if name.partition(".")[0] == "nftproxy"))
"""


@functools.cache
def names_in(path: Path) -> set[str]:
    """The names in a module, without words of comments and texts, or the words of a template without its comments."""
    text = path.read_text()
    if path.suffix != ".py":
        return set(re.findall(r"[\w-]+", re.sub(r"\{#.*?#\}|#.*|comment \".*?\"", "", text, flags=re.DOTALL)))
    return {each.string for each in tokenize.generate_tokens(io.StringIO(text).readline) if each.type == tokenize.NAME}


def sources(checkout: Path) -> list[Path]:
    """The modules and the templates of a checkout."""
    return sorted([*(checkout / "nftproxy").rglob("*.py"), *(checkout / "templates").rglob("*.j2")])


def is_in(path: Path, folder: str) -> bool:
    """Whether a path goes through an extension's folder."""
    return f"/extensions/{folder}/" in path.as_posix()


def features(checkout: Path) -> dict[str, str]:
    """The words for each feature.  If `FEATURES` lacks an extension, the word is its folder's name."""
    folders = sorted(each.parent.name for each in (checkout / "nftproxy" / "extensions").glob("*/__init__.py"))
    return FEATURES | {name: name for name in folders if name not in FEATURES}


def naming(checkout: Path, feature: str, words: str) -> int:
    """The number of files outside of a feature's folder that name it."""
    pattern = re.compile(rf"(?:^|_)(?:{'|'.join(words.split())})s?(?:_|$)")
    others = OTHER_MEANINGS.get(feature, set())

    def names(path: Path) -> bool:
        found = {_snake(name) for name in names_in(path)} - others
        return any(map(pattern.search, found)) or f"nftproxy.extensions.{feature}." in path.read_text()

    return sum(names(path) for path in sources(checkout) if not is_in(path, feature))


def _snake(name: str) -> str:
    """A name of a class, module or set in lower case, with underscores."""
    return re.sub(r"(?<=[a-z])(?=[A-Z])", "_", name).replace("-", "_").lower()


def fields(checkout: Path, name: str) -> int:
    """The number of fields of a class in policy/facts.py."""
    tree = ast.parse((checkout / "nftproxy" / "policy" / "facts.py").read_text())
    (found,) = (node for node in tree.body if isinstance(node, ast.ClassDef) and node.name == name)
    return sum(isinstance(node, ast.AnnAssign) for node in found.body)


def importers(checkout: Path) -> int:
    """The number of modules outside of extensions/ that import an extension, without the lists of extensions."""
    lists = ("installed.py", "installed_fields.py")
    proxys = [path for path in sources(checkout) if "/extensions/" not in path.as_posix() and path.name not in lists]
    return sum(bool(re.search(r"^\s*from nftproxy\.extensions", path.read_text(), re.MULTILINE)) for path in proxys)


def loaded(checkout: Path) -> list[str]:
    """The modules of ours that `run` loads."""
    command = [sys.executable, "-c", LOADED]
    done = subprocess.run(command, cwd=checkout, check=True, capture_output=True, text=True)
    return done.stdout.splitlines()[-1].split()


def lines(paths: list[Path]) -> int:
    """The number of lines of files."""
    return sum(len(path.read_text().splitlines()) for path in paths)


def rows(checkout: Path) -> Iterator[tuple[str, str]]:
    """The rows of the table: what is counted, and its number."""
    entered = checkout / "tests" / "system" / "plain_change" / "entered.txt"
    if entered.exists():
        for phase, count in re.findall(r"^(.*): every change enters (.*)$", entered.read_text(), re.MULTILINE):
            yield f"a plain change, {phase}", count
    for feature, words in features(checkout).items():
        yield f"files that name {feature}, outside of its folder", f"{naming(checkout, feature, words)}"
    for name in ("PortFacts", "TableFacts"):
        yield f"fields of {name}", f"{fields(checkout, name)}"
    has_extensions = (checkout / "nftproxy" / "extensions").exists()
    yield "modules of the proxy that import an extension", f"{importers(checkout)}" if has_extensions else ""
    modules = loaded(checkout)
    own = [name for name in modules if not name.startswith("nftproxy.extensions.")]
    yield "modules that `run` loads, without extensions", f"{len(own)} of {len(modules)}"
    proxys = [path for path in sources(checkout) if "/extensions/" not in path.as_posix()]
    yield "lines of the proxy", f"{lines(proxys):,}"
    for feature in features(checkout):
        found = [path for path in sources(checkout) if is_in(path, feature)]
        yield f"lines of {feature}", f"{lines(found):,}" if found else ""


@click.command()
@click.argument("checkouts", nargs=-1, type=click.Path(exists=True, file_okay=False, path_type=Path))
def main(checkouts: tuple[Path, ...]) -> None:
    """Print a table with a column for each checkout, by default for this one."""
    found = [dict(rows(each.resolve())) for each in checkouts or (Path(),)]
    for row in dict.fromkeys(name for each in found for name in each):
        click.echo(f"| {row} | {' | '.join(each.get(row, '') for each in found)} |")


if __name__ == "__main__":
    main()
