"""Writes records as a user can, as many as are read or a little more. usage: KIND STORE RUNROOT"""
import json, os, sqlite3, sys

kind, store, runroot = sys.argv[1:4]
here = os.path.join
for directory in ["overlay/l", "overlay-layers", "overlay-images", "overlay-containers", "libpod"]:
    os.makedirs(here(store, directory))
os.makedirs(here(runroot, "overlay-layers"), exist_ok=True)
for name in ["layers", "images", "containers"]:
    open(here(store, f"overlay-{name}/{name}.json"), "w").write("[]")
    open(here(store, f"overlay-{name}/{name}.lock"), "w")


def records(name, text):
    open(here(store, f"overlay-{name}/{name}.json"), "w").write("[" + text + "]")


def many(count, form):
    return ",".join(form % number for number in range(count))


def artifacts(index, **blobs):
    os.makedirs(here(store, "artifacts/blobs/sha256"))
    open(here(store, "artifacts/oci-layout"), "w").write('{"imageLayoutVersion":"1.0.0"}')
    open(here(store, "artifacts/index.json"), "w").write(index)
    for hex, text in blobs.items():
        open(here(store, "artifacts/blobs/sha256", hex.strip("_")), "w").write(text)


digest = "sha256:%064x"
if kind == "repeated-names":
    names = ",".join(['"localhost/a:1"'] * 300_000)
    records("images", '{"id":"a","names":[%s]},{"id":"b","names":[%s]}' % (names, names))
elif kind == "names-of-two":
    names = many(4000, '"n%d"')
    records("images", ",".join('{"id":"%d","names":[%s]}' % (number, names) for number in range(200)))
elif kind == "layers":
    records("layers", many(150_000, '{"id":"%x","parent":"x"}'))
elif kind == "equal-ids":
    records("layers", ",".join(['{"id":"a"}'] * 150_000))
elif kind == "chain":
    records("layers", ",".join('{"id":"%x","parent":"%x"}' % (number, number + 1) for number in range(900)) + ',{"id":"%x"}' % 900)
    records("images", many(3000, '{"id":"i%d","layer":"0"}'))
elif kind == "images":
    records("images", many(40_000, '{"id":"%d","layer":"x"}'))
elif kind == "containers":
    records("containers", many(50_000, '{"id":"%d","image":"localhost/x","layer":"x"}'))
elif kind == "lists":
    lists = many(30, '{"id":"%d","digest":"sha256:ab","big-data-names":["instances.json","manifest"]}')
    records("images", lists)
    os.makedirs(here(store, "overlay-images/0"))
    manifest = here(store, "overlay-images/0/manifest")
    open(manifest, "w").write('{"manifests":[%s]}' % many(40_000, '{"digest":"' + digest + '"}'))
    for number in range(1, 30):
        os.makedirs(here(store, f"overlay-images/{number}"))
        os.link(manifest, here(store, f"overlay-images/{number}/manifest"))
elif kind == "large-file":
    with open(here(store, "overlay-images/images.json"), "w") as file:
        file.truncate(255 << 20)
elif kind == "lower":
    os.makedirs(here(store, "overlay/" + "0" * 64))
    lower = here(store, "overlay/" + "0" * 64, "lower")
    open(lower, "w").write(":".join("%x" % number for number in range(10_000)))
    for number in range(1, 500):
        os.makedirs(here(store, "overlay/%064x" % number))
        os.link(lower, here(store, "overlay/%064x/lower" % number))
    os.symlink("../x/diff", here(store, "overlay/l", "A" * 26))
elif kind == "directories":
    for number in range(200):
        os.makedirs(here(store, f"overlay/{number}"))
    for number in range(200_000):
        os.symlink("x", here(store, "overlay/l", str(number)))
elif kind == "mountpoints":
    open(here(runroot, "overlay-layers/mountpoints.json"), "w").write("[" + ",".join(['{"id":"a","path":"/x/merged","count":1}'] * 300_000) + "]")
elif kind == "sqlite":
    database = sqlite3.connect(here(store, "db.sql"))
    database.executescript("CREATE TABLE ContainerConfig(ID TEXT PRIMARY KEY NOT NULL, Name TEXT, JSON TEXT); CREATE TABLE ContainerState(ID TEXT PRIMARY KEY NOT NULL, State INTEGER NOT NULL); CREATE TABLE VolumeConfig(Name TEXT PRIMARY KEY NOT NULL, JSON TEXT);")
    database.executemany("INSERT INTO ContainerConfig VALUES(?, ?, ?)", ((str(n), "c", '{"rootfsImageID":"localhost/x"}') for n in range(50_000)))
    database.commit()
elif kind == "artifact-index":
    artifacts('{"manifests":[%s]}' % ",".join(["1"] * 1_000_000))
elif kind == "artifacts":
    rows = many(400, '{"digest":"' + digest + '"}')
    needs = many(5000, '{"digest":"' + digest + '"}')
    blobs = {"_%064x" % number: '{"layers":[],"manifests":[{"digest":"%s"}]}' % (digest % 9999) for number in range(400)}
    artifacts('{"manifests":[%s]}' % rows, **blobs, **{"_%064x" % 9999: '{"layers":[%s]}' % needs})
elif kind == "configuration":
    directory = "/home/alice/.config/containers/storage.conf.d"
    os.makedirs(directory)
    text = '[storage.options]\nadditionalimagestores = [%s]\n' % ",".join(['"/a"'] * 200_000)
    for number in range(40):
        open(here(directory, f"{number}.conf"), "w").write(text)
elif kind == "configuration-types":
    directory = "/home/alice/.config/containers"
    os.makedirs(directory)
    open(here(directory, "storage.conf"), "w").write('[storage.options]\nadditionalimagestores = [\n%s]\n' % ",\n".join(["1"] * 300_000))
else:
    sys.exit(f"unknown kind {kind}")
