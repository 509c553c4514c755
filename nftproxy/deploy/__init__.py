"""The manifests that run the agent on a cluster, from options and a distribution to text.  Pure."""
