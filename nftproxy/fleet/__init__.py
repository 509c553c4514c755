"""The whole cluster: asks the agents of many nodes, and merges their answers."""
