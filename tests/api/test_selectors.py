"""Label selectors as kubectl takes them."""

from __future__ import annotations

import pytest

from nftproxy.api.selectors import LONGEST, parse_selector, selects
from nftproxy.model.errors import BadInput

LABELS = {"app": "web", "tier": "front", "example.com/release": "", "in": "notin"}


@pytest.mark.parametrize(
    ("text", "is_selected"),
    [
        ("", True),
        (" ", True),
        ("app=web", True),
        ("app == web", True),
        ("app=other", False),
        ("app!=web", False),
        ("app!=other,none!=x", True),
        ("app=web,tier=front", True),
        ("app=web,tier=back", False),
        ("tier in (front, back)", True),
        ("tier in (back)", False),
        ("tier notin (back),none notin (x)", True),
        ("tier notin (front)", False),
        ("app", True),
        ("!app", False),
        ("! none", True),
        ("none", False),
        ("example.com/release=", True),
        ("example.com/release", True),
        ("app=", False),
        ("in=notin", True),
        ("in in (notin)", True),
    ],
)
def test_selectors(text: str, is_selected: bool) -> None:
    """Each form has its meaning in Kubernetes.  An absent label is unlike any value."""
    assert selects(parse_selector(text), LABELS) is is_selected


@pytest.mark.parametrize(
    "text",
    ["a b", "a=b=c", "a=b,", ",", "a in b", "a in (b", "=b", "!a=b", "a/b/c", "-a", "a=-", "a=b\n;c", "a," * LONGEST],
)
def test_what_is_no_selector(text: str) -> None:
    """Anything else is bad input that is quoted."""
    with pytest.raises(BadInput, match="is not a label selector"):
        parse_selector(text)
