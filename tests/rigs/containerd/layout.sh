# Builds an OCI layout with only a shell, as an archive for `ctr images import`. Source it after env.sh.
BB=$(command -v busybox) || die "busybox-static is not installed"
L=$LAYOUT; rm -rf "$L"; mkdir -p "$L/blobs/sha256" "$L/w"
put() { local d; d=$(sha256sum <"$1" | cut -d' ' -f1); mv "$1" "$L/blobs/sha256/$d"; echo "$d"; }     # file -> digest
size() { stat -c %s "$L/blobs/sha256/$1"; }
need tar gzip sha256sum openssl
# noise SEED BYTES: always the same bytes, which do not compress
noise() { head -c "$2" /dev/zero | openssl enc -aes-128-ctr -K "$(printf %032x "$1")" -iv "$(printf %032x 0)"; }
# layer NAME DIR [gzip level]: sets ${NAME}_d (digest) and ${NAME}_i (diff id)
layer() {
  local t=$L/w/$1.tar d i
  tar --sort=name --mtime=@1700000000 --owner=0 --group=0 --numeric-owner --format=gnu -C "$2" -cf "$t" .
  i=$(sha256sum <"$t" | cut -d' ' -f1); gzip -n "-${3:-1}" <"$t" >"$t.gz"; rm "$t"; d=$(put "$t.gz")
  printf -v "$1_d" %s "$d"; printf -v "$1_i" %s "$i"
}
# config ARCH CMD-JSON LAYER...  -> digest of a config blob
config() {
  local arch=$1 cmd=$2 l ids=; shift 2
  for l; do local v=${l}_i; ids+="${ids:+,}\"sha256:${!v}\""; done
  printf '{"architecture":"%s","os":"linux","created":"2024-01-01T00:00:00Z","config":{"Cmd":%s,"Env":["PATH=/bin"]%s},"rootfs":{"type":"layers","diff_ids":[%s]}}' \
    "$arch" "$cmd" "${EXTRA:-}" "$ids" >"$L/w/c"; put "$L/w/c"
}
# manifest CONFIG LAYER... -> digest
manifest() {
  local c=$1 l ls=; shift
  for l; do local v=${l}_d; ls+="${ls:+,}{\"mediaType\":\"application/vnd.oci.image.layer.v1.tar+gzip\",\"digest\":\"sha256:${!v}\",\"size\":$(size "${!v}")}"; done
  printf '{"schemaVersion":2,"mediaType":"application/vnd.oci.image.manifest.v1+json","config":{"mediaType":"application/vnd.oci.image.config.v1+json","digest":"sha256:%s","size":%s},"layers":[%s]}' \
    "$c" "$(size "$c")" "$ls" >"$L/w/m"; put "$L/w/m"
}
MT=application/vnd.oci.image.manifest.v1+json; IT=application/vnd.oci.image.index.v1+json
INDEX=
tag() { INDEX+="${INDEX:+,}{\"mediaType\":\"$3\",\"digest\":\"sha256:$2\",\"size\":$(size "$2"),\"annotations\":{\"io.containerd.image.name\":\"reg.local/$1\",\"org.opencontainers.image.ref.name\":\"${1#*:}\"}}"; }
# pack -> $RC/images.tar with all tagged images, in this order
pack() {
  printf '{"imageLayoutVersion":"1.0.0"}' >"$L/oci-layout"
  printf '{"schemaVersion":2,"mediaType":"%s","manifests":[%s]}' $IT "$INDEX" >"$L/index.json"
  rm -rf "$L/w"
  tar -C "$L" -cf "$RC/images.tar" oci-layout index.json blobs
}
