"""The handlers of questions.  The first question loads them: a tenth of an agent's modules, which rules do not need."""

from __future__ import annotations

from collections.abc import Mapping

from nftproxy.agent.socket.agent_socket import QueryHandler
from nftproxy.agent.socket.query_context import QueryContext
from nftproxy.build import this_build
from nftproxy.explanation.explained_extension import words_of
from nftproxy.model.errors import Unavailable


def load_handlers(known: QueryContext) -> Mapping[str, QueryHandler]:
    """Import the handlers of questions, and the words of extensions.  Return the handlers, by the paths of requests.

    Raises:
        Unavailable: another version was installed since this process began: its modules don't fit those in memory.
    """
    if this_build() != known.build:
        raise Unavailable("another version was installed since this agent began: restart the agent")
    from nftproxy.agent.socket.queries import query_handlers

    list(words_of(known.pipeline))
    return query_handlers(known)
