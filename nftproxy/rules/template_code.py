"""The byte code of templates, which another process may have made.

Jinja takes 60 ms to compile our templates, a sixth of an agent's start in a small cluster.  So a child process compiles
them while the agent imports its modules.
"""

from __future__ import annotations

from collections.abc import Mapping

import jinja2
from jinja2.bccache import Bucket

from nftproxy.rules.renderer import Renderer


class TemplateCode(jinja2.BytecodeCache):
    """Jinja's cache of byte code, in memory.

    Jinja compares a checksum of the template's text, and compiles a template that isn't here, or is different.

    Attributes:
        made: the byte code by Jinja's keys.
    """

    def __init__(self, made: Mapping[str, bytes]) -> None:
        self.made = dict(made)

    def load_bytecode(self, bucket: Bucket) -> None:
        """Give the byte code to Jinja, if it is here."""
        if bucket.key in self.made:
            bucket.bytecode_from_string(self.made[bucket.key])

    def dump_bytecode(self, bucket: Bucket) -> None:
        """Take in byte code that Jinja has made."""
        self.made[bucket.key] = bucket.bytecode_to_string()


def compile_templates(templates: Mapping[str, str]) -> dict[str, bytes]:
    """Compile templates.  Return their byte code, for a `TemplateCode`.

    Raises:
        TemplateError: a template is missing or doesn't parse.
    """
    code = TemplateCode({})
    Renderer(templates, code)
    return code.made
