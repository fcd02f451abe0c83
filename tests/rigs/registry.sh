# Sourced by rigs that need a real registry. Each runs in a mount namespace of its own: the cache of the tools is
# /var/lib/containers/cache, which `serve_registry` replaces.
if [ "${OWN_NAMESPACE:-}" != yes ]; then
    exec env OWN_NAMESPACE=yes unshare --mount --propagation private "$0" "$@"
fi

# serve_registry DIRECTORY: serves $registry on the loopback device, with its files in DIRECTORY, until the script ends.
# A registry that an earlier script left there has its address again.
serve_registry() {
    mkdir -p "$1/blobs" "$1/lib" /var/lib/containers
    mount --bind "$1/lib" /var/lib/containers
    if [ ! -e "$1/registry.yml" ]; then
        registry=127.0.0.1:$(python3 -c 'import socket; s = socket.socket(); s.bind(("127.0.0.1", 0)); print(s.getsockname()[1])')
        printf 'version: 0.1\nstorage: {filesystem: {rootdirectory: %s}}\nhttp: {addr: "%s"}\n' "$1/blobs" "$registry" \
            >"$1/registry.yml"
        printf '[[registry]]\nlocation = "%s"\ninsecure = true\n' "$registry" >"$1/registries.conf"
    fi
    registry=$(sed -n 's/.*addr: "\(.*\)".*/\1/p' "$1/registry.yml")
    docker-registry serve "$1/registry.yml" >"$1/registry.log" 2>&1 &
    trap 'kill %1; umount /var/lib/containers || umount --lazy /var/lib/containers' EXIT
    export CONTAINERS_REGISTRIES_CONF=$1/registries.conf
    for _ in $(seq 600); do curl -fs "http://$registry/v2/" >/dev/null && break; sleep 0.1; done
}

# configure_store FILE GRAPHROOT RUNROOT
configure_store() {
    printf '[storage]\ndriver = "overlay"\ngraphroot = "%s"\nrunroot = "%s"\n' "$2" "$3" >"$1"
}

# forget_origins DIRECTORY: from here on the tools have the cache of another machine.
forget_origins() {
    umount /var/lib/containers
    rm -rf "$1/lib"
    mkdir "$1/lib"
    mount --bind "$1/lib" /var/lib/containers
}
