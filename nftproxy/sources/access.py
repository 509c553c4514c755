"""Who we are to a cluster's API, and the addresses that it may be reached at.

A cold node can't reach the API by its ClusterIP, since that is for this very proxy to serve; so there may be more
addresses.  One is used until it fails, then the next, for all resources alike.  The credentials are read anew for each
request, so that a token that has been rotated is never used.
"""

from __future__ import annotations

import functools
import logging
from collections.abc import Sequence
from pathlib import Path

import msgspec

from nftproxy.model.codes import Code
from nftproxy.model.errors import BadInput
from nftproxy.sources.credentials import Credentials, other_address, read_credentials
from nftproxy.sources.plugins import Plugins

log = logging.getLogger(__name__)


class Access:
    """Credentials and addresses of one cluster, for all connections to it."""

    def __init__(self, kubeconfig: str, api_servers: Sequence[str], account: Path, plugins: Plugins) -> None:
        """Read the credentials once.

        Args:
            kubeconfig: the path of one; "" for the service account of a pod.
            api_servers: URLs to try beside the one in the kubeconfig or the environment.
            account: where a pod's service account is.
            plugins: what runs the program that a kubeconfig may name.

        Raises:
            BadInput: there are no credentials, or they can't be read, or a URL is none.
        """
        self._read = functools.partial(read_credentials, kubeconfig, account)
        self._credentials = self._read()
        self._fault = ""
        self._plugins = plugins
        self._others = [other_address(text, self._credentials.server) for text in api_servers]
        self._failed = 0

    @property
    def address(self) -> str:
        """The URL to use now."""
        addresses = [self._credentials.server, *self._others]
        return addresses[self._failed % len(addresses)]

    def failed(self, address: str) -> None:
        """Go on to the next address, as this one doesn't work; each connection that used it says so, once counts."""
        if address == self.address:
            self._failed += 1

    async def identity(self) -> Credentials:
        """The credentials with what the plugin gives, if there is one.

        Raises:
            ConnectionError: the plugin fails.
        """
        credentials = self._current()
        if credentials.plugin is None:
            return credentials
        given = await self._plugins.ask(credentials.plugin, credentials.server, credentials.authority)
        return msgspec.structs.replace(
            credentials, plugin=None, token=given.token, certificate=given.certificate, key=given.key
        )

    def denied(self, credentials: Credentials) -> None:
        """Run the plugin anew before the next request, if these are from it: the API doesn't know who has them."""
        if self._plugins.gave(credentials.token, credentials.certificate):
            self._plugins.forget()

    def _current(self) -> Credentials:
        """The credentials as the files have them now, or if these can't be read, as they last were."""
        try:
            self._credentials, self._fault = self._read(), ""
        except BadInput as error:
            if self._fault != str(error):
                log.warning(
                    "keeping the current credentials: %(reason)s",
                    {"reason": error},
                    extra={"code": Code.CREDENTIALS_KEPT},
                )
            self._fault = str(error)
        return self._credentials
