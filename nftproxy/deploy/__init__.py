"""What a cluster needs to run the agent, as manifests: pure, from wishes and a distribution's facts to text."""
