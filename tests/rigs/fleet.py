#!/usr/bin/env python3
"""Makes documents of many nodes from the report of one, for `report --merge`.

fleet.py REPORT DIRECTORY NODES [LAYERS]

Every third document is one of `scan`, the others are of `report`. A few nodes are incomplete, have an older document
too, or have an image in two stores. The same arguments in the same hour make the same documents: they are of the last 13
hours.
"""

import copy
import datetime
import hashlib
import json
import random
import sys

IMAGES = 400
IMAGES_OF_A_NODE = 60
CLASSES = [("orphan-layer-dir", "reclaim"), ("incomplete-layer", "reclaim"), ("lease-without-expiry", "report")]
GIB = 1 << 30
START = datetime.datetime.now(datetime.timezone.utc).replace(minute=0, second=0) - datetime.timedelta(hours=12)


def digest(text):
    return hashlib.sha256(text.encode()).hexdigest()


def image_of(number, sample, chance):
    image = copy.deepcopy(sample)
    size = (1 + number * 7919 % 997) << 20
    exclusive = size * chance.randrange(0, 100) // 100
    # containerd writes the algorithm before the id.
    image["id"] = chance.choice(["", "sha256:"]) + digest(f"image {number}")
    image["names"] = [f"registry.example.org/team-{number % 17}/service-{number}:{number % 9}"]
    if chance.random() < 0.1:
        image["names"].append(f"mirror.example.org/service-{number}:{chance.randrange(30)}")
    image["in_use"] = chance.random() < 0.4
    image["pinned"] = chance.random() < 0.05
    image["total_bytes"] = size
    image["exclusive_bytes"] = exclusive
    image["shared_bytes"] = size - exclusive
    image["frees_bytes"] = exclusive * chance.randrange(90, 101) // 100
    return image


def leak_of(chance, store):
    name, verdict = chance.choice(CLASSES)
    name_id = digest(str(chance.random()))
    return {
        "class": name, "store": store, "path": f"{store}/overlay/{name_id}", "id": name_id,
        "bytes": chance.randrange(1 << 30), "age_seconds": 4000, "verdict": verdict, "evidence": "made",
    }


def node_of(number, report, chance):
    report = copy.deepcopy(report)
    scan = report["scan"]
    store = scan["stores"][0]
    minutes = datetime.timedelta(minutes=number % 600, seconds=chance.randrange(60))
    time = f"{START + minutes:%Y-%m-%dT%H:%M:%S}.{chance.randrange(10**9):09}Z"
    numbers = chance.sample(range(IMAGES), IMAGES_OF_A_NODE)
    if number % 11 == 0:
        numbers.append(numbers[0])
    images = [image_of(image, scan["images"][0], chance) for image in numbers]
    leaks = [leak_of(chance, store["root"]) for _ in range(chance.choice([0, 0, 0, 1, 5]))]
    unused = [image for image in images if not image["in_use"] and not image["pinned"]]
    reclaimable = sum(image["frees_bytes"] for image in unused)
    used = chance.randrange(20 * GIB, 100 * GIB)
    filesystem = {
        "capacity_bytes": 100 * GIB, "used_bytes": used, "available_bytes": 100 * GIB - used, "reserved_bytes": 0,
        "used_percent": round(used / GIB, 2), "inodes": 6553600, "inodes_free": 6000000 - number,
    }
    scan.update(generated_at=time, node=f"node-{number}", complete=number % 50 != 0, images=images, leaks=leaks)
    scan["filesystems"][0].update(filesystem)
    store.update(reclaimable_bytes=reclaimable, filesystem=scan["filesystems"][0]["mount"])
    scan["totals"].update(
        images=len(images), images_unused=len(unused), leaks=len(leaks), bytes=used // 2, reclaimable_bytes=reclaimable)
    scan["layers"] = "@layers@"
    report.update(generated_at=time, host=f"node-{number}", complete=scan["complete"])
    urgency = "critical" if used > 95 * GIB else "warning" if used > 85 * GIB else "calm"
    report["verdict"].update(urgency=urgency, headline=f"/var is {used / GIB:.1f}% full")
    report["filesystems"][0].update(filesystem, forecast=None)
    report["filesystems"][0]["thresholds"] = [
        {"name": "gc low", "percent": 70.0, "source": "layersweep", "of": "bytes"},
        {"name": "gc high", "percent": 85.0, "source": "layersweep", "of": "bytes"},
    ]
    if chance.random() < 0.3:
        seconds = chance.randrange(3600, 60 * 24 * 3600)
        report["filesystems"][0]["forecast"] = {
            "filesystem": scan["filesystems"][0]["mount"], "text": "made", "window_seconds": 86400,
            "bytes_per_hour": chance.randrange(GIB), "full_in_seconds": seconds,
            "earliest_in_seconds": seconds // 2, "latest_in_seconds": seconds * 2,
        }
    return scan if number % 3 == 0 else report


def main():
    source, directory, nodes = sys.argv[1], sys.argv[2], int(sys.argv[3])
    layers = int(sys.argv[4]) if len(sys.argv) > 4 else 20
    with open(source, encoding="utf-8") as file:
        report = json.load(file)
    sample = report["scan"]["layers"][0]
    layers = json.dumps([dict(sample, id=digest(f"layer {layer}")) for layer in range(layers)])

    def write(name, document):
        with open(f"{directory}/{name}.json", "w", encoding="utf-8") as file:
            file.write(json.dumps(document).replace('"@layers@"', layers) + "\n")

    for number in range(nodes):
        write(f"node-{number}", node_of(number, report, random.Random(number)))
        if number % 40 == 7:
            older = node_of(number, report, random.Random(-number))
            older["generated_at"] = f"{START - datetime.timedelta(days=1):%Y-%m-%dT%H:%M:%SZ}"
            write(f"node-{number}-older", older)


main()
