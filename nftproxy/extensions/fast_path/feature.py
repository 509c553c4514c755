"""The fast path of established connections (`nftproxy.fastPath`): a table of its own."""

from __future__ import annotations

from typing import TYPE_CHECKING

from nftproxy.explanation.explained_extension import ExplainedExtension
from nftproxy.extensions.fast_path.codes import FastPathCode
from nftproxy.extensions.fast_path.rules import FAST_PATH_TABLE, TEMPLATE, whole_table

if TYPE_CHECKING:
    from nftproxy.explanation.words import Words


def _words() -> Words:
    from nftproxy.extensions.fast_path.words import WORDS

    return WORDS


FAST_PATH = ExplainedExtension(
    name="fast_path",
    codes=tuple(FastPathCode),
    templates=(TEMPLATE,),
    own_table=FAST_PATH_TABLE,
    whole_table=whole_table,
    words=_words,
)
