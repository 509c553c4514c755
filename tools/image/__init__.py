"""The container image: built by buildah, started by containerd and runc as a kubelet would start it.

`python -m tools.image` builds what examples/deploy/Containerfile says and leaves it, with its bill of materials, in
.trees/.  `containerfile` reads the recipe, `build` builds, `cri` speaks to a container runtime, `containerd` is one,
and `kubelet` turns a pod's template into what the runtime is asked for.
"""
