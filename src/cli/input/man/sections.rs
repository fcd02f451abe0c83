//! Texts of the man pages besides the options.

/// Examples with their descriptions, by the name of the page.
pub(super) const EXAMPLES: &[(&str, &[(&str, &str)])] = &[
    (
        "layersweep",
        &[
            ("layersweep usage", "Show the users of the disk, and the bytes that can be freed."),
            (
                "layersweep gc --dry-run",
                "Show what a collection would delete, and the bytes that each deletion frees.",
            ),
            ("layersweep usage --sysroot /mnt", "The same for the disk of another node, mounted on /mnt."),
        ],
    ),
    (
        "layersweep-scan",
        &[
            (
                "layersweep scan -q",
                "Record the present state; print warnings only. This is what the timer runs.",
            ),
            (
                "layersweep scan --format json --no-record > now.json",
                "Save everything for programs, or for diff.",
            ),
        ],
    ),
    (
        "layersweep-usage",
        &[
            ("layersweep usage --format json", "The summary for programs."),
            ("layersweep usage --since 6h", "Show which containers and images grew in the last six hours."),
            ("layersweep usage --since 7d --by namespace", "Show which namespaces grew in a week."),
        ],
    ),
    (
        "layersweep-images",
        &[
            (
                "layersweep images --filter in-use=false --filter older-than=14d",
                "Unused images that are at least two weeks old.",
            ),
            ("layersweep images -q --filter name='quay.io/team/*'", "Ids of the images of a registry."),
        ],
    ),
    ("layersweep-layers", &[("layersweep layers --tree", "The layers as a forest, with reference counts.")]),
    (
        "layersweep-explain",
        &[
            (
                "layersweep explain docker.io/library/nginx:1.27",
                "Why the image is kept, or what its deletion frees.",
            ),
            (
                "layersweep explain /var/lib/containers/storage/overlay/3f9e",
                "Which image or container a directory belongs to.",
            ),
            (
                "layersweep explain /var/lib",
                "Show the owners of the bytes in a directory, in a column that adds up.",
            ),
        ],
    ),
    (
        "layersweep-sweep",
        &[
            ("layersweep sweep", "List leaks and what proves them."),
            ("layersweep sweep --delete --dry-run", "List the deletions in order."),
            (
                "layersweep sweep --delete -y --class orphan-dir",
                "Delete the leaks of one class without asking.",
            ),
        ],
    ),
    (
        "layersweep-gc",
        &[
            ("layersweep gc --dry-run", "The plan."),
            ("layersweep gc -y", "Carry it out without asking, as off a terminal."),
            ("layersweep gc -y --max-age 30d", "Also delete images that were not used for 30 days."),
            ("layersweep gc -y --via direct", "Without a runtime, even with no free byte on the disk."),
            (
                "layersweep gc --dry-run --policy kubelet",
                "Compare the kubelet's deletions with layersweep's.",
            ),
        ],
    ),
    (
        "layersweep-fits",
        &[
            (
                "layersweep fits manifest.json",
                "Tell whether the image of this manifest (`skopeo inspect --raw`) fits.",
            ),
            ("layersweep fits release.json", "List the images of a release that are not here yet."),
        ],
    ),
    (
        "layersweep-waste",
        &[
            ("layersweep waste", "Bytes that each image and the store do not show, and equal files."),
            ("layersweep waste quay.io/team/app:1.2 --files", "The largest files that the image hides."),
        ],
    ),
    (
        "layersweep-explore",
        &[
            ("layersweep explore", "Walk through the disks of this node."),
            (
                "layersweep explore --sysroot /mnt/node-7",
                "The same on the disk of another machine; nothing is deleted.",
            ),
            ("layersweep explore node-7.json", "Walk through a scan that `scan --format json` has written."),
        ],
    ),
    (
        "layersweep-rm",
        &[
            ("layersweep rm -y quay.io/team/app:1.2", "Delete an image that has this name alone."),
            (
                "layersweep rm --dry-run --all-tags app:1.2",
                "Show the bytes that deleting the image would free.",
            ),
            ("layersweep rm -y --file cve.txt", "Delete the images of a list that are on this node."),
        ],
    ),
    (
        "layersweep-history",
        &[
            ("layersweep history --since 7d --kind image", "Images deleted in the last week, and why."),
            ("layersweep history --scans", "Scans that diff can compare."),
            (
                "layersweep history --repull last | xargs -r -n1 crictl pull",
                "Pull again what the last run that deleted images has deleted.",
            ),
        ],
    ),
    (
        "layersweep-history-usage",
        &[(
            "layersweep history usage --since 30d --filesystem /var",
            "Show the usage of /var in the last month.",
        )],
    ),
    (
        "layersweep-history-export",
        &[("layersweep history export --hash-names > node-7.ndjson", "A trace that names nothing.")],
    ),
    (
        "layersweep-replay",
        &[
            (
                "layersweep replay --max-age 7d",
                "What a maximum age of a week would have done to the last 30 days.",
            ),
            (
                "layersweep replay --vary max-age=1d,3d,7d,14d,off",
                "The same for several ages: pulls against usage.",
            ),
            (
                "layersweep replay nodes/*.ndjson --high 80",
                "What a threshold of 80 % would have done to a fleet.",
            ),
        ],
    ),
    (
        "layersweep-report",
        &[
            ("layersweep report", "Show how full the disks are, their largest users, and possible actions."),
            (
                "layersweep report --html report.html --sysroot /mnt",
                "The same for a dead node's disk, as one page.",
            ),
        ],
    ),
    (
        "layersweep-metrics",
        &[
            ("layersweep metrics --textfile /var/lib/node_exporter/textfile_collector", "For node_exporter."),
            ("layersweep metrics --listen 9753", "Serve them on 127.0.0.1."),
        ],
    ),
    (
        "layersweep-diff",
        &[
            ("layersweep diff", "Show the changes between the last two scans."),
            ("layersweep diff 24h now", "Show the changes since yesterday."),
        ],
    ),
    ("layersweep-pin", &[("layersweep pin list", "Patterns of images that are never deleted.")]),
    (
        "layersweep-pin-add",
        &[("layersweep pin add 'quay.io/team/*' --note 'needed offline'", "Keep all images of a registry.")],
    ),
    ("layersweep-pin-remove", &[("layersweep pin remove 'quay.io/team/*'", "Remove the pattern again.")]),
    ("layersweep-pin-list", &[("layersweep pin list -q", "The patterns alone.")]),
    (
        "layersweep-config",
        &[("layersweep config show", "The effective values, and the file and line that sets each.")],
    ),
    ("layersweep-config-check", &[("layersweep config check", "The problems, one in a line.")]),
    (
        "layersweep-config-show",
        &[("layersweep config show --format json", "The same for programs, with the meaning of each key.")],
    ),
    (
        "layersweep-doctor",
        &[
            ("layersweep doctor -q", "Errors and warnings only, each with its fix."),
            ("layersweep doctor --suggest", "An age and thresholds for this node, with their reasons."),
        ],
    ),
    (
        "layersweep-completions",
        &[("layersweep completions bash > /etc/bash_completion.d/layersweep", "For all users of bash.")],
    ),
    ("layersweep-man", &[("layersweep man /usr/local/share/man/man1", "Install the pages.")]),
];

pub(super) const FILES: [(&str, &str); 6] = [
    (
        "/usr/lib/layersweep/layersweep.toml, /etc/layersweep/layersweep.toml, /etc/layersweep/layersweep.toml.d/*.toml",
        "The configuration: of the vendor, of this node, and drop-ins in the order of their names.",
    ),
    (
        "/var/lib/layersweep/layersweep.db",
        "The records: ages and uses of images, runs, usage, the keep-list.",
    ),
    ("$XDG_STATE_HOME/layersweep/, ~/.local/state/layersweep/", "The same for users other than root."),
    ("/run/layersweep/pending/", "Records of runs that wait for a database that could not be written."),
    (
        "/run/layersweep/hold, /etc/layersweep/hold",
        "While one exists, the packaged timers and cron jobs delete nothing.",
    ),
    ("/usr/share/doc/layersweep/docs/", "The documentation, with JSON schemas."),
];

pub(super) const ENVIRONMENT: [(&str, &str); 7] = [
    (
        "LAYERSWEEP_NODE_NAME",
        "Name of the node in documents, instead of the host name. Ignored with --sysroot.",
    ),
    ("LAYERSWEEP_STATE_DIR", "State directory, unless --state-dir is given. Ignored with --sysroot."),
    (
        "LAYERSWEEP_LOG",
        "Log level of stderr (error, warn, info, debug, trace), or several with commas, each for a module \
         (layersweep::cri=debug). Overrides -v.",
    ),
    ("NO_COLOR", "If set and not empty, no bold and no colour."),
    ("COLUMNS", "Width of the terminal in columns. If it is not set, the terminal's own width is used."),
    (
        "LC_ALL, LC_CTYPE, LANG",
        "Locale. The output is plain ASCII unless the first of these that is set names UTF-8.",
    ),
    ("XDG_STATE_HOME, XDG_RUNTIME_DIR, HOME", "Places of the records of users other than root."),
];

/// Man pages of other programs that use the same stores.
pub(super) const OTHERS: [&str; 5] = [
    "layersweep.toml(5)",
    "podman-system-prune(1)",
    "crictl(1)",
    "containers-storage.conf(5)",
    "crio.conf(5)",
];
