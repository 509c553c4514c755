"""Why a request to the API failed, in an operator's words."""

from __future__ import annotations

import asyncio
import os
import socket
import ssl
from collections.abc import Iterator

import httpx

from nftproxy.sources.api_connection import Timeouts


def failure_text(error: BaseException | None, host: str, timeouts: Timeouts, *, is_watch: bool = False) -> str:
    """Describe why a request failed.

    Args:
        error: the error of a connection.
        host: the server's name or address, with its port, and the proxy on the way.
        timeouts: those of the connection.
        is_watch: whether the request was a watch.
    """
    match error:
        case httpx.ConnectTimeout():
            return f"no connection to {host} within {timeouts.connect:g} s"
        case httpx.ReadTimeout() if is_watch:
            return f"no data for {timeouts.silence:g} s, reconnecting"
        case httpx.ReadTimeout():
            return f"no data from {host} for {timeouts.answer:g} s"
        case httpx.ConnectError() | httpx.ProxyError():
            return f"no connection to {host}: {_message(error)}"
        case httpx.NetworkError() | httpx.RemoteProtocolError() | ConnectionResetError() | BrokenPipeError():
            return f"the connection to {host} broke: {_message(error)}"
        case ConnectionError() if str(error) and not error.errno:  # ours, with the words of its cause
            return str(error)
        case TimeoutError() if not error.errno and not error.args:
            return f"{host} took longer than {timeouts.page:g} s for an answer"
    return _message(error) or type(error).__name__


def _message(error: BaseException | None) -> str:
    """Return the system's message if the system has failed, else the message of the error or of its causes."""
    chain = list(_chain(error))
    system = [_of_system(each) for each in chain if isinstance(each, OSError) and each.errno]
    own = [text for each in chain if (text := str(each)) and not isinstance(each, asyncio.CancelledError)]
    return next(iter([*system, *own]), type(error).__name__)


def _of_system(error: OSError) -> str:
    """Return the system's message for an error number, which asyncio replaces.  TLS and DNS have their own messages."""
    has_own = isinstance(error, ssl.SSLError | socket.gaierror)
    return str(error.strerror) if has_own else os.strerror(error.errno or 0)


def _chain(error: BaseException | None) -> Iterator[BaseException]:
    """Yield an error, and the errors that led to it."""
    seen = set[int]()
    while error is not None and id(error) not in seen:
        seen.add(id(error))
        yield error
        error = error.__cause__ or error.__context__
