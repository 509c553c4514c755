"""Find connections that break the rules of docs/semantics.md, with made-up clusters and real packets.

`specification` computes the expected outcomes of a connection.  `strategies` make up clusters, and the connections to
try on them.  `subjects` are on trial: rules in a kernel, or a proxy as a process.  `trials` try connections, in the
network namespaces of `lab` and with the API server of `apiserver`.  `reports` print the results.
"""
