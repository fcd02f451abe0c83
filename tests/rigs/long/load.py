#!/usr/bin/python3
"""load.py MINUTES DIR: mixed load on a node that the units of layersweep maintain, and what must hold meanwhile.

Podman and containerd pull, build, run and remove; programs are killed, disks filled, and the clock of layersweep leaps.
- No image of a container disappears, and no layer below it: the record files say so every three seconds.
- Every container reads its own files, and compares their digests, as long as it runs. Stopped ones keep their data.
- Images that are built here or protected stay. Images that are younger than images.min_age stay.
- At the end every image is whole, and layersweep says that nothing leaks.
Writes events.jsonl, samples.jsonl and summary.json below DIR. Exits with 1 if something was lost.
"""

import json
import os
import random
import signal
import subprocess
import sys
import threading
import time

import cri

REGISTRY = "127.0.0.1:5000"
IMAGES = [f"{REGISTRY}/shop/{base}{middle}:{version}" for base in "abcd" for middle in "123" for version in "123"]
KEPT = [f"{REGISTRY}/kept/agent:1", f"{REGISTRY}/kept/pause:1"]
STORE = "/var/lib/containers/storage"
CLOCK = "/run/rig-clock"
FAKETIME = "/usr/lib/x86_64-linux-gnu/faketime/libfaketime.so.1"
# images.min_age, less the time until an image is first seen here.
MIN_AGE = 120 - 5
# images.max_age, likewise.
MAX_AGE = 900 - 10
# Longer than leaks.min_age.
SETTLES = 200
# The exit code that says that a container's files are not what they were.
LOST = 77
CHECK = f"sha256sum -c -s /sums || exit {LOST}"

MINUTES, OUT = float(sys.argv[1]), sys.argv[2]
os.makedirs(OUT, exist_ok=True)
START = time.monotonic()
END = START + MINUTES * 60
random.seed(38)
lock = threading.Lock()
counts, violations = {}, []
# Times at which a person or the load itself removed an image.
removed = []
stop = threading.Event()


def now():
    return time.monotonic() - START


def event(kind, **facts):
    with lock:
        counts[kind] = counts.get(kind, 0) + 1
        with open(f"{OUT}/events.jsonl", "a") as file:
            file.write(json.dumps({"at": round(now(), 1), "event": kind, **facts}) + "\n")


def violation(text):
    with lock:
        violations.append(f"{now():.0f} s: {text}")
    event("violation", text=text)


def run(*words, seconds=120):
    """Runs a command; (exit code, standard output, standard error). -1: no answer within the time."""
    try:
        done = subprocess.run(words, capture_output=True, text=True, errors="replace", timeout=seconds, stdin=subprocess.DEVNULL)
    except subprocess.TimeoutExpired:
        event("timeout", words=words)
        return -1, "", "timeout"
    return done.returncode, done.stdout.strip(), done.stderr.strip()


def podman(*words, seconds=120):
    return run("podman", *words, seconds=seconds)


def busybox(script):
    return ["/bin/busybox", "sh", "-c", script]


def pause(low, high):
    stop.wait(random.uniform(low, high))


class Podman:
    """Podman's part. Each container has a name of its own, which is in `live` or `keepers` while it exists."""

    def __init__(self, mark):
        self.mark, self.live, self.keepers, self.built, self.number = mark, {}, {}, {}, 0

    def name(self, kind):
        self.number += 1
        return f"{kind}-{self.mark}{self.number}"

    def pull(self):
        code, _, _ = podman("pull", "--quiet", random.choice(IMAGES))
        event("pull" if code == 0 else "pull failed")

    def brief(self):
        words = busybox(f"{CHECK}; sleep {random.randint(0, 6)}; {CHECK}")
        name = self.name("brief")
        code, _, error = podman("run", "--rm", "--name", name, "--network=host", random.choice(IMAGES), *words)
        if code != 0:
            podman("rm", "-f", "--time=0", "--ignore", name)
        event("brief" if code == 0 else "brief failed", code=code, error=error[-200:])
        if code == LOST:
            violation("a brief container of podman lost files")

    def begin(self):
        name, image = self.name("live"), random.choice(IMAGES)
        script = f"echo {name} >/data || exit 3; while :; do {CHECK}; grep -qx {name} /data || exit {LOST}; sleep 2; done"
        code, _, error = podman("run", "-d", "--name", name, "--network=host", image, *busybox(script))
        event("begin" if code == 0 else "begin failed", error=error[-200:])
        if code == 0:
            self.live[name] = time.monotonic() + random.uniform(20, 400)
        else:
            podman("rm", "-f", "--time=0", name)

    def end(self, all_of_them=False):
        for name, until in list(self.live.items()):
            if time.monotonic() < until and not all_of_them:
                continue
            _, out, _ = podman("inspect", "--format", "{{.State.Status}} {{.State.ExitCode}}", name)
            if out == f"exited {LOST}":
                violation(f"container {name} of podman lost files")
            code, _, error = podman("rm", "-f", "--time=0", name)
            if code == 0:
                del self.live[name]
            event("end" if code == 0 else "end failed", state=out, error=error[-200:])

    def keep(self):
        """A container that has ended, with data that nothing else has."""
        name = self.name("keeper")
        words = busybox(f"echo {name} >/data && sync && {CHECK}")
        code, _, _ = podman("run", "--name", name, "--network=host", random.choice(IMAGES), *words)
        if code == 0:
            self.keepers[name] = time.monotonic()
            event("keep")
        else:
            podman("rm", "-f", "--time=0", name)
        if len(self.keepers) > 6:
            oldest = min(self.keepers, key=self.keepers.get)
            self.has_kept(oldest)
            if podman("rm", "-f", "--time=0", oldest)[0] == 0:
                del self.keepers[oldest]

    def has_kept(self, name):
        for _ in range(5):
            code, out, error = podman("mount", name)
            if code == 0:
                break
            time.sleep(2)
        else:
            violation(f"container {name} cannot be mounted: {error[-200:]}")
            return
        try:
            with open(f"{out}/data") as file:
                if file.read().strip() != name:
                    violation(f"container {name} has other data")
        except OSError as error:
            violation(f"container {name}: {error}")
        podman("umount", name)
        event("keeper looked at")

    def build(self):
        name = self.name("built")
        context = f"/rig/{name}"
        os.makedirs(context)
        with open(f"{context}/Containerfile", "w") as file:
            file.write(f"FROM {random.choice(IMAGES)}\nRUN [\"/bin/busybox\", \"sha256sum\", \"-c\", \"/sums\"]\nCOPY stamp /stamp\n")
        with open(f"{context}/stamp", "w") as file:
            file.write(name)
        tag = f"localhost/{name}:1"
        code, out, error = podman("build", "--quiet", "--network=host", "--tag", tag, context)
        if code == 0:
            self.built[tag] = out.split()[-1]
        event("build" if code == 0 else "build failed", error=error[-200:])
        run("rm", "-r", context)
        while len(self.built) > 6:
            tag = next(iter(self.built))
            self.has_built(tag)
            del self.built[tag]
            removed.append(now())
            podman("rmi", tag)

    def has_built(self, tag):
        found = record_names()
        if found.get(tag) != self.built[tag]:
            violation(f"{tag} is gone or another image: {found.get(tag)} instead of {self.built[tag]}")

    def rmi(self):
        names = [name for name in record_names() if "/shop/" in name]
        if names:
            name = random.choice(names)
            removed.append(now())
            event("rmi" if podman("rmi", name)[0] == 0 else "rmi refused")

    def exec(self):
        if self.live:
            code, _, error = podman("exec", random.choice(list(self.live)), *busybox(CHECK))
            event("exec" if code == 0 else "exec failed", code=code, error=error[-200:])
            if code == LOST:
                violation("an exec of podman found lost files")

    def killed(self):
        """A pull, a run or a build that is killed."""
        name = self.name("killed")
        image = random.choice(IMAGES)
        words = random.choice([["pull", "--quiet", image], ["run", "--rm", "--name", name, "--network=host", image, *busybox(CHECK)]])
        process = subprocess.Popen(["podman", *words], stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL)
        pause(0.1, 2)
        process.kill()
        process.wait()
        event("killed", what=words[0])
        podman("rm", "-f", "--time=0", "--ignore", name)

    def work(self):
        actions = [(self.pull, 3), (self.brief, 5), (self.begin, 2), (self.keep, 1), (self.build, 1), (self.rmi, 1), (self.exec, 3), (self.killed, 1)]
        while not stop.is_set():
            random.choices([action for action, _ in actions], [weight for _, weight in actions])[0]()
            if len(self.live) > 4:
                self.end(True)
            self.end()
            pause(0.2, 3)


class Containerd:
    """Containerd's part: pods by CRI, as of a kubelet, and containers of another namespace."""

    def __init__(self):
        self.live, self.number = {}, 0

    def image(self):
        image = random.choice(IMAGES)
        cri.pull(image)
        event("cri pull")
        return image

    def begin(self):
        self.number += 1
        name = f"pod{self.number}"
        script = f"echo {name} >/data || exit 3; while :; do {CHECK}; grep -qx {name} /data || exit {LOST}; sleep 2; done"
        pod, container = cri.run(name, self.image(), busybox(script))
        self.live[pod] = (container, time.monotonic() + random.uniform(5, 300))
        event("pod")

    def end(self, all_of_them=False):
        for pod, (container, until) in list(self.live.items()):
            if time.monotonic() < until and not all_of_them:
                continue
            state, code = cri.state(container)
            if (state, code) == (2, LOST):
                violation(f"container {container} of containerd lost files")
            # Some stay as dead ones, which layersweep collects.
            if random.random() < 0.3 and not all_of_them:
                cri.stop(pod)
                event("pod left")
            else:
                cri.remove(pod)
                event("pod removed")
            del self.live[pod]

    def brief(self):
        """A container beside Kubernetes."""
        self.number += 1
        name, image = f"job{self.number}", random.choice(IMAGES)
        code, _, error = run("ctr", "-n", "jobs", "images", "pull", "--plain-http", image)
        event("ctr pull" if code == 0 else "ctr pull failed", error=error[-200:])
        words = busybox(f"{CHECK}; sleep {random.randint(0, 6)}; {CHECK}")
        code, _, error = run("ctr", "-n", "jobs", "run", "--rm", "--net-host", image, name, *words)
        event("job" if code == 0 else "job failed", code=code, error=error[-200:])
        if code == LOST:
            violation("a job of containerd lost files")
        if code != 0:
            run("ctr", "-n", "jobs", "tasks", "rm", "-f", name)
            run("ctr", "-n", "jobs", "containers", "rm", name)
        # CRI does not see these images, so layersweep never deletes them.
        for image in run("ctr", "-n", "jobs", "images", "ls", "-q")[1].split()[3:]:
            run("ctr", "-n", "jobs", "images", "rm", image)

    def killed(self):
        process = subprocess.Popen(
            ["ctr", "-n", "k8s.io", "images", "pull", "--plain-http", random.choice(IMAGES)], stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL
        )
        pause(0.1, 2)
        process.kill()
        process.wait()
        event("killed", what="ctr pull")

    def rmi(self):
        used = {image for _, _, image in cri.containers()}
        found = [image for image in cri.images() if image not in used]
        kept = {image for image in map(self.kept, KEPT) if image}
        found = [image for image in found if image not in kept]
        if found:
            image = random.choice(found)
            removed.append(now())
            cri.remove_image(image)
            event("cri rmi")

    def kept(self, name):
        answer = cri.call("ImageService/ImageStatus", cri.field(1, cri.field(1, name)))
        return cri.decode(answer[1][0])[1][0].decode() if 1 in answer else None

    def work(self):
        actions = [(self.image, 3), (self.begin, 4), (self.brief, 2), (self.killed, 1), (self.rmi, 1)]
        while not stop.is_set():
            try:
                random.choices([action for action, _ in actions], [weight for _, weight in actions])[0]()
                if len(self.live) > 5:
                    self.end(True)
                self.end()
            except cri.Failed as error:
                # The runtime was killed, or its disk is full.
                event("cri failed", error=str(error)[-200:])
                self.live = {pod: facts for pod, facts in self.live.items() if self.is_known(pod)}
            pause(0.2, 3)

    def is_known(self, pod):
        try:
            return pod in cri.pods()
        except cri.Failed:
            return True


def json_file(path):
    for _ in range(20):
        try:
            with open(path) as file:
                return json.load(file) or []
        except FileNotFoundError:
            return []
        except ValueError:
            time.sleep(0.05)
    return []


def record_names():
    """Name -> id of podman's images, from its record file."""
    return {name: image["id"] for image in json_file(f"{STORE}/overlay-images/images.json") for name in image.get("names") or []}


class Watch:
    """Reads the record files: what a container needs is there, and how long each image was."""

    def __init__(self):
        self.first, self.last, self.used, self.lives = {}, {}, {}, []

    def podman(self):
        containers = json_file(f"{STORE}/overlay-containers/containers.json")
        images = {image["id"]: image for image in json_file(f"{STORE}/overlay-images/images.json")}
        layers = {layer["id"]: layer.get("parent") for layer in json_file(f"{STORE}/overlay-layers/layers.json")}
        again = {container["id"] for container in json_file(f"{STORE}/overlay-containers/containers.json")}
        for container in containers:
            if container["id"] not in again:
                continue
            image = container.get("image")
            self.used["podman", image] = now()
            if image and image not in images:
                yield f"the image {image} of the container {container['names']} is gone"
            layer = container["layer"]
            while layer:
                if layer not in layers or not os.path.isdir(f"{STORE}/overlay/{layer}/diff"):
                    yield f"the layer {layer} of the container {container['names']} is gone"
                    break
                layer = layers[layer]
        self.seen("podman", images)

    def containerd(self):
        before = cri.containers()
        images = cri.images()
        snapshots = {}
        for line in run("ctr", "-n", "k8s.io", "snapshots", "ls")[1].splitlines()[1:]:
            words = line.split()
            snapshots[words[0]] = words[1] if len(words) > 2 else None
        again = {container for container, _, _ in cri.containers()}
        if not snapshots:
            return
        for container, _, image in before:
            if container not in again:
                continue
            self.used["containerd", image] = now()
            if image not in images:
                yield f"the image {image} of the container {container} is gone"
            snapshot = container
            while snapshot:
                if snapshot not in snapshots:
                    yield f"the snapshot {snapshot} of the container {container} is gone"
                    break
                snapshot = snapshots[snapshot]
        self.seen("containerd", images)

    def seen(self, store, images):
        for image in images:
            self.first.setdefault((store, image), now())
            self.last[store, image] = now()
        for key in [key for key in self.first if key[0] == store and key[1] not in images]:
            self.lives.append({"store": store, "image": key[1], "from": self.first.pop(key), "to": now(), "used": self.used.get(key)})

    def work(self):
        suspects = {}
        while not stop.wait(3):
            found = []
            for source in (self.podman, self.containerd):
                try:
                    found += source()
                except (cri.Failed, OSError, KeyError):
                    event("not watched")
            # The record files are read one after the other: what is said twice in a row is so.
            for text in found:
                if suspects.get(text, 0) == 1:
                    violation(text)
            suspects = {text: suspects.get(text, 0) + 1 for text in found}


def is_layersweep(pid):
    try:
        with open(f"/proc/{pid}/comm") as file:
            return file.read().strip() == "layersweep"
    except OSError:
        return False


def processes(name_is):
    return [int(pid) for pid in os.listdir("/proc") if pid.isdigit() and name_is(pid)]


class Chaos:
    """Kills, full disks, leaps of the clock, and a person at the keyboard."""

    def kill(self, pids, what):
        for pid in pids:
            try:
                os.kill(pid, signal.SIGKILL)
                event(f"{what} killed")
            except ProcessLookupError:
                pass

    def kill_layersweep(self):
        unit = random.choice(["layersweep-gc", "layersweep-scan"])
        run("systemctl", "start", "--no-block", unit)
        pause(0, 1.5)
        self.kill(processes(is_layersweep), "layersweep")

    def kill_podman(self):
        def is_podman(pid):
            try:
                with open(f"/proc/{pid}/cmdline", "rb") as file:
                    words = file.read().split(b"\0")
            except OSError:
                return False
            return words[0] == b"podman" and words[1] in (b"run", b"pull", b"build", b"rmi", b"rm")

        self.kill(processes(is_podman)[:1], "podman")

    def kill_containerd(self):
        run("systemctl", "kill", "--kill-who=main", "--signal=KILL", "containerd")
        event("containerd killed")

    def leap(self):
        leap = random.choice(["+30d", "-30d", "+3h", "-3h", "+400d", "@1970-01-01 00:00:10"])
        run("systemctl", "start", "layersweep-scan")
        with open(CLOCK, "w") as file:
            file.write(f'LD_PRELOAD={FAKETIME}\nFAKETIME="{leap}"\nFAKETIME_DONT_FAKE_MONOTONIC=1\nFAKETIME_DISABLE_SHM=1\n')
        # A unit sees each leap first: in this container it has another boot id than a person's command.
        run("systemctl", "start", "layersweep-scan")
        event("clock", leap=leap)
        pause(70, 150)
        os.unlink(CLOCK)
        run("systemctl", "start", "layersweep-scan")
        event("clock", leap="none")

    def fill(self):
        directory = random.choice(["/var/lib/layersweep", "/var/lib/containerd"])
        path = f"{directory}/filler"
        event("full", directory=directory)
        free = os.statvfs(directory)
        run("fallocate", "--length", str(max(free.f_bfree * free.f_frsize - (1 << 20), 1 << 20)), path)
        run("dd", "if=/dev/zero", f"of={path}.more", "bs=64k", "status=none")
        pause(20, 80)
        for file in (path, f"{path}.more"):
            if os.path.exists(file):
                os.unlink(file)
        event("no longer full", directory=directory)

    def hold(self):
        with open("/run/layersweep/hold", "w"):
            event("hold")
        pause(60, 90)
        os.unlink("/run/layersweep/hold")

    def person(self):
        words = random.choice([["images"], ["usage"], ["report"], ["sweep"], ["doctor"], ["gc", "--dry-run"], ["gc", "--yes"], ["rm", "-y", random.choice(IMAGES)]])
        if words[0] == "rm":
            removed.append(now())
        code, _, error = run("layersweep", "--no-progress", *words, seconds=300)
        event("by hand", words=words, code=code, error=error[-300:] if code else "")
        # 2: both stores have an image of this name.
        if "panicked" in error or code in (-1, 101) or code == 2 and words[0] != "rm":
            violation(f"layersweep {' '.join(words)}: exit code {code}: {error[-300:]}")

    def work(self):
        actions = [(self.kill_layersweep, 3), (self.kill_podman, 2), (self.kill_containerd, 1), (self.leap, 1), (self.fill, 1.5), (self.hold, 0.3), (self.person, 4)]
        pause(60, 60)
        while not stop.is_set():
            random.choices([action for action, _ in actions], [weight for _, weight in actions])[0]()
            pause(5, 25)


def sample():
    """A sample a minute: the records of layersweep, its memory, and the disks."""
    while not stop.wait(60):
        state = {name: os.stat(f"/var/lib/layersweep/{name}").st_size for name in os.listdir("/var/lib/layersweep")}
        for reserve in ("filler", "filler.more"):
            state.pop(reserve, None)
        used = {}
        for disk in ("/var/lib/containers", "/var/lib/containerd"):
            facts = os.statvfs(disk)
            used[disk] = round(100 * (1 - facts.f_bavail / (facts.f_blocks - facts.f_bfree + facts.f_bavail)), 1)
        with lock:
            memory = dict(peaks)
            peaks.clear()
        with open(f"{OUT}/samples.jsonl", "a") as file:
            file.write(json.dumps({"at": round(now()), "state": state, "used": used, "peak_kib": memory}) + "\n")


peaks = {}


def measure():
    """Peak resident memory of each command of layersweep, in KiB."""
    while not stop.wait(0.1):
        for pid in processes(is_layersweep):
            try:
                with open(f"/proc/{pid}/cmdline", "rb") as file:
                    words = file.read().decode().split("\0")
                with open(f"/proc/{pid}/status") as file:
                    peak = [int(line.split()[1]) for line in file if line.startswith("VmHWM")]
            except (OSError, ValueError):
                continue
            command = " ".join(word for word in words[1:3] if word in ("gc", "scan", "--uses", "rm", "report", "images", "usage", "sweep", "doctor"))
            with lock:
                peaks[command] = max(peaks.get(command, 0), *peak, 0)


def deletions():
    """All image deletions of layersweep, from its own records."""
    code, out, error = run("layersweep", "history", "--all", "--limit=0", "--format=json")
    if code != 0:
        violation(f"history: exit code {code}: {error[-300:]}")
        return [], []
    runs = json.loads(out)["runs"]
    return runs, [deletion for entry in runs for deletion in entry["deleted"]]


def judge(watch, parts):
    """What must hold after the load."""
    *podman_parts, containerd_part = parts
    runs, deleted = deletions()
    images = {(("podman" if deletion["store"] == STORE else "containerd"), deletion["id"].removeprefix("sha256:")) for deletion in deleted if deletion["kind"] == "image" and deletion["outcome"] == "deleted"}
    # Images that were deleted by age and never for another reason.
    others = {deletion["id"].removeprefix("sha256:") for deletion in deleted if deletion["reason"] != "age"}
    aged = {key for key in images if key[1] not in others}
    by_itself = 0
    for life in watch.lives:
        key = life["store"], life["image"].removeprefix("sha256:")
        # Not those that the load or a person may have removed.
        if key not in images or any(abs(moment - life["to"]) < 15 for moment in removed):
            continue
        by_itself += 1
        if life["to"] - life["from"] < MIN_AGE:
            violation(f"an image was deleted {life['to'] - life['from']:.0f} s after it came: {life}")
    names = {name for deletion in deleted for name in deletion["names"]}
    for name in names:
        if "/kept/" in name:
            violation(f"{name} is protected and was deleted")
    # Without a container since then, and not for space.
    for life in watch.lives:
        last_use = max(life["from"], life["used"] or 0)
        key = life["store"], life["image"].removeprefix("sha256:")
        if key in aged and life["to"] - last_use < MAX_AGE and not any(abs(moment - life["to"]) < 15 for moment in removed):
            violation(f"an image was deleted by age {life['to'] - last_use:.0f} s after its last use: {life}")
    ages = [deletion for deletion in deleted if deletion["reason"] == "age" and deletion["outcome"] == "deleted"]

    for part in podman_parts:
        for name in part.keepers:
            part.has_kept(name)
        for tag in part.built:
            part.has_built(tag)
    whole = 0
    for name in record_names():
        code, _, error = podman("run", "--rm", "--pull=never", "--network=host", name, *busybox(CHECK))
        whole += code == 0
        if code != 0:
            violation(f"{name} of podman does not run: {code} {error[-300:]}")
    if KEPT[0] not in record_names():
        violation(f"{KEPT[0]} is gone from podman")
    for number, image in enumerate(cri.images()):
        pod, container = cri.run(f"last{number}", image, busybox(CHECK))
        for _ in range(100):
            state, code = cri.state(container)
            if state == 2:
                break
            time.sleep(0.1)
        whole += (state, code) == (2, 0)
        if (state, code) != (2, 0):
            violation(f"{image} of containerd does not run: {state} {code}")
        cri.remove(pod)
    for kept in KEPT:
        if not containerd_part.kept(kept):
            violation(f"{kept} is gone from containerd")

    run("systemctl", "start", "layersweep-scan")
    code, out, error = run("layersweep", "scan", "--full", "--format=json", seconds=300)
    scan = json.loads(out)
    leaks = {}
    for leak in scan["leaks"]:
        leaks[leak["class"]] = leaks.get(leak["class"], 0) + 1
    with open(f"{OUT}/scan.json", "w") as file:
        file.write(out)
    with open(f"{OUT}/doctor.txt", "w") as file:
        file.write(run("layersweep", "doctor")[1])
    runs_by_outcome = {}
    for entry in runs:
        key = f"{entry['command']} {entry['outcome']}"
        runs_by_outcome[key] = runs_by_outcome.get(key, 0) + entry["runs"]
    with open(f"{OUT}/history.json", "w") as file:
        json.dump(runs, file)
    return {
        "minutes": MINUTES,
        "violations": violations,
        "events": dict(sorted(counts.items())),
        "runs": runs_by_outcome,
        "images_deleted": len(images),
        "deleted_and_judged_by_age": by_itself,
        "deletions": len([deletion for deletion in deleted if deletion["outcome"] == "deleted"]),
        "deleted_by_max_age": len(ages),
        "differing_measurements": len([deletion for deletion in deleted if deletion["differs"]]),
        "freed_bytes": sum(deletion["measured_bytes"] or 0 for deletion in deleted),
        "images_whole_at_the_end": whole,
        "leaks_at_the_end": leaks,
        "scan_exit_code": code,
        "scan_warnings": scan["warnings"],
    }


def main():
    podman("pull", "--quiet", KEPT[0])
    for kept in KEPT:
        cri.pull(kept)
    watch, chaos, parts = Watch(), Chaos(), (Podman("a"), Podman("b"), Containerd())
    work = [watch.work, chaos.work, *(part.work for part in parts), sample, measure]
    threads = [threading.Thread(target=guarded, args=(action,)) for action in work]
    for thread in threads:
        thread.start()
    while time.monotonic() < END and all(thread.is_alive() for thread in threads):
        time.sleep(1)
    stop.set()
    for thread in threads:
        thread.join()
    # systemd starts containerd again after the last kill.
    for _ in range(60):
        try:
            cri.images()
            break
        except cri.Failed:
            time.sleep(1)
    for part in parts:
        try:
            part.end(True)
        except cri.Failed as error:
            event("cri failed", error=str(error)[-200:])
    # Until what the load left is older than leaks.min_age.
    time.sleep(SETTLES)
    run("systemctl", "start", "layersweep-gc")
    summary = judge(watch, parts)
    with open(f"{OUT}/summary.json", "w") as file:
        json.dump(summary, file, indent=1)
    print(json.dumps(summary, indent=1))
    sys.exit(1 if violations else 0)


def guarded(action):
    try:
        action()
    except Exception as error:
        violation(f"the rig failed: {action.__qualname__}: {error!r}")
        raise


main()
