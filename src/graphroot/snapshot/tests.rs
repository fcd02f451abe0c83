use std::os::unix::fs::symlink;

use super::*;

const LAYERS: &str = r#"[{"id":"l1"},{"id":"l2"}]"#;

/// A store made by hand; nobody else knows of it.
struct Bed {
    dir: tempfile::TempDir,
    places: Places,
}

impl Bed {
    fn new() -> Self {
        let dir = tempfile::tempdir().unwrap();
        let graphroot = dir.path().join("root");
        for path in ["overlay/l1/diff", "overlay/l2/diff", "overlay-containers/c1/userdata"] {
            std::fs::create_dir_all(graphroot.join(path)).unwrap();
        }
        let records = [("layers", LAYERS), ("images", "[]"), ("containers", r#"[{"id":"c1","layer":"l2"}]"#)];
        for (what, json) in records {
            let directory = graphroot.join(format!("overlay-{what}"));
            std::fs::create_dir_all(&directory).unwrap();
            std::fs::write(directory.join(format!("{what}.json")), json).unwrap();
            std::fs::write(directory.join(format!("{what}.lock")), [7; 64]).unwrap();
        }
        let places = Places {
            graphroot,
            imagestores: Vec::new(),
            runroots: Vec::new(),
            driver: "overlay".into(),
            other_drivers: Vec::new(),
            primary: true,
            read_only: false,
            foreign: false,
        };
        Self { dir, places }
    }

    fn at(&self, path: &str) -> PathBuf {
        self.places.graphroot.join(path)
    }
}

const SHORT: Patience = Patience { unlocked: Duration::from_millis(50), locked: Duration::from_millis(50) };

#[test]
fn symlinks_below_the_graphroot_are_named_and_not_followed() {
    let bed = Bed::new();
    assert_eq!(read(&bed.places, SHORT).unwrap().consistency, Consistency::Consistent);
    for linked in ["overlay-images", "overlay", "overlay-containers/c1/userdata", "overlay-containers/c1"] {
        let bed = Bed::new();
        let elsewhere = bed.dir.path().join("elsewhere");
        std::fs::rename(bed.at(linked), &elsewhere).unwrap();
        std::fs::create_dir(elsewhere.join("stray")).unwrap();
        symlink(&elsewhere, bed.at(linked)).unwrap();
        let snapshot = read(&bed.places, SHORT).unwrap();
        assert_eq!(snapshot.consistency, Consistency::Damaged, "{linked}");
        let named = format!("{} is a symlink; not followed", bed.at(linked).display());
        let said = |finding: &Finding| finding.incomplete && finding.message.contains(&named);
        assert!(snapshot.findings.iter().any(said), "{linked}: {:?}", snapshot.findings);
        assert!(snapshot.listing.values().flatten().all(|entry| entry.name != "stray"), "{linked}");
    }
}
