//! The manifests for Kubernetes and OpenShift: they fit the schemas of a Kubernetes release, the manifests in one file are
//! what kustomize renders, and the pods get no privilege without a stated reason.

#![allow(clippy::unwrap_used)] // a test fails by panicking

use std::collections::BTreeSet;
use std::path::{Path, PathBuf};

use crate::support;
use serde_json::{Value, json};
use support::program::{list, text};

fn file(path: &str) -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join("packaging/kubernetes").join(path)
}

fn read(path: &str) -> String {
    std::fs::read_to_string(file(path)).unwrap_or_else(|error| panic!("{path}: {error}"))
}

/// Returns the documents of a file of `packaging/kubernetes`.
fn documents(path: &str) -> Vec<Value> {
    serde_saphyr::from_multiple(&read(path)).unwrap_or_else(|error| panic!("{path}: {error}"))
}

/// Returns the pod of the `DaemonSet` in a file.
fn pod(path: &str) -> Value {
    let set = documents(path).into_iter().find(|document| document["kind"] == "DaemonSet").unwrap();
    set["spec"]["template"]["spec"].clone()
}

/// Fails unless a document fits the schema of its kind in Kubernetes v1.37, which knows all of its fields.
fn assert_fits(path: &str, document: &Value) {
    let schemas = file("../../fixtures/kubernetes/v1.37.0.json");
    let mut schema: Value = serde_json::from_slice(&std::fs::read(schemas).unwrap()).unwrap();
    let kind = text(document, "/kind");
    let group = match text(document, "/apiVersion") {
        "v1" => "core.v1",
        "apps/v1" => "apps.v1",
        "networking.k8s.io/v1" => "networking.v1",
        other => panic!("{path}: {other}"),
    };
    schema["$ref"] = json!(format!("#/$defs/io.k8s.api.{group}.{kind}"));
    let validator = jsonschema::validator_for(&schema).unwrap();
    let errors: Vec<String> =
        validator.iter_errors(document).map(|error| format!("{}: {error}", error.instance_path())).collect();
    assert!(errors.is_empty(), "{path}: {kind}: {errors:#?}");
    // The schema is strict: a misspelt field is an error.
    let mut misspelt = document.clone();
    misspelt["metadata"]["lables"] = json!({});
    assert!(!validator.is_valid(&misspelt), "{kind}");
}

/// Applies a strategic merge patch as Kubernetes does for the lists in these manifests: their elements have a key.
fn merge(base: &mut Value, patch: &Value) {
    match (base, patch) {
        (Value::Object(base), Value::Object(patch)) => {
            for (key, value) in patch {
                merge(base.entry(key).or_insert(Value::Null), value);
            }
        }
        (Value::Array(base), Value::Array(patch)) => {
            for element in patch {
                let key = if element["mountPath"].is_string() { "mountPath" } else { "name" };
                match base.iter_mut().find(|known| known[key] == element[key]) {
                    Some(known) => merge(known, element),
                    None => base.push(element.clone()),
                }
            }
        }
        (base, patch) => *base = patch.clone(),
    }
}

/// Returns the documents of a directory with a kustomization, and those of the directories that it names.
fn render(directory: &str) -> Vec<Value> {
    let kustomization = documents(&format!("{directory}/kustomization.yaml")).remove(0);
    for key in kustomization.as_object().unwrap().keys() {
        // No other transformer is known here.
        assert!(["apiVersion", "kind", "patches", "resources"].contains(&key.as_str()), "{directory}: {key}");
    }
    let mut rendered = Vec::new();
    for resource in list(&kustomization, "/resources") {
        match resource.as_str().unwrap().strip_prefix("../") {
            Some(base) => rendered.extend(render(base)),
            None => rendered.extend(documents(&format!("{directory}/{}", resource.as_str().unwrap()))),
        }
    }
    for patch in kustomization["patches"].as_array().into_iter().flatten() {
        let patch = documents(&format!("{directory}/{}", text(patch, "/path"))).remove(0);
        let target = rendered.iter_mut().find(|document| document["kind"] == patch["kind"]).unwrap();
        merge(target, &patch);
    }
    rendered
}

/// Sorts what has no order: documents, mounts and volumes.
fn sorted(mut documents: Vec<Value>) -> Vec<Value> {
    fn sort(value: &mut Value) {
        match value {
            Value::Object(fields) => fields.values_mut().for_each(sort),
            Value::Array(elements) => {
                elements.iter_mut().for_each(sort);
                if elements.iter().all(|element| element["name"].is_string()) {
                    elements.sort_by_key(ToString::to_string);
                }
            }
            _ => {}
        }
    }
    documents.iter_mut().for_each(sort);
    documents.sort_by_key(ToString::to_string);
    documents
}

/// The rendered files are what `kubectl kustomize` of version 5 prints, which Debian does not have: a person writes them.
#[test]
fn manifests_fit_schemas_and_match_kustomize() {
    for runtime in ["crio", "containerd", "k3s", "openshift"] {
        let rendered = render(runtime);
        for document in rendered.iter().filter(|document| document["kind"] != "SecurityContextConstraints") {
            assert_fits(runtime, document);
        }
        let single = format!("daemonset-{runtime}.yaml");
        if std::env::var_os("LAYERSWEEP_WRITE_MANIFESTS").is_some() {
            let header = format!(
                "# Rendered from {runtime}/ by kubectl kustomize, for kubectl apply -f. The reason for each privilege is in\n\
                 # base/daemonset.yaml and {runtime}/mounts.yaml. Replace the image (built by Containerfile).\n"
            );
            let mut kubectl = std::process::Command::new("kubectl");
            let by_kubectl = support::packages::succeed(kubectl.arg("kustomize").arg(file(runtime)));
            std::fs::write(file(&single), header + &by_kubectl).unwrap();
        }
        assert_eq!(
            sorted(documents(&single)),
            sorted(rendered),
            "{single}: LAYERSWEEP_WRITE_MANIFESTS=1 cargo test manifests_fit writes it"
        );
    }
}

#[test]
fn pods_have_stated_privileges_only() {
    let table = std::fs::read_to_string(file("../../docs/installing.md")).unwrap();
    let mut explained = String::new();
    for runtime in ["crio", "containerd", "k3s", "openshift"] {
        let documents = render(runtime);
        let namespace = documents.iter().find(|document| document["kind"] == "Namespace").unwrap();
        assert_eq!(namespace["metadata"]["labels"]["pod-security.kubernetes.io/enforce"], "privileged");
        for document in &documents {
            let is_in_namespace = document["metadata"]["namespace"] == namespace["metadata"]["name"];
            let is_of_cluster =
                ["Namespace", "SecurityContextConstraints"].contains(&text(document, "/kind"));
            assert!(is_in_namespace != is_of_cluster, "{document:#}");
            // An account without rights.
            assert!(!text(document, "/kind").contains("Role"), "{document:#}");
        }
        let set = documents.iter().find(|document| document["kind"] == "DaemonSet").unwrap();
        assert_eq!(set["spec"]["selector"]["matchLabels"], set["spec"]["template"]["metadata"]["labels"]);
        let pod = &set["spec"]["template"]["spec"];
        for namespace in ["hostPID", "hostNetwork", "hostIPC", "automountServiceAccountToken"] {
            assert_eq!(pod[namespace], false, "{runtime}: {namespace}");
        }
        let security =
            json!({"seLinuxOptions": {"type": "spc_t"}, "seccompProfile": {"type": "RuntimeDefault"}});
        assert_eq!(pod["securityContext"], security);
        let environment = list(pod, "/containers/0/env").iter();
        let mut name = environment.filter(|variable| variable["name"] == "LAYERSWEEP_NODE_NAME");
        // Otherwise documents of `kubectl exec` would have the name of the pod.
        assert_eq!(name.next().unwrap()["valueFrom"]["fieldRef"]["fieldPath"], "spec.nodeName", "{runtime}");
        let mut mounted = BTreeSet::new();
        for container in list(pod, "/containers") {
            let mut security = json!({
                "runAsUser": 0,
                "allowPrivilegeEscalation": false,
                "readOnlyRootFilesystem": true,
                "capabilities": {"drop": ["ALL"]},
            });
            // The container that the network reaches has fewer rights.
            let scans = text(container, "/name") == "scan";
            if scans {
                security["capabilities"]["add"] = json!(["DAC_READ_SEARCH"]);
            }
            assert_eq!(container["securityContext"], security, "{runtime}");
            assert!(container["livenessProbe"]["timeoutSeconds"].is_u64(), "{runtime}");
            assert!(container["resources"]["limits"]["memory"].is_string(), "{runtime}");
            for mount in list(container, "/volumeMounts") {
                let (name, path) = (text(mount, "/name"), text(mount, "/mountPath"));
                mounted.insert(name.to_owned());
                let is_written = scans && ["/var/lib/layersweep", "/run/layersweep"].contains(&path);
                assert!(mount["readOnly"] == true || is_written, "{runtime}: {mount}");
                if ["store", "kubelet"].contains(&name) {
                    assert_eq!(mount["mountPropagation"], "HostToContainer", "{runtime}: {mount}");
                }
                // The same path inside: the program and the runtime name files alike.
                let mut volumes = list(pod, "/volumes").iter();
                let volume = volumes.find(|volume| volume["name"] == name).unwrap();
                assert_eq!(text(volume, "/hostPath/path"), path, "{runtime}");
                let quoted = format!("`{path}`");
                let mut rows = table.lines().filter(|line| line.starts_with('|'));
                assert!(rows.any(|row| row.contains(&quoted)), "docs/installing.md does not explain {path}");
                // No private keys of the cluster, and nothing that holds the whole node.
                assert!(
                    !["/", "/etc", "/etc/kubernetes", "/run", "/var", "/var/lib"].contains(&path),
                    "{path}"
                );
            }
        }
        let volumes: BTreeSet<_> =
            list(pod, "/volumes").iter().map(|volume| text(volume, "/name").to_owned()).collect();
        assert_eq!(mounted, volumes, "{runtime}: each volume is used");
        let scc = documents.iter().find(|document| document["kind"] == "SecurityContextConstraints");
        assert_eq!(scc.is_some(), runtime == "openshift");
        if let Some(scc) = scc {
            assert_allows_no_more(scc, pod);
        }
        explained += &read(&format!("{runtime}/mounts.yaml"));
    }
    // The reason is written above each line that gives a privilege.
    explained += &read("base/daemonset.yaml");
    let lines: Vec<&str> = explained.lines().map(str::trim).collect();
    for pair in lines.windows(3) {
        assert!(!pair[2].starts_with("mountPath:") || pair[0].starts_with('#'), "no reason: {pair:?}");
    }
    for privilege in ["DAC_READ_SEARCH", "spc_t", "runAsUser: 0", "system-node-critical", "RuntimeDefault"] {
        assert!(table.contains(privilege), "docs/installing.md does not explain {privilege}");
    }
}

/// Fails unless the constraints of OpenShift allow what the pod asks for, and nothing else.
fn assert_allows_no_more(scc: &Value, pod: &Value) {
    let account = text(pod, "/serviceAccountName");
    assert_eq!(scc["users"], json!([format!("system:serviceaccount:layersweep:{account}")]));
    assert_eq!(scc["groups"], json!([]));
    let security = &pod["containers"][0]["securityContext"];
    assert_eq!(scc["allowedCapabilities"], security["capabilities"]["add"]);
    assert_eq!(scc["requiredDropCapabilities"], security["capabilities"]["drop"]);
    assert_eq!(scc["readOnlyRootFilesystem"], true);
    assert_eq!(scc["volumes"], json!(["hostPath"]));
    for (field, value) in scc.as_object().unwrap() {
        assert!(
            !field.starts_with("allowHost") || field.ends_with("VolumePlugin") == (*value == true),
            "{field}"
        );
    }
    assert_eq!([&scc["allowPrivilegedContainer"], &scc["allowPrivilegeEscalation"]], [false, false]);
}

/// The shell of a pod: a scan, then a long wait; SIGTERM ends it at once.
#[test]
fn pod_loop_scans_waits_and_ends() {
    let script = text(&pod("base/daemonset.yaml"), "/containers/0/command/2").to_owned();
    let dir = tempfile::tempdir().unwrap();
    let (log, run) = (dir.path().join("log"), dir.path().join("run"));
    std::fs::create_dir(&run).unwrap();
    let stand_in = dir.path().join("layersweep");
    std::fs::write(&stand_in, format!("#!/bin/sh\necho \"$@\" >>{}\nexit 3\n", log.display())).unwrap();
    std::fs::set_permissions(&stand_in, std::os::unix::fs::PermissionsExt::from_mode(0o755)).unwrap();
    let script = script.replace("/run/layersweep", run.to_str().unwrap());
    for (gc, held, expected) in [
        ("off", false, "scan --quiet\n"),
        ("on", false, "gc --yes --quiet\n"),
        ("on", true, "scan --quiet\n"),
    ] {
        let _ = std::fs::remove_file(&log);
        let _ = std::fs::remove_file(run.join("hold"));
        if held {
            std::fs::write(run.join("hold"), "").unwrap();
        }
        let path = format!("{}:{}", dir.path().display(), std::env::var("PATH").unwrap());
        let mut shell = std::process::Command::new("/bin/sh");
        let mut shell =
            shell.args(["-c", &script]).env("LAYERSWEEP_GC", gc).env("PATH", path).spawn().unwrap();
        let end = std::time::Instant::now() + std::time::Duration::from_secs(60);
        while std::fs::read_to_string(&log).unwrap_or_default() != expected {
            assert!(std::time::Instant::now() < end && shell.try_wait().unwrap().is_none(), "{gc} {held}");
            std::thread::sleep(std::time::Duration::from_millis(20));
        }
        assert!(run.join("pod-alive").exists());
        let pid = nix::unistd::Pid::from_raw(shell.id().cast_signed());
        nix::sys::signal::kill(pid, nix::sys::signal::Signal::SIGTERM).unwrap();
        let status = shell.wait().unwrap();
        assert!(status.success(), "{status:?}");
    }
}
