"""Read KubeProxyConfiguration and kube-proxy's flags."""
