"""A small client of containerd's CRI: messages are encoded by hand and sent by curl."""

import re
import subprocess

SOCKET = "/run/containerd/containerd.sock"


class Failed(Exception):
    """A call failed; the text is the runtime's."""


def varint(number):
    out = bytearray()
    while number > 127:
        out.append(number & 127 | 128)
        number >>= 7
    return bytes(out + bytes([number]))


def field(number, value):
    """One field: an int, a str, or a message that is encoded already."""
    if isinstance(value, int):
        return varint(number << 3) + varint(value)
    data = value.encode() if isinstance(value, str) else value
    return varint(number << 3 | 2) + varint(len(data)) + data


def decode(data):
    """The fields of a message: number -> list of ints and bytes."""
    fields, place = {}, 0

    def read():
        nonlocal place
        value = shift = 0
        while True:
            byte = data[place]
            place += 1
            value |= (byte & 127) << shift
            shift += 7
            if byte < 128:
                return value

    while place < len(data):
        key = read()
        if key & 7 == 0:
            value = read()
        elif key & 7 == 2:
            length = read()
            value = data[place : place + length]
            place += length
        else:
            raise Failed(f"wire type {key & 7}")
        fields.setdefault(key >> 3, []).append(value)
    return fields


def call(method, message=b"", seconds=60):
    command = ["curl", "-sS", "--max-time", str(seconds), "--http2-prior-knowledge", "--unix-socket", SOCKET, "-X", "POST"]
    command += ["-H", "content-type: application/grpc", "-H", "te: trailers", "--data-binary", "@-", "-D", "/dev/stderr"]
    body = b"\0" + len(message).to_bytes(4, "big") + message
    run = subprocess.run(command + [f"http://localhost/runtime.v1.{method}"], input=body, capture_output=True)
    heads = run.stderr.decode(errors="replace")
    status = re.findall(r"(?i)^grpc-status: *(\d+)", heads, re.M)
    if run.returncode != 0 or status[-1:] != ["0"]:
        raise Failed(f"{method}: {' '.join(heads.split())[-300:]}")
    return decode(run.stdout[5:])


# NamespaceOption: network of the node, processes of the container.
NAMESPACES = field(1, 2) + field(2, 1)


def sandbox(name):
    meta = field(1, name) + field(2, f"uid-{name}") + field(3, "load") + field(4, 0)
    linux = field(1, "/rig-pods") + field(2, field(1, NAMESPACES))
    return field(1, meta) + field(3, f"/var/log/pods/load_{name}_uid-{name}") + field(8, linux)


def pull(image):
    return call("ImageService/PullImage", field(1, field(1, image)), 120)[1][0].decode()


def remove_image(image):
    call("ImageService/RemoveImage", field(1, field(1, image)))


def images():
    """Ids of all images."""
    return [decode(image)[1][0].decode() for image in call("ImageService/ListImages").get(1, [])]


def run(name, image, command):
    """Starts a pod with one container; returns the ids of both."""
    config = sandbox(name)
    pod = call("RuntimeService/RunPodSandbox", field(1, config))[1][0].decode()
    meta, linux = field(1, "main"), field(2, field(3, NAMESPACES))
    wanted = field(1, meta) + field(2, field(1, image)) + b"".join(field(3, word) for word in command)
    wanted += field(11, "main.log") + field(15, linux)
    try:
        made = call("RuntimeService/CreateContainer", field(1, pod) + field(2, wanted) + field(3, config))
        container = made[1][0].decode()
        call("RuntimeService/StartContainer", field(1, container))
    except Failed:
        remove(pod)
        raise
    return pod, container


def state(container):
    """(state, exit code): 0 created, 1 running, 2 exited."""
    status = decode(call("RuntimeService/ContainerStatus", field(1, container))[1][0])
    return status.get(3, [0])[0], status.get(7, [0])[0]


def stop(pod):
    call("RuntimeService/StopPodSandbox", field(1, pod))


def remove(pod):
    stop(pod)
    call("RuntimeService/RemovePodSandbox", field(1, pod))


def containers():
    """(container, pod, image id) of all containers."""
    found = []
    for entry in call("RuntimeService/ListContainers").get(1, []):
        entry = decode(entry)
        found.append((entry[1][0].decode(), entry[2][0].decode(), entry[5][0].decode()))
    return found


def pods():
    return [decode(pod)[1][0].decode() for pod in call("RuntimeService/ListPodSandbox").get(1, [])]
