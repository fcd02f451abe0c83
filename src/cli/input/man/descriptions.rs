//! Descriptions of the commands in the man pages: what a command does, in which order, what it never does, and what its
//! columns mean. A paragraph that starts with two blanks is an entry of a list: a term, at least two blanks, its meaning.

/// Paragraphs by the name of the page.
pub(super) const DESCRIPTIONS: &[(&str, &[&str])] = &[
    (
        "layersweep",
        &[
            "Reads the container image stores of a Kubernetes node from its disk: containers/storage (CRI-O, podman, \
             buildah) and containerd. It needs no running runtime. It measures the bytes that each image holds on the \
             disk, predicts the bytes that a deletion frees, and deletes unused images until enough is free.",
            "Reading commands change nothing but layersweep's own records. gc, rm, sweep --delete and sweep --repair \
             are the only commands that delete. They never delete what a container uses, running or not, what is \
             pinned or protected, and what is younger than its minimum age; each deletion is proven safe again just \
             before it, and measured after it. Nothing outside of the stores is ever deleted.",
            "To begin: layersweep usage shows what uses the disk, layersweep report says what to delete, layersweep \
             gc --dry-run shows what a run would delete, layersweep doctor checks the node.",
        ],
    ),
    (
        "layersweep-scan",
        &[
            "Reads and measures every store that is found or named, prints filesystems, stores, images, containers \
             and leaks, and records them: first detection and last use of each image, and the usage of the \
             filesystems. A timer runs it every five minutes, so that uses of images are known. Sizes of layers that \
             cannot have changed are taken from the last scan; --full measures everything.",
            "It never changes a store. With --no-record or --sysroot it records nothing.",
            "  DETECTED, LAST USED  time since the image was first on this disk, and since a container used it",
            "  SIZE  bytes of all layers that the image reaches",
            "  SHARED, EXCLUSIVE  the part that other images or containers reach too, and the rest",
            "  FAIR  each layer divided equally among its users; this column adds up",
            "  FREES  bytes that the filesystem gives back if this image alone is deleted now",
        ],
    ),
    (
        "layersweep-usage",
        &[
            "Shows what uses each filesystem with a store and, unless stores are named, those of the kubelet, of the \
             pods' logs and of layersweep's records. Each used byte is in exactly one row, so the column SIZE \
             adds up to the used bytes; a layer of several images is in the first row of these images. The rows below \
             Outside the stores are other files, the largest first, which no deletion of images frees.",
            "It never changes anything, and records nothing.",
            "  COUNT  number of images, containers or leaks in the row",
            "  SIZE, INODES  bytes and inodes on the disk",
            "  RECLAIMABLE  bytes that are freed if the unused objects of the row are deleted; the last line is about \
             images, artifacts and leaks together",
            "Rows below 1 MiB and below 0.1 % of the used bytes are one row, unless --all is given.",
            "Below the table are the stopped containers: what their own layers hold, the command that removes them with              the program that made them, and what gc can then free, as a set: the images that only stopped containers              keep. The ends of gc and report have the same list.",
            "With --since it compares the present state with a kept scan: the last one that had begun at that time, or \
             the oldest one, which is then named. The row that grew most is the first, the row that shrank most the \
             last; the column CHANGE adds up to the change of the used bytes. A container has its writable layer and \
             own files, an image its layers; a layer of several images counts for one of them. What both scans contain \
             is in the row of its present user in both, so that only bytes that came are growth. Without a kept scan \
             it fails with exit status 1.",
        ],
    ),
    (
        "layersweep-images",
        &[
            "Lists images and OCI artifacts of all stores, those with the most exclusive bytes first. On a narrow \
             terminal some columns are left out; the last line names them.",
            "It never changes anything, and records nothing.",
            "  ID  beginning of the image's id",
            "  CREATED  time since the image was built",
            "  DETECTED, LAST USED  time since it was first on this disk, and since a container used it; the records \
             of scans contain both",
            "  USED BY  a container that uses it, and the number of others",
            "  PINNED  the runtime or the keep-list (layersweep pin) keeps it",
            "  SIZE  bytes of all layers that it reaches",
            "  SHARED, EXCLUSIVE  the part that other images or containers reach too, and the rest",
            "  FAIR  each layer divided equally among its users; this column adds up",
            "  FREES  bytes that the filesystem gives back if this image alone is deleted now",
        ],
    ),
    (
        "layersweep-layers",
        &[
            "Lists the layers, snapshots and blobs of all stores. With --tree each layer is below its parent, the \
             largest first.",
            "It never changes anything, and records nothing.",
            "  PARENT  the layer below",
            "  KIND  layer, snapshot, blob, or read-write: the layer that a container writes to",
            "  REFS  number of images and containers that reach the layer; 0: it is a leak or build cache",
            "  SIZE, INODES  bytes on the disk and inodes of this layer alone",
            "  HELD BY  an image or container that reaches it, and the number of others",
        ],
    ),
    (
        "layersweep-waste",
        &[
            "Shows bytes of layers that no container can see. A layer that overwrites or deletes a file of a lower layer \
             hides it; its bytes stay on the disk with the lower layer. Names, lengths and checksums come from the \
             tar-splits of the layers, so no file is read, and each layer is read once. Of layers without a tar-split, \
             as those of containerd, the directories are walked: their files have no checksums, so equal files are \
             unknown.",
            "It never changes anything, and records nothing. Lengths from tar-splits are rounded up to the blocks of the \
             filesystem. Layers of vfs, btrfs and other drivers that overlayfs does not stack are not compared.",
            "  SIZE  bytes of the files in all layers of the image, or in the layer",
            "  HIDDEN  the part that upper layers of the image hide; below the table, the part of the store that neither an \
             image nor a container shows",
            "  DELETED, COPIED  the part of HIDDEN that was deleted, and the part that was replaced by a copy with the same \
             content (only owner, mode or times differ); the rest was overwritten",
            "  HIDES  bytes of lower layers that the layer hides",
            "  EQUAL  bytes of files that equal a file of the store that was counted before, in any layer: \
             deduplication saves them. A hidden file may be among them",
            "  SOURCE  tar-split, directory, or unread",
        ],
    ),
    (
        "layersweep-explain",
        &[
            "Explains one object: an image, layer, container or path. For an image it shows the chain of its layers, \
             the bytes that its deletion frees, what is recorded of it, the ruling of every protection rule in the \
             order of asking, and what the next run of gc does with it. For a path below a store it shows the object \
             that the path belongs to; for any other directory the owners of its bytes, in a column that adds up. Of an \
             image that is gone it tells from the records when it was deleted, by which run and why, or between which \
             scans another program removed it.",
            "It never changes anything, and records nothing.",
            "  RULE, VERDICT, WHY  a rule, whether it keeps the image, and the fact that decides",
            "  REFS  number of images and containers that reach the layer",
        ],
    ),
    (
        "layersweep-explore",
        &[
            "Shows on a full screen what fills each disk, and goes down from a filesystem to its stores, images, layers, \
             directories and files. Images can be marked: the line at the bottom says what all marked images free \
             together, how full the disk is then, and why some stay. Layers that several of them share count once, \
             which no sum of a list of sizes can do.",
            "`D` in the marked pane deletes them after a typed `yes`, as `rm` does: with the same plan, proofs and record. \
             The view shows the progress, an image at a time, and then the result. With --read-only, --sysroot or FILE, \
             and for other users than root, nothing is deleted. Signals and errors give the terminal back.",
            "FILE is the document of a saved scan, of this or another machine: what was recorded is shown, and what needs \
             the disk (directories and files, explanations) is not available.",
            "`?` lists the keys, and names the command that prints the same as text. `r` scans again; until then the \
             figures are those of the last scan. Directories are measured when they are entered; mounts are not \
             entered, and hard links count once. In a layer, `~` marks what layers above it hide.",
        ],
    ),
    (
        "layersweep-fits",
        &[
            "Tells whether images that are to come fit on the disk: it reads references, manifests, lists of references, \
             pinned image sets or a release, compares their layers with those in the store that the runtime of this node \
             pulls into, and estimates the bytes on the disk. Then it compares the usage with the high threshold, and \
             prints the gc command that makes room, with what it would delete, and the images of the request that have to \
             be pinned before it. Manifests and references may be mixed in one input: the name of an image whose manifest \
             a script cannot get counts as of unknown size.",
            "It never contacts a registry, never changes anything, and records nothing. Sizes are those in the manifests; \
             images of which only the name is known are named, and left out of the sums.",
            "  NEW  layers that neither the store nor an image above has",
            "  DOWNLOAD  compressed bytes of these layers",
            "  ON DISK  estimate from the same layers on this node, layers of the same repository, or their mean; a note says \
             which. A manifest names its repository with the field name (`skopeo inspect`, or \
             `jq '.name = \"registry/app:2\"'`)",
            "  AT LEAST, AT MOST  the spread of the estimate",
            "It exits with 0 if the images fit with the upper end of the estimate or all are here, with 4 if they do not or \
             only probably, and with 3 if those that are known fit.",
        ],
    ),
    (
        "layersweep-sweep",
        &[
            "Lists leaks: directories, layers, snapshots and blobs that hold bytes and that no image or container \
             uses, and inconsistent records. Each has its evidence, and a verdict: reclaim (it can be deleted), \
             repair (it can be repaired), keep (it may be in use, or is too young), report (only you or its owner can \
             decide).",
            "--delete deletes the findings with the verdict reclaim, in this order: it plans, shows the plan and asks \
             on a terminal, proves each deletion again under the store's locks, deletes, and measures the freed bytes. \
             --repair repairs a class of findings in the same way. Runtimes may keep running.",
            "It never deletes findings that are younger than --min-age, and nothing from a containerd store: \
             containerd collects its own garbage.",
            "  SIZE, AGE  bytes on the disk, and time since its last change",
            "  PROOF, WHY  the facts that prove that nothing uses it, or the reason why it is kept",
            "  PREDICTED, MEASURED  bytes that the deletion should free, and that it freed",
        ],
    ),
    (
        "layersweep-gc",
        &[
            "Deletes unused images until enough is free. In this order: it finds out which program deletes (the \
             container runtime, or layersweep itself where no runtime owns the store), reads all stores and all \
             containers, applies the protection rules, deletes the images that were unused for longer than --max-age \
             (off by default), and then, on each filesystem that is above its high threshold, the image that was \
             unused for longest, then the next one, until the measured usage is at the low threshold. With --order \
             cheapest it takes instead the images that are expected to cost least to pull again. Dead containers, \
             logs and leaks are deleted too where they are enabled or named by --only. On a terminal it shows the plan \
             and asks first; elsewhere it needs -y. --dry-run shows the same plan and changes nothing.",
            "It never deletes an image that a container uses (running or not, in any store), that is pinned or \
             protected, or that is younger than --min-age. It deletes nothing if a listing was partial or the records \
             cannot be read. Right before each deletion it proves again that the image is unused.",
            "  REASON  space (a threshold was reached), age (--max-age), limit (containers), leak",
            "  PREDICTED, MEASURED  bytes that the deletion should free, and that it freed; ! marks a difference \
             beyond the filesystem's own fluctuation",
            "  INODES  inodes that the deletion should free, on a filesystem that is short of them",
            "  USED AFTER  usage of the filesystem after this deletion and those above it",
            "  KEPT BY RULE  the rules that keep the remaining images: docs/how-it-decides.md describes each",
        ],
    ),
    (
        "layersweep-rm",
        &[
            "Deletes the named images, through the same program and with the same rules and proofs as gc, whatever \
             the usage of the disk. On a terminal it shows the plan and asks first; elsewhere it needs -y. An image \
             that has other names too is deleted by its id, or with --all-tags.",
            "With --file it deletes the images of a list: a reference, whole digest or whole id a line. A line never \
             means the start of an id or the end of a name, and nginx:1 is docker.io/library/nginx:1. Lines that name no \
             image of this node are counted and named; a line that is malformed ends the command before anything is \
             deleted.",
            "It never deletes an image that a container uses, that is pinned or protected, or that is younger than \
             --min-age: the exit code is then 5, and the line below STAYS names the rule. It never deletes another \
             image than the named ones.",
            "  PREDICTED, MEASURED  bytes that the deletion should free, and that it freed",
            "  USED AFTER  usage of the filesystem after the deletion",
            "  STAYS, RULE, WHY  a named image that is kept, and the reason",
        ],
    ),
    (
        "layersweep-history",
        &[
            "Shows past runs that deleted something or failed, the newest first, and each deletion. Runs of scan, and \
             of gc with nothing to do, are summed up in the last line; --all lists them. --scans lists the scans that \
             are kept for diff. With the name of an image it tells what happened to that image, also if it is gone.",
            "With --repull it prints the images that a run deleted as references to pull, one a line and each once, by \
             digest where it is known. If the run deleted in several stores, name one of them, for example with \
             --graphroot: a list is pulled into one. Notes on standard error name the tags, which a pull by digest does not bring back, \
             and the images that cannot be pulled again, because they were built, loaded or preloaded here; the exit \
             code is 3 then.",
            "It never changes anything.",
            "  TIME, KIND, OBJECT  a deletion: when, and what (image, container, sandbox, log, leak)",
            "  REASON  space, age, limit, leak or request (rm)",
            "  PREDICTED, MEASURED  bytes that the deletion should free, and that it freed",
            "  USED  usage of the filesystem after it",
            "  RUN  id of the run; on a narrow terminal its last digits",
        ],
    ),
    (
        "layersweep-history-usage",
        &[
            "Shows the recorded usage of the filesystems, and the present one: a chart on a terminal, \
             otherwise a table. Single readings are kept for a week, then one value a day.",
            "It never changes anything.",
            "  SPAN, LOWEST%, HIGHEST%  of a row that sums up a day: its lowest and highest reading; absent if each row \
             is a single reading",
            "  USED%  usage; of a day, the mean",
            "  INODES%  used inodes; - on a filesystem without a fixed number",
        ],
    ),
    (
        "layersweep-history-export",
        &[
            "Writes the past of this node for layersweep replay: which images came with which layers, when containers used \
             them, which left and by whom, and the bytes of everything else on the filesystem. One trace for each \
             filesystem with images, a JSON object a line; docs/schema/trace.json describes the lines.",
            "It reads the records and the stores as they are now, and changes nothing. The layers of images that are gone are \
             not in the records: such an image has one layer with the bytes that only it held when it was last seen.",
            "With --hash-names names and ids are hashes, the same on every node. A guess of a name can be checked against \
             its hash; sizes and times are not changed.",
        ],
    ),
    (
        "layersweep-replay",
        &[
            "Tells what thresholds, ages and rules would have done to the past: it plays a trace to the planner of gc, with a \
             run at each period and whenever a pull finds no room, and pulls again what the policy deleted and the past \
             wants. The deletions on record, the kubelet's algorithm with the same settings, and a policy that knows the \
             future are beside it. --vary gives a row for each value of a setting instead.",
            "It never deletes anything, and records nothing. Without files it plays the records of this node, as far back as \
             --since; with files the traces of any number of nodes, of which a few are in memory at a time.",
            "  DELETED  images that the policy deletes",
            "  PULLED AGAIN, BYTES AGAIN  pulls of images that it had deleted, and the bytes that they transfer",
            "  WAITED  pulls that found no room and began after a deletion",
            "  PEAK, MEAN  highest usage, and mean usage over time",
            "  ABOVE HIGH  part of the time at or above the high threshold",
        ],
    ),
    (
        "layersweep-report",
        &[
            "Diagnoses the disk: how full it is, what holds it, what happened, and what can be deleted with which \
             command. It measures the stores and all other files on their filesystems, and reads layersweep's records \
             and the kubelet's settings. --html writes the same as one page without references to other files, which \
             can be mailed.",
            "It never changes anything, and records nothing. It only prints commands; layersweep itself never deletes \
             files outside of the stores. With --sysroot DIR it reports on the disk mounted there, from that disk's \
             own records.",
        ],
    ),
    (
        "layersweep-metrics",
        &[
            "Prints metrics for Prometheus: the figures of the last recorded scans, the deletions since records \
             began, and the present usage of the filesystems. --textfile writes them to a file for node_exporter, as \
             scan, gc, sweep and rm do at their end; --listen serves them over HTTP.",
            "It reads no store, and never changes one.",
        ],
    ),
    (
        "layersweep-diff",
        &[
            "Shows the differences between two scans that are kept, that were printed as JSON, or of which one is the \
             present state. Without arguments: between the last two.",
            "It never changes anything, and records nothing, not even the scan that it makes for `now`.",
            "  BEFORE, AFTER  bytes in the first and in the second scan",
            "  CHANGE  difference of the bytes",
        ],
    ),
    (
        "layersweep-pin",
        &[
            "Manages the keep-list: patterns of images that gc and rm never delete. The list is in the records of the \
             state directory. Pins of a user other than root are in that user's own records: root's gc does not see \
             them. Patterns in the configuration (protect.names) do the same for all users.",
        ],
    ),
    (
        "layersweep-pin-add",
        &[
            "Adds patterns to the keep-list, and says how many images of the last scan each matches. A pattern that \
             matches none is added nevertheless: it keeps images that are pulled later.",
            "It never changes a store.",
        ],
    ),
    (
        "layersweep-pin-remove",
        &[
            "Removes patterns from the keep-list. A pattern has to be written as layersweep pin list shows it. rm is \
             another name of this command.",
            "It never deletes an image; the next run of gc may delete those that nothing else keeps.",
        ],
    ),
    (
        "layersweep-pin-list",
        &[
            "Shows the patterns of the keep-list, with the time and the note of each. With -q the patterns alone.",
            "It never changes anything.",
        ],
    ),
    (
        "layersweep-config",
        &[
            "Checks the configuration, or shows the effective values. layersweep.toml(5) describes the keys and the \
             order of the files. With an invalid configuration gc, rm, sweep --delete, pin add and pin remove refuse \
             to run, and all other commands warn and use the built-in defaults.",
            "It never changes anything.",
        ],
    ),
    (
        "layersweep-config-check",
        &[
            "Reports each problem of the configuration in one line: file, line, key, problem and fix. Exits with 2 if \
             there is one, else with 0.",
            "It never changes anything. It does not look at the node: layersweep doctor also reports thresholds that \
             do not fit the node, and patterns that match no image.",
        ],
    ),
    (
        "layersweep-config-show",
        &[
            "Shows the value of every key that the next command uses. With an invalid configuration these are the \
             built-in defaults; the problems are reported, and the exit code is 2.",
            "It never changes anything.",
            "  VALUE  value as in a file; (found): layersweep finds it on the node",
            "  FROM  file and line, flag, environment variable, or default",
        ],
    ),
    (
        "layersweep-doctor",
        &[
            "Checks the node: stores and their records, runtimes, the kubelet's thresholds against eviction and \
             against layersweep's, the state directory and database, timers, and whether a run of gc would be refused \
             now. Errors come first, then warnings, each with its fix, then notes and the checks that found nothing \
             wrong. docs/doctor.md describes each check.",
            "With --suggest it prints an age and thresholds for this node instead, as drop-ins for layersweep and the \
             kubelet, with the reasons from the replay of its own past; with less than 14 days of records nothing.",
            "It never changes anything, not even the state directory. With --sysroot it checks the disk mounted there, \
             and contacts no socket.",
        ],
    ),
    (
        "layersweep-completions",
        &[
            "Prints the completion script of a shell. In bash, zsh and fish it also completes names of images, from the \
           last recorded scan.",
        ],
    ),
    (
        "layersweep-man",
        &["Writes the man pages to a directory: one for each command, and layersweep.toml(5)."],
    ),
];

/// Description of layersweep.toml(5).
pub(super) const CONFIGURATION: &str = "\
layersweep works without configuration. It reads settings in this order, and later ones override earlier ones: the \
    built-in defaults, /usr/lib/layersweep/layersweep.toml (the vendor's), /etc/layersweep/layersweep.toml, \
    /etc/layersweep/layersweep.toml.d/*.toml in the order of their names, the environment variable \
    LAYERSWEEP_STATE_DIR, and flags. --config FILE replaces all files.
A later file replaces the value of a key, also if it is a list. The values of protect.names and protect.labels add up \
    instead: a file never removes the protection that another file gives. Rules ([[images.rule]]) add up too: those of \
    later files are tried first.
Files are TOML. Unknown keys, invalid values and values that contradict each other are errors: gc, rm, sweep --delete, \
    pin add and pin remove then refuse to run, and all other commands warn and use the defaults. `layersweep config \
    check` reports every problem, `layersweep config show` the effective values.
Durations are written as \"90s\", \"5m30s\", \"36h\", \"14d\" or \"2w\", sizes as \"10GiB\", \"500MB\" or a number of \
    bytes.";

pub(super) const CONFIGURATION_EXAMPLES: [(&str, &str); 3] = [
    ("images.high_percent = 80", "Start deleting at 80 % used; without images.low_percent, stop at 70 %."),
    (
        "[[images.rule]] match = \"quay.io/team/*\", max_age = \"30d\"",
        "Delete images of this registry and team that were idle for 30 days (each key on a line of its own).",
    ),
    ("protect.names = [\"quay.io/team/*\"]", "Never delete images of this registry and team."),
];
