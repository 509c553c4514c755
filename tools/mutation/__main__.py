"""`python -m tools.mutation`: see the package."""

from __future__ import annotations

import argparse
import hashlib
import os
import random
import sys
import tempfile
import tomllib
from collections import Counter
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import NamedTuple

from tools.mutation import python, template, trials
from tools.mutation.campaign import Campaign
from tools.mutation.killers import STAGES, TARGETS, TEMPLATES, stages_for
from tools.mutation.mutant import Identity, Mutant, mutants_of
from tools.mutation.trials import CHECKOUT, Result

EXPLAINED = Path(__file__).with_name("explained.toml")


def all_mutants(only: str = "") -> list[Mutant]:
    """Every mutant of the targets whose path contains `only`."""
    texts = {file: (CHECKOUT / file).read_text() for file in TEMPLATES}
    names = template.Names(texts)
    made: list[Mutant] = []
    for file in (file for file in TARGETS if only in file):
        source = (CHECKOUT / file).read_bytes()
        found = template.faults(texts[file], names) if file in texts else python.faults(source)
        made += mutants_of(file, source, found)
    return made


class Explanation(NamedTuple):
    """Why a mutant may live; `is_race`: it is killed now and then, as it is seen only if two things meet."""

    reason: str
    is_race: bool = False


def explanations(path: Path = EXPLAINED) -> dict[Identity, Explanation]:
    """Why mutants may live, by identity.

    Raises:
        ValueError: a mutant is explained twice, or without a reason.
    """
    found: dict[Identity, Explanation] = {}
    for entry in tomllib.loads(path.read_text()).get("mutant", []):
        for change in entry["changes"]:
            identity = Identity(entry["file"], entry.get("where", ""), entry["line"], change)
            if identity in found or not entry["reason"]:
                raise ValueError(f"{identity}: explained twice, or without a reason")
            found[identity] = Explanation(entry["reason"], entry.get("race", False))
    return found


class Report(NamedTuple):
    """What became of mutants; `stale` are explanations of none that lives."""

    results: Mapping[Identity, Result]
    explained: Mapping[Identity, Explanation]
    stale: Sequence[Identity]

    @property
    def unexplained(self) -> list[Identity]:
        """The mutants that live and should not."""
        return [each for each in self.lived if each not in self.explained]

    @property
    def lived(self) -> list[Identity]:
        """The mutants that live, or may."""
        return [identity for identity, result in self.results.items() if not result.is_kill]


def judged(
    results: Mapping[Identity, Result], explained: Mapping[Identity, Explanation], known: set[Identity]
) -> Report:
    """Compare what lives with what is explained; `known` are all mutants that there are, tried or not."""
    killed = {each for each, result in results.items() if result.is_kill}
    stale = [each for each, its in explained.items() if each not in known or (each in killed and not its.is_race)]
    return Report(results, explained, stale)


def chosen(mutants: list[Mutant], options: argparse.Namespace) -> list[Mutant]:
    """The mutants to try: all, those that lived in another run, or a sample."""
    if options.lived:
        lived = {line.removeprefix("passed: ") for line in options.lived.read_text().splitlines()}
        mutants = [mutant for mutant in mutants if str(mutant.identity) in lived]
    if options.sample:
        mutants = sorted(mutants, key=lambda mutant: _lot(mutant, options.seed))[: options.sample]
    return mutants


def _lot(mutant: Mutant, seed: int) -> bytes:
    """What a mutant is drawn by: a matter of itself, so that a sample keeps what is unchanged."""
    return hashlib.blake2b(f"{seed} {mutant.identity}".encode()).digest()


def show(report: Report) -> None:
    """Print what lives, as an entry of explained.toml without the reason, and the numbers."""
    for identity in report.unexplained:
        print("[[mutant]]")
        for name, value in (("file", identity.file), ("where", identity.where), ("line", identity.line)):
            print(f"{name} = {_toml(value)}")
        print(f"changes = [{_toml(identity.change)}]")
        print('reason = ""\n')
    for identity in report.stale:
        print(f"explained, but no mutant that lives: {identity}")
    print("file: mutants, killed, timed out, explained, unexplained")
    for file in (*dict.fromkeys(each.file for each in report.results), "all"):
        own = {each: its for each, its in report.results.items() if file in (each.file, "all")}
        counts = Counter(result.status for result in own.values())
        unexplained = sum(each in own for each in report.unexplained)
        lived = sum(not result.is_kill for result in own.values())
        figures = len(own), counts["failed"], counts["timed out"], lived - unexplained, unexplained
        print(f"{file}: {', '.join(map(str, figures))}")


def _toml(text: str) -> str:
    if "'" not in text:
        return f"'{text}'"
    return '"{}"'.format(text.replace("\\", "\\\\").replace('"', '\\"'))


def main(arguments: Sequence[str] | None = None) -> int:
    """Try mutants; 0 if all that live are explained, and all explanations are of such."""
    parser = argparse.ArgumentParser(prog="python -m tools.mutation", description="Damage the code, run the tests.")
    parser.add_argument("--only", default="", metavar="FILE", help="only files whose path contains this")
    parser.add_argument("--sample", type=int, metavar="N", help="only N mutants, drawn at random")
    parser.add_argument("--seed", type=int, default=random.randrange(2**32), help="draws the same sample again")
    parser.add_argument("--log", type=Path, metavar="FILE", help="write what becomes of each mutant, as it does")
    parser.add_argument("--lived", type=Path, metavar="FILE", help="only those that lived, as such a log says")
    parser.add_argument("--stage", choices=[stage.name for stage in STAGES], help="only these tests, for a first look")
    parser.add_argument("--fast", action="store_true", help="only fast tests, for a first look")
    parser.add_argument("--jobs", type=int, default=os.cpu_count(), help="how many at a time")
    options = parser.parse_args(arguments)
    explained = explanations()
    known = all_mutants()
    mutants = chosen([each for each in known if options.only in each.identity.file], options)
    if options.sample:
        print(f"{len(mutants)} of {len(known)} mutants: --sample {options.sample} --seed {options.seed}", flush=True)
    needed = {stage for mutant in mutants for stage in stages_for(mutant.identity.file)}
    stages = [stage for stage in STAGES if stage in needed and options.stage in (None, stage.name)]
    trials.preload()
    with tempfile.TemporaryDirectory(prefix="nftproxy-mutation-") as directory:
        campaign = Campaign(mutants, stages, Path(directory), options.jobs)
        campaign.log, campaign.only_fast = options.log, options.fast
        campaign.doubted = {identity for identity, its in explained.items() if not its.is_race}
        campaign.run()
    report = judged(campaign.results, explained, {mutant.identity for mutant in known})
    show(report)
    for test, times in sorted(campaign.flaky.items()):
        print(f"flaky, failed and then passed on the same code, {times} times: {test}")
    return 1 if report.unexplained or report.stale else 0


if __name__ == "__main__":
    if os.environ.get("PYTHONHASHSEED") != "0":  # the order of sets decides whether some mutants live
        os.execve(sys.executable, sys.orig_argv, {**os.environ, "PYTHONHASHSEED": "0"})
    sys.exit(main())
