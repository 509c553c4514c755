"""The process on each node: its loop, health, metrics and servers."""

from nftproxy.sources.import_later import import_later

# For httpx' command line and SOCKS, where they are installed, and for prometheus_client's server: 1.7 MB.
import_later("pygments.lexers", "pygments.util", "socksio", "html")
