"""`python -m tests.mutation.first_look LOG`: templates' mutants before the conformance suite alone.

Templates are data, so nothing has to be imported anew for a mutant, and most are noticed within a second.  The log is
one of `python -m tests.mutation`, whose `--lived LOG` tries what is left with all tests that send packets.
"""

from __future__ import annotations

import os
import sys
import time
from collections.abc import Iterator
from pathlib import Path

from nftproxy.capabilities import probe
from nftproxy.conformance import suite
from nftproxy.errors import NftproxyError
from nftproxy.model import Capabilities
from nftproxy.render import TEMPLATE_NAMES, Renderer
from tests.mutation.__main__ import all_mutants
from tests.mutation.mutant import Mutant
from tests.mutation.trials import CHECKOUT

EXAMPLES = 5  # clusters for each feature
PATIENCE = 120.0  # seconds for a mutant
NOTICED = 1


def main() -> None:
    """Try all of them, as many at a time as there are processors."""
    texts = {name: (CHECKOUT / "templates" / name).read_text() for name in TEMPLATE_NAMES}
    capabilities = probe().capabilities
    waiting = list(reversed(all_mutants("templates/")))
    busy: dict[int, tuple[Mutant, float]] = {}
    with Path(sys.argv[1]).open("w", buffering=1) as log:
        while waiting or busy:
            while waiting and len(busy) < (os.cpu_count() or 1):
                mutant = waiting.pop()
                busy[_started(mutant, texts, capabilities)] = mutant, time.monotonic()
            for child, status in _ended(busy):
                mutant, _ = busy.pop(child)
                log.write(f"{'passed' if status == 0 else 'failed by conformance'}: {mutant.identity}\n")
            time.sleep(0.05)


def _started(mutant: Mutant, texts: dict[str, str], capabilities: Capabilities) -> int:
    """A process that tries a mutant: libnftables may die of one."""
    child = os.fork()
    if child:
        return child
    name = Path(mutant.identity.file).name
    sys.stderr = Path(os.devnull).open("w")  # noqa: SIM115  # for as long as this process lives
    try:
        renderer = Renderer({**texts, name: mutant.applied(texts[name].encode()).decode()})
        results = suite.run(renderer, capabilities, examples=EXAMPLES, shrinks=False)
        os._exit(0 if all(result.ok for result in results) else NOTICED)
    except (NftproxyError, OSError):
        os._exit(NOTICED)
    finally:
        os._exit(2)


def _ended(busy: dict[int, tuple[Mutant, float]]) -> Iterator[tuple[int, int]]:
    for child, (_, began) in list(busy.items()):
        if time.monotonic() - began > PATIENCE:
            os.kill(child, 9)
        if (found := os.waitpid(child, os.WNOHANG))[0]:
            yield child, found[1]


if __name__ == "__main__":
    main()
