"""What only nftproxy has beside Kubernetes' API: each folder is a feature, whole."""
