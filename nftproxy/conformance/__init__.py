"""Looking for connections that don't go as docs/semantics.md says, with made-up clusters and real packets.

`oracle` says what must become of a connection, `strategies` make clusters up, `probes` are the connections worth trying
on one, `trial` tries them in a kernel, and `suite` is what `nftproxy conformance` runs.
"""
