"""Speaks to a container runtime as a kubelet does: the Container Runtime Interface, runtime.v1, over gRPC.

The messages have the fields that are used here, with their numbers in
k8s.io/cri-api/pkg/apis/runtime/v1/api.proto.  A runtime skips missing fields.
"""

from __future__ import annotations

from pathlib import Path
from typing import Any

import grpc
from google.protobuf import descriptor_pb2, descriptor_pool, message_factory

PACKAGE = "runtime.v1"

NODE_NAMESPACE, CONTAINER_NAMESPACE, POD_NAMESPACE = 2, 1, 0
"""enum NamespaceMode."""
RUNTIME_DEFAULT = 0
"""enum SecurityProfile.ProfileType."""
EXITED = 2
"""The value of the enum ContainerState."""

MESSAGES = {
    "Int64Value": "value:int64=1",
    "KeyValue": "key:string=1 value:string=2",
    "NamespaceOption": "network:int32=1 pid:int32=2 ipc:int32=3",
    "SecurityProfile": "profile_type:int32=1",
    "LinuxSandboxSecurityContext": "namespace_options:NamespaceOption=1 privileged:bool=6 seccomp:SecurityProfile=9",
    "LinuxPodSandboxConfig": "cgroup_parent:string=1 security_context:LinuxSandboxSecurityContext=2",
    "PodSandboxMetadata": "name:string=1 uid:string=2 namespace:string=3",
    "PodSandboxConfig": "metadata:PodSandboxMetadata=1 log_directory:string=3 linux:LinuxPodSandboxConfig=8",
    "RunPodSandboxRequest": "config:PodSandboxConfig=1",
    "RunPodSandboxResponse": "pod_sandbox_id:string=1",
    "StopPodSandboxRequest": "pod_sandbox_id:string=1",
    "StopPodSandboxResponse": "",
    "ImageSpec": "image:string=1",
    "Mount": "container_path:string=1 host_path:string=2 readonly:bool=3",
    "ContainerMetadata": "name:string=1 attempt:uint32=2",
    "Capability": "add_capabilities:string*=1 drop_capabilities:string*=2",
    "LinuxContainerResources": "cpu_shares:int64=3 memory_limit_in_bytes:int64=4 oom_score_adj:int64=5",
    "LinuxContainerSecurityContext": (
        "capabilities:Capability=1 privileged:bool=2 namespace_options:NamespaceOption=3 run_as_user:Int64Value=5"
        " readonly_rootfs:bool=7 no_new_privs:bool=11 run_as_group:Int64Value=12 masked_paths:string*=13"
        " readonly_paths:string*=14 seccomp:SecurityProfile=15"
    ),
    "LinuxContainerConfig": "resources:LinuxContainerResources=1 security_context:LinuxContainerSecurityContext=2",
    "ContainerConfig": (
        "metadata:ContainerMetadata=1 image:ImageSpec=2 command:string*=3 args:string*=4 envs:KeyValue*=6"
        " mounts:Mount*=7 log_path:string=11 linux:LinuxContainerConfig=15"
    ),
    "CreateContainerRequest": "pod_sandbox_id:string=1 config:ContainerConfig=2 sandbox_config:PodSandboxConfig=3",
    "CreateContainerResponse": "container_id:string=1",
    "StartContainerRequest": "container_id:string=1",
    "StartContainerResponse": "",
    "StopContainerRequest": "container_id:string=1 timeout:int64=2",
    "StopContainerResponse": "",
    "ContainerStatusRequest": "container_id:string=1",
    "ContainerStatus": "id:string=1 state:int32=3 exit_code:int32=7 reason:string=10 message:string=11",
    "ContainerStatusResponse": "status:ContainerStatus=1",
    "ExecSyncRequest": "container_id:string=1 cmd:string*=2 timeout:int64=3",
    "ExecSyncResponse": "stdout:bytes=1 stderr:bytes=2 exit_code:int32=3",
    "VersionRequest": "version:string=1",
    "VersionResponse": "runtime_name:string=2 runtime_version:string=3",
}
"""Fields as `name:type=number`, with a star after the type of a repeated field."""

_Field = descriptor_pb2.FieldDescriptorProto
_SCALARS = {
    "string": _Field.TYPE_STRING,
    "bytes": _Field.TYPE_BYTES,
    "bool": _Field.TYPE_BOOL,
    "int32": _Field.TYPE_INT32,
    "int64": _Field.TYPE_INT64,
    "uint32": _Field.TYPE_UINT32,
}


def _described() -> descriptor_pool.DescriptorPool:
    file = descriptor_pb2.FileDescriptorProto(name="cri.proto", package=PACKAGE, syntax="proto3")
    for name, fields in MESSAGES.items():
        message = file.message_type.add(name=name)
        for text in fields.split():
            field, _, rest = text.partition(":")
            kind, _, number = rest.partition("=")
            label = _Field.LABEL_REPEATED if kind.endswith("*") else _Field.LABEL_OPTIONAL
            made = message.field.add(name=field, number=int(number), label=label)
            if (scalar := _SCALARS.get(kind.rstrip("*"))) is not None:
                made.type = scalar
            else:
                made.type, made.type_name = _Field.TYPE_MESSAGE, f".{PACKAGE}.{kind.rstrip('*')}"
    pool = descriptor_pool.DescriptorPool()
    pool.Add(file)
    return pool


_POOL = _described()


class Runtime:
    """A container runtime's RuntimeService."""

    def __init__(self, socket: Path) -> None:
        self._channel = grpc.insecure_channel(f"unix://{socket}")

    def call(self, method: str, *, seconds: float = 60.0, **fields: Any) -> Any:
        """Return the runtime's answer to a method with these fields in the request.

        Raises:
            grpc.RpcError: the runtime refuses, or gives no answer for so long.
        """
        request, response = (_message(f"{method}{suffix}") for suffix in ("Request", "Response"))
        ask = self._channel.unary_unary(
            f"/{PACKAGE}.RuntimeService/{method}",
            request_serializer=request.SerializeToString,
            response_deserializer=response.FromString,
        )
        return ask(request(**fields), timeout=seconds)

    def close(self) -> None:
        """Close the connection."""
        self._channel.close()


def _message(name: str) -> Any:
    return message_factory.GetMessageClass(_POOL.FindMessageTypeByName(f"{PACKAGE}.{name}"))
