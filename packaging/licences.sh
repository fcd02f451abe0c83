#!/bin/sh
# licences.sh            LICENSE.dependencies to stdout: what is linked into the program, under which licence,
#                        and the texts
# licences.sh --spdx     the union of all licences as one SPDX expression
# licences.sh --cyclonedx  a bill of materials (CycloneDX 1.5) of all of them
# LINK=static: glibc is linked too.
# Fails on a licence that was not reviewed yet (GOOD_LICENCES: those that were).
set -eu
cd "$(dirname "$0")/.."
PATH="$PATH:$HOME/.cargo/bin"
target=${TARGET:-x86_64-unknown-linux-gnu}
# Permissive, and compatible with Apache-2.0.
good=${GOOD_LICENCES:-MIT MIT-0 Apache-2.0 BSD-2-Clause BSD-3-Clause Zlib Unicode-3.0 Unlicense 0BSD BSL-1.0 ISC LLVM-exception}

command -v jq >/dev/null || { echo 'licences.sh: jq is missing' >&2; echo 'hint: apt-get install jq' >&2; exit 1; }
work=$(mktemp -d)
trap 'rm -rf "$work"' EXIT
# Only crates that are linked: no build or test dependencies.
cargo tree --locked --edges normal,no-proc-macro --prefix none --target "$target" --no-dedupe \
    --format '{p}	{l}' >"$work/tree"
sed -e 's/ (proc-macro)//' -e 's/ ([^)]*)	/	/' -e 's, */ *, OR ,g' "$work/tree" |
    awk -F '\t' '{ split($1, name, " "); print name[1] "\t" substr(name[2], 2) "\t" $2 }' |
    grep -v '^layersweep	' | LC_ALL=C sort -u >"$work/crates"
# Also linked, but not from a registry.
cat >>"$work/crates" <<EOF
sqlite	bundled with libsqlite3-sys	blessing
rust-std	of the compiler	MIT OR Apache-2.0
d3-hierarchy	3.1.3, in the page of a report	ISC
llvm-libunwind	of zig, where it links	Apache-2.0 WITH LLVM-exception
EOF
[ "${LINK:-dynamic}" != static ] || printf 'glibc\tof the compiler\tLGPL-2.1-or-later\n' >>"$work/crates"
awk -F '\t' -v good="$good blessing LGPL-2.1-or-later" '
    BEGIN { count = split(good, names, " "); for (at = 1; at <= count; at++) known[names[at]] = 1 }
    {
        words = $3; gsub(/[()]/, "", words); gsub(/ (AND|OR|WITH) /, "\n", words)
        count = split(words, ids, "\n")
        for (at = 1; at <= count; at++) if (!(ids[at] in known)) { print $1 " " $2 ": " $3; bad = 1; break }
        if (count == 0) { print $1 " " $2 ": no licence"; bad = 1 }
    }
    END { exit bad }' "$work/crates" >"$work/bad" || {
    sed 's/^/licences.sh: not a licence that we know: /' "$work/bad" >&2
    echo 'hint: check whether it may be linked into an Apache-2.0 program, and add it to licences.sh' >&2
    exit 1
}

if [ "${1:-}" = --spdx ]; then
    cut -f 3 "$work/crates" | { cat; echo Apache-2.0; } | LC_ALL=C sort -u |
        awk '{ if ($0 ~ / OR / && $0 !~ /^\(/) $0 = "(" $0 ")"; printf "%s%s", sep, $0; sep = " AND " } END { print "" }'
    exit
fi

if [ "${1:-}" = --cyclonedx ]; then
    # Digests of the crates, as the registry has them.
    awk -F '"' '/^name/ { name = $2 } /^version/ { version = $2 } /^checksum/ { print name " " version "\t" $2 }' Cargo.lock >"$work/sums"
    version=$(sed -n 's/^version = "\(.*\)"/\1/p' Cargo.toml | head -n 1)
    jq -n --rawfile crates "$work/crates" --rawfile sums "$work/sums" --arg version "$version" \
        --argjson time "${SOURCE_DATE_EPOCH:-0}" '
        def rows: split("\n")[] | select(. != "") | split("\t");
        ([$sums | rows | {(.[0]): .[1]}] | add) as $sum |
        {
            bomFormat: "CycloneDX", specVersion: "1.5", version: 1,
            metadata: {
                timestamp: ($time | todate),
                component: {
                    type: "application", "bom-ref": "layersweep", name: "layersweep", version: $version,
                    licenses: [{license: {id: "Apache-2.0"}}]
                }
            },
            components: [$crates | rows | . as [$name, $of, $licence] | $sum[$name + " " + $of] as $digest |
                {type: "library", "bom-ref": ($name + "@" + $of), name: $name, licenses: [{expression: $licence}]} +
                if $digest then {
                    version: $of, purl: "pkg:cargo/\($name)@\($of)", hashes: [{alg: "SHA-256", content: $digest}]
                } else {description: $of} end]
        }'
    exit
fi

echo 'Libraries linked into layersweep, with their licences. The licence texts follow.'
echo
awk -F '\t' '{ printf "%s: %s %s\n", $3, $1, $2 }' "$work/crates" | LC_ALL=C sort
cargo metadata --locked --format-version 1 --filter-platform "$target" |
    jq -r '.packages[] | [.name, .version, (.manifest_path | sub("/Cargo.toml$"; ""))] | @tsv' >"$work/places"
printf '%s\t%s\t%s\n' d3-hierarchy '3.1.3, in the page of a report' "$PWD/src/report/html/assets/vendor" >>"$work/places"
[ "${LINK:-dynamic}" != static ] || printf 'glibc\tof the compiler\t%s\n' /usr/share/common-licenses/LGPL-2.1 >>"$work/places"
# The texts, each once, below the names of the crates that use it.
awk -F '\t' 'NR == FNR { linked[$1 " " $2] = 1; next } ($1 " " $2) in linked' "$work/crates" "$work/places" |
    LC_ALL=C sort | while IFS='	' read -r name version dir; do
    for file in "$dir"/LICEN[SC]E* "$dir"/license* "$dir"/COPYING* "$dir"/COPYRIGHT* "$dir"/NOTICE* "$dir"/UNLICENSE* "$dir"/*.LICENSE "$dir"; do
        [ ! -f "$file" ] || printf '%s\t%s\n' "$name $version: ${file##*/}" "$file"
    done
done >"$work/files"
LC_ALL=C awk -F '\t' '
    {
        text = ""
        while ((getline line <$2) > 0) { gsub(/\r/, "", line); text = text line "\n" }
        close($2)
        if (!(text in users)) texts[++count] = text
        users[text] = users[text] $1 "\n"
    }
    function rule(character) { rule_of = sprintf("%80s", ""); gsub(/ /, character, rule_of); return rule_of }
    END {
        for (at = 1; at <= count; at++)
            printf "\n%s\n%s%s\n\n%s", rule("="), users[texts[at]], rule("-"), texts[at]
    }' "$work/files"
