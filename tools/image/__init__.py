"""The container image: built by buildah, started by containerd and runc as a kubelet would start it.

`python -m tools.image` builds examples/deploy/Containerfile, and leaves the image with its bill of materials in
.trees/.  `containerfile` reads the recipe, `build` builds, `cri` speaks to a container runtime, `containerd` starts
such a runtime, and `kubelet` turns a pod's template into requests.
"""
