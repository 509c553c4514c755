"""The credentials for a cluster's API, and the addresses at which the API can be reached.

A cold node can't reach the API by its ClusterIP, which this very proxy has to serve.  So there may be more addresses.
An address is used until it fails, and then the next, for all resources alike.  The credentials are read anew for each
request, so that a token that has been rotated is never used.
"""

from __future__ import annotations

import os
from collections.abc import Callable, Sequence

import msgspec

from nftproxy.logs import warn
from nftproxy.model.codes import Code
from nftproxy.model.errors import BadInput
from nftproxy.sources.credentials import Credentials, other_address
from nftproxy.sources.plugins import PluginRunner
from nftproxy.sources.proxies import Proxy, proxy_for


class Access:
    """The credentials and addresses of a cluster, for all connections to it."""

    def __init__(self, read: Callable[[], Credentials], plugins: PluginRunner, api_servers: Sequence[str] = ()) -> None:
        """Read the credentials once.

        Args:
            read: reads the credentials, and raises BadInput if it can't.
            api_servers: URLs to try beside the URL in the kubeconfig or the environment.
            plugins: the runner of the program that a kubeconfig may name.

        Raises:
            BadInput: there are no credentials, or they can't be read, or a URL is invalid.
        """
        self._read = read
        self._credentials = self._read()
        self._fault = ""
        self._plugins = plugins
        self._others = [other_address(text, self._credentials.server) for text in api_servers]
        self._failed = 0
        self.proxy(self.address)  # raises BadInput now, instead of an error for each request

    @property
    def addresses(self) -> list[str]:
        """All URLs: the URL in the credentials, and the additional URLs."""
        return [self._credentials.server, *self._others]

    @property
    def address(self) -> str:
        """The URL to use now."""
        addresses = self.addresses
        return addresses[self._failed % len(addresses)]

    def proxy(self, address: str) -> Proxy | None:
        """Return the proxy on the way to an address, None without one.

        Raises:
            BadInput: the environment's or the kubeconfig's URL of a proxy is invalid.
        """
        return proxy_for(address, self._credentials.proxy_url, os.environ)

    @property
    def way(self) -> str:
        """The URL to use now, with the proxy on the way."""
        proxy = self.proxy(self.address)
        return f"{self.address} through {proxy}" if proxy else self.address

    def fail_over(self, address: str) -> None:
        """Switch to the next address if `address` is still in use.  Several connections may report the same failure."""
        if address == self.address:
            self._failed += 1

    async def credentials(self) -> Credentials:
        """Return the credentials, with those of the plugin if there is one.

        Raises:
            ConnectionError: the plugin fails.
        """
        credentials = self.read()
        if credentials.plugin is None:
            return credentials
        given = await self._plugins.credentials(credentials.plugin)
        return msgspec.structs.replace(
            credentials,
            plugin=None,
            token=given.token,
            certificate=given.certificate,
            key=given.key,
            program=credentials.plugin.command,
        )

    def discard(self, credentials: Credentials) -> None:
        """Have the plugin run again before the next request, if it printed these credentials: the API denied them."""
        if self._plugins.has_printed(credentials.token, credentials.certificate):
            self._plugins.invalidate()

    def fault(self) -> str:
        """Return why the credentials can't be read at present, "" if they can.  The current credentials stay."""
        try:
            self._read()
        except BadInput as error:
            return str(error)
        return ""

    def read(self) -> Credentials:
        """Read the credentials from the files.  If the files can't be read, return the last credentials."""
        try:
            self._credentials, self._fault = self._read(), ""
        except BadInput as error:
            if self._fault != str(error):
                warn(Code.CREDENTIALS_KEPT, "keeping the current credentials: %(reason)s", reason=error)
            self._fault = str(error)
        return self._credentials
