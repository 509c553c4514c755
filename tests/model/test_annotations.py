"""Annotations and fields of the configuration that several extensions declare, each with its own words."""

from __future__ import annotations

from enum import Enum

from nftproxy.model.annotations import Option, Options, Word, joined
from nftproxy.model.codes import Code
from nftproxy.model.config_fields import ConfigField, InsteadOf, Replacement
from nftproxy.model.settings import Config


class Warm(Enum):
    """The words of one extension."""

    NONE = "none"
    RED = "red"


class Cold(Enum):
    """The words of another extension, which share one."""

    NONE = "none"
    BLUE = "blue"


def option(name: str, words: type[Enum]) -> Option[Enum]:
    """An annotation with these words, of which the first is the default."""
    return Option(name, Word(words), next(iter(words)), "", ())


def field(words: type[Enum], **replacements: Enum) -> ConfigField[Enum]:
    """A field with these words."""
    values = {text: Replacement(word, f"{text} is other") for text, word in replacements.items()}
    instead_of = InsteadOf("ipvs.scheduler", Code.IPVS_SCHEDULER, values)
    return ConfigField("colour", Word(words), next(iter(words)), "", instead_of=instead_of)


def test_options_of_one_name_are_an_option_with_the_words_of_all() -> None:
    """Of words with the same value the first counts, and each key finds the value of the annotation."""
    warm, cold, other = option("colour", Warm), option("colour", Cold), option("shape", Cold)
    both, same = joined([warm, other, cold])
    assert same is other
    assert both.form == Word((Warm.NONE, Warm.RED, Cold.BLUE))
    assert both.default is Warm.NONE
    assert [Options.of({both: Cold.BLUE})[each] for each in (both, warm, cold)] == [Cold.BLUE] * 3


def test_fields_of_one_name_are_a_field_with_the_words_and_replacements_of_all() -> None:
    """A text that no extension knows becomes the default, with the reason."""
    warm, cold = field(Warm, rr=Warm.RED), field(Cold, lc=Cold.BLUE)
    (both,) = joined([warm, cold])
    assert both.form == Word((Warm.NONE, Warm.RED, Cold.BLUE))
    config = Config().having({both: Cold.BLUE})
    assert config[warm] is Cold.BLUE
    assert config.having({warm: Warm.RED}) == Config().having({both: Warm.RED})
    assert [both.replacement(text) for text in ("rr", "lc", "odd")] == [
        Replacement(Warm.RED, "rr is other"),
        Replacement(Cold.BLUE, "lc is other"),
        Replacement(Warm.NONE, "nftproxy doesn't know this scheduler"),
    ]
