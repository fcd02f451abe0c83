#!/usr/bin/env python3
"""Makes images of this machine's own files as OCI layouts, for `fits.sh`.

fits_images.py DIRECTORY REPOSITORIES VERSIONS STRANGERS KIB

REPOSITORIES repositories have VERSIONS + 1 versions each, with layers of about KIB: programs, text, archives or many
small files on one of two bases. A version has two thirds of the files of the one before it, and every third has a new
base. STRANGERS images are of repositories of their own. Prints a line for each: its name, and `here` for the first
version of a repository, else `new`.
"""

import glob
import gzip
import hashlib
import io
import json
import os
import random
import sys
import tarfile

KINDS = ["programs", "text", "archives", "small"]


def files(*patterns):
    found = [path for pattern in patterns for path in sorted(glob.glob(pattern, recursive=True))]
    found = [path for path in found if os.path.isfile(path) and not os.path.islink(path)]
    return [(path, os.path.getsize(path)) for path in found]


PROGRAMS = [file for file in files("/usr/bin/*", "/usr/lib/*/lib*.so*") if 20_000 < file[1] < 3_000_000]
SOURCES = files("/usr/lib/python3*/**/*.py", "/usr/share/perl/**/*.p[lm]", "/usr/include/**/*.h")
TEXT = [file for file in SOURCES if 16_000 < file[1] < 1_000_000]
SMALL = [file for file in SOURCES if file[1] < 4000] + files("/usr/share/zoneinfo/**/*")


def chosen(pool, room, chance):
    """Files of about `room` bytes."""
    out = {}
    while room > 0:
        path, size = chance.choice(pool)
        if path not in out:
            out[path] = size
            room -= max(size, 512)
        elif len(out) > len(pool) // 2:
            break
    return out


def next_version(old, pool, chance):
    kept = {path: size for path, size in old.items() if chance.random() < 0.67}
    return {**kept, **chosen(pool, sum(old.values()) - sum(kept.values()), chance)}


def pool_of(kind):
    return {"programs": PROGRAMS, "archives": PROGRAMS, "text": TEXT, "small": SMALL}[kind]


def room_of(kind, kib):
    """Bytes of the files of a layer: small files take some time to unpack."""
    return kib * 1024 // (6 if kind == "small" else 1)


def layer(kind, paths):
    """Returns a layer as its blob and the digest of its tar."""
    raw = io.BytesIO()
    with tarfile.open(fileobj=raw, mode="w", format=tarfile.PAX_FORMAT) as tar:
        unique = tarfile.TarInfo("id")
        unique.size = 16
        tar.addfile(unique, io.BytesIO(os.urandom(16)))
        for path in sorted(paths):
            with open(path, "rb") as file:
                content = file.read()
            if kind == "archives":
                content = gzip.compress(content, 1)
            info = tarfile.TarInfo(f"{kind}{path}")
            info.size, info.mtime = len(content), 1_700_000_000
            tar.addfile(info, io.BytesIO(content))
    return gzip.compress(raw.getvalue(), 6), hashlib.sha256(raw.getvalue()).hexdigest()


class Layout:
    """An OCI layout with all images: equal layers are there once."""

    def __init__(self, directory):
        self.directory = directory
        self.manifests = []
        os.makedirs(f"{directory}/blobs/sha256")

    def blob(self, content, media_type):
        digest = hashlib.sha256(content).hexdigest()
        with open(f"{self.directory}/blobs/sha256/{digest}", "wb") as file:
            file.write(content)
        return {"mediaType": f"application/vnd.oci.image.{media_type}", "digest": f"sha256:{digest}", "size": len(content)}

    def image(self, name, layers):
        rootfs = {"type": "layers", "diff_ids": [f"sha256:{diff_id}" for _, diff_id in layers]}
        config = {"architecture": "amd64", "os": "linux", "config": {}, "rootfs": rootfs}
        manifest = {
            "schemaVersion": 2, "mediaType": "application/vnd.oci.image.manifest.v1+json",
            "config": self.blob(json.dumps(config).encode(), "config.v1+json"),
            "layers": [self.blob(blob, "layer.v1.tar+gzip") for blob, _ in layers],
        }
        descriptor = self.blob(json.dumps(manifest).encode(), "manifest.v1+json")
        self.manifests.append({**descriptor, "annotations": {"org.opencontainers.image.ref.name": name}})

    def write(self):
        with open(f"{self.directory}/oci-layout", "w", encoding="utf-8") as file:
            json.dump({"imageLayoutVersion": "1.0.0"}, file)
        with open(f"{self.directory}/index.json", "w", encoding="utf-8") as file:
            json.dump({"schemaVersion": 2, "manifests": self.manifests}, file)


def main():
    directory = sys.argv[1]
    repositories, versions, strangers, kib = (int(argument) for argument in sys.argv[2:])
    layout = Layout(directory)
    chance = random.Random(7)
    bases = [[], []]
    for base, kind in zip(bases, ["programs", "text"]):
        paths = chosen(pool_of(kind), room_of(kind, 2 * kib), chance)
        for _ in range(2):
            base.append(layer(kind, paths))
            paths = next_version(paths, pool_of(kind), chance)
    for number in range(repositories):
        kind = KINDS[number % 4]
        room = room_of(kind, kib) * chance.randrange(50, 200) // 100
        paths = chosen(pool_of(kind), room, chance)
        for version in range(versions + 1):
            base = bases[number % 2][version % 3 // 2]
            layout.image(f"repository-{number}:{version}", [base, layer(kind, paths)])
            print(f"repository-{number}:{version}", "new" if version else "here")
            paths = next_version(paths, pool_of(kind), chance)
    for number in range(strangers):
        kind = KINDS[number % 4]
        paths = chosen(pool_of(kind), room_of(kind, kib), chance)
        layout.image(f"stranger-{number}:1", [bases[number % 2][0], layer(kind, paths)])
        print(f"stranger-{number}:1", "new")
    layout.write()


main()
