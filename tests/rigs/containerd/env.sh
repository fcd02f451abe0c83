# Shared settings and helpers for these scripts. Source it, do not run it.
# Everything is below $RC; the host's containerd is not changed.
# Debian 12 packages used: containerd runc busybox-static curl openssl (plus tar gzip coreutils util-linux).
# Optional, only where a step says so: skopeo, umoci, buildah.
RC=${RC:-/tmp/rc}
ROOT=${ROOT:-$RC/root}        # may be on a separate filesystem
STATE=$RC/state
SOCK=$RC/containerd.sock
CONF=$RC/config.toml
LAYOUT=$RC/layout          # OCI layouts of these scripts
LOG=$RC/containerd.log
PIDFILE=$RC/containerd.pid
NS=k8s.io
CG=rc-$(printf %s "$RC" | tr -c 'a-zA-Z0-9' -)      # cgroup parent of the pods, one per $RC
META=$ROOT/io.containerd.metadata.v1.bolt/meta.db
SNROOT=$ROOT/io.containerd.snapshotter.v1.overlayfs
BLOBS=$ROOT/io.containerd.content.v1.content/blobs/sha256
INGEST=$ROOT/io.containerd.content.v1.content/ingest

die() { echo "rig: $*" >&2; exit 1; }
need() { local c; for c in "$@"; do command -v "$c" >/dev/null || die "missing command: $c"; done; }
C() { ctr -a "$SOCK" -n "$NS" "$@"; }          # ctr in the CRI namespace
CN() { local n=$1; shift; ctr -a "$SOCK" -n "$n" "$@"; }
# as_pulled [REPOSITORY]: labels the targets of all images as a pull does: images that were never pulled are kept. An
# empty argument removes the label.
as_pulled() {
  C images ls | awk 'NR > 1 { print $3 }' | sort -u |
    while read -r digest; do C content label "$digest" containerd.io/distribution.source.reg.local="${1-pulled}" >/dev/null; done
}

# ---- a CRI client from curl and printf: messages are built as hex strings ----
pb_varint() { local n=$1 h=; while ((n > 127)); do h+=$(printf %02x $((n & 127 | 128))); n=$((n >> 7)); done; printf '%s%02x' "$h" "$n"; }
pb_hex()  { printf %s "$1" | od -An -v -tx1 | tr -d ' \n'; }
pb_tag()  { pb_varint $(($1 << 3 | $2)); }
pb_str()  { local h; h=$(pb_hex "$2"); printf '%s%s%s' "$(pb_tag "$1" 2)" "$(pb_varint $((${#h} / 2)))" "$h"; }
pb_msg()  { printf '%s%s%s' "$(pb_tag "$1" 2)" "$(pb_varint $((${#2} / 2)))" "$2"; }
pb_int()  { printf '%s%s' "$(pb_tag "$1" 0)" "$(pb_varint "$2")"; }
# cri METHOD HEX -> response message (raw protobuf) on stdout; exit 1 with the gRPC message on a failure
cri() { grpc "runtime.v1.$1" "${2:-}"; }
# grpc PACKAGE.SERVICE/METHOD HEX [NAMESPACE]
grpc() {
  local m=$1 hex=${2:-} t rc=0; t=$(mktemp -d)
  { printf '\x00'; printf "$(printf '%08x' $((${#hex} / 2)) | sed 's/../\\x&/g')"; printf "$(printf %s "$hex" | sed 's/../\\x&/g')"; } >"$t/req"
  curl -sS --max-time "${CRI_TIMEOUT:-120}" --http2-prior-knowledge --unix-socket "$SOCK" -X POST \
    -H 'content-type: application/grpc' -H 'te: trailers' ${3:+-H "containerd-namespace: $3"} --data-binary @"$t/req" \
    -D "$t/hdr" -o "$t/res" "http://localhost/$m" || rc=1
  # the header dump contains the trailers too
  local st; st=$(tr -d '\r' <"$t/hdr" | sed -n 's/^grpc-status: *//Ip' | tail -1)
  if [ "$rc" != 0 ] || [ "${st:-0}" != 0 ]; then
    echo "grpc $m: grpc-status=${st:-none} $(tr -d '\r' <"$t/hdr" | sed -n 's/^grpc-message: *//Ip' | tail -1)" >&2; rc=1
  else tail -c +6 "$t/res"; fi
  rm -rf "$t"; return $rc
}
cri_remove_image() { cri ImageService/RemoveImage "$(pb_msg 1 "$(pb_str 1 "$1")")" >/dev/null; }
# bytes used on the filesystem that holds the root, and du of the root
fs_used() { local b f z; read -r b f z < <(stat -f -c '%b %f %S' "$ROOT"); echo $(((b - f) * z)); }
