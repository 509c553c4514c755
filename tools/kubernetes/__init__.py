"""A real Kubernetes cluster on one machine, from release binaries: `python -m tools.kubernetes`, as root.

Each node is a set of namespaces with a containerd, a kubelet and pods of its own.  The control plane and the network
between are another namespace.  All of it ends with this process, and leaves a folder of logs.

layout.py         names and addresses
binaries.py       the folder of release binaries
control_plane.py  etcd, kube-apiserver, and the controllers
images.py         the images of pods, from the Containerfile beside it
node.py, node.sh  a node
cluster.py        all of them, with CoreDNS
deployment.py     puts nftproxy on the nodes
end_to_end.py     runs Kubernetes' end-to-end tests, whose results results.py reads
judging.py        runs `nftproxy conformance` with the real kube-proxy
restarts.py       kubelets and agents restart
"""
