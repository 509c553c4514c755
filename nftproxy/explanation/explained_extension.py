"""An extension that adds words to explanations and listings.

An extension is one value, and rules know nothing of its words.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass
from typing import TYPE_CHECKING

from nftproxy.policy.extension import Extension

if TYPE_CHECKING:
    from nftproxy.explanation.packet_path import AddedStage
    from nftproxy.explanation.words import Words
    from nftproxy.pipeline import Pipeline


@dataclass(frozen=True, kw_only=True)
class ExplainedExtension(Extension):
    """An extension with words.

    Attributes:
        words: imports its words and returns them.  The first explanation or listing calls it: rules need no words.
    """

    words: Callable[[], Words]


def words_of(pipeline: Pipeline) -> Iterator[Words]:
    """The words of the pipeline's extensions."""
    return _words(pipeline.settings.extensions)


def added_stages(extensions: Iterable[Extension]) -> tuple[AddedStage, ...]:
    """The stages that extensions add to pictures of `explain`."""
    return tuple(each.stage for each in _words(extensions) if each.stage)


def _words(extensions: Iterable[Extension]) -> Iterator[Words]:
    return (each.words() for each in extensions if isinstance(each, ExplainedExtension))
