//! `explain`: shows all facts about an image, layer, container, leak or path.

use std::path::{Path, PathBuf};

use serde::Serialize;

use super::path_usage::{self, Owned};
use crate::config::Config;
use crate::cri::Options;
use crate::execute::containers::Scope;
use crate::execute::cri::CriRemover;
use crate::history::story::Story;
use crate::model::rules::{Rule, Ruling};
use crate::model::text::display::{alternatives, shell_word};
use crate::model::text::names::names;
use crate::model::{
    Consistency, Image, ImageIx, LostContainer, NodeKind, Plan, PrintedCommand, StoreIx, Volume,
};
use crate::policy::Policy;
use crate::policy::image_rules::ImageRule;
use crate::services::containers::Containers;
use crate::services::diagnosis::{self, StoppedHolders};
use crate::services::error::Error;
use crate::services::observer::{Audience, Observer};
use crate::services::paths::owners_store;
use crate::services::policy_context;
use crate::services::reach::Reach;
use crate::services::request::Request;
use crate::services::runtime;
use crate::services::scan::{self, ScanOptions, ScanResult};
use crate::services::state::{self, Purpose};
use crate::stores::Scan;
use crate::stores::lookup::{self, Subject};

#[derive(Debug)]
pub struct Explanation {
    pub result: ScanResult,
    /// The object; `None` for the path of a store or of a file outside the stores.
    pub subject: Option<Subject>,
    pub owned: Option<Owned>,
    /// The container, if only podman's database knows it.
    pub lost_container: Option<LostContainer>,
    pub image: Option<ImageExplanation>,
    /// Plan of a collection, if the object is a container and a runtime answered.
    pub containers: Option<Plan>,
    /// Other images that the records know by the reference; the latest first. Without an object, the answer.
    pub absent: Vec<AbsentImage>,
    pub volume: Option<VolumeExplanation>,
    /// Command for the container, if it does not run.
    pub removal: Option<PrintedCommand>,
    /// Stopped containers that alone use the image, or the stopped container.
    pub stopped: StoppedHolders,
}

impl Explanation {
    fn of(result: ScanResult) -> Self {
        Self {
            result,
            subject: None,
            owned: None,
            lost_container: None,
            image: None,
            containers: None,
            absent: Vec::new(),
            volume: None,
            removal: None,
            stopped: StoppedHolders::default(),
        }
    }
}

/// Volume of podman or Docker.
#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
#[cfg_attr(test, derive(schemars::JsonSchema), schemars(rename = "VolumeDoc"))]
pub struct VolumeExplanation {
    /// Name for `podman volume` or `docker volume`.
    pub name: String,
    /// Program that made it: `podman` or `docker`.
    pub owner: &'static str,
    /// Names of the containers that use it.
    pub containers: Vec<String>,
    /// Command that shows it.
    pub command: PrintedCommand,
}

/// An image of the records that the reference does not name now.
#[derive(Debug)]
pub struct AbsentImage {
    pub story: Story,
    pub presence: Presence,
    pub names_now: Vec<String>,
}

impl AbsentImage {
    fn find(scan: &Scan, story: Story) -> Self {
        let mut stores = (0..scan.inventory.stores.len()).map(StoreIx::from);
        let store_ix = stores.find(|store_ix| state::recorded_store(scan, *store_ix) == story.store);
        let image_ix = store_ix.and_then(|store_ix| scan.inventory.find_image(store_ix, &story.image_id));
        let (presence, names_now) = match (image_ix, store_ix) {
            (Some(image_ix), _) => (Presence::Renamed, scan.inventory[image_ix].names.clone()),
            (None, Some(store_ix)) if scan.inventory[store_ix].consistency == Consistency::Consistent => {
                (Presence::Absent, Vec::new())
            }
            (None, _) => (Presence::Recorded, Vec::new()),
        };
        Self { story, presence, names_now }
    }
}

names! {
    Presence {
        /// The store was read in full and does not have it.
        Absent = "absent",
        /// It is there, with other names.
        Renamed = "renamed",
        /// Its store was not read in full.
        Recorded = "recorded",
    }
}

#[derive(Debug)]
pub struct ImageExplanation {
    /// Stays of the image in the store, with the present one if that is recorded.
    pub story: Story,
    pub limits: AgeLimits,
    pub rulings: Vec<Ruling>,
    pub plan: Plan,
    pub reach: Reach,
}

/// Ages that the configuration sets for an image.
#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
#[cfg_attr(test, derive(schemars::JsonSchema), schemars(rename = "AgeLimitsDoc"))]
pub struct AgeLimits {
    /// Minimum time since its first detection.
    pub min_age_seconds: i64,
    /// The `[[images.rule]]` that sets it, with its file and line; null if `images.min_age` does.
    pub min_age_rule: Option<String>,
    /// Maximum idle time; null if it is not deleted by age.
    pub max_age_seconds: Option<i64>,
    /// The `[[images.rule]]` that sets it, with its file and line; null if `images.max_age` does.
    pub max_age_rule: Option<String>,
}

impl AgeLimits {
    fn of(policy: &Policy, image: &Image) -> Self {
        let (min_age, max_age) = (policy.min_age_of(image), policy.max_age_of(image));
        Self {
            min_age_seconds: min_age.value.as_secs(),
            min_age_rule: min_age.rule.map(ImageRule::title),
            max_age_seconds: max_age.value.map(|age| age.as_secs()),
            max_age_rule: max_age.rule.map(ImageRule::title),
        }
    }
}

/// Explains the object or path that `reference` names. With `store`, the root of a store, it names an object of that
/// store only.
///
/// # Errors
/// When it names no object or several, a path does not exist, or the stores or the database cannot be read.
pub fn explain(
    request: &Request,
    observer: &dyn Observer,
    config: &Config,
    reference: &str,
    store: Option<&Path>,
) -> Result<Explanation, Error> {
    let (mut result, subject, owned) = if lookup::is_path(reference) {
        by_path(request, observer, config, Path::new(reference))?
    } else {
        let result =
            scan::scan_with(request, observer, Purpose::Look, false, ScanOptions::for_policy(config))?;
        match lookup::look_up(&result.scan, reference, store) {
            Ok(subject) => (result, Some(subject), None),
            Err(unknown @ lookup::LookupError::Unknown { .. }) => {
                if let Some(lost) = lookup::lost_container(&result.scan, reference).cloned() {
                    return Ok(Explanation { lost_container: Some(lost), ..Explanation::of(result) });
                }
                match volume_path(&result.scan, reference) {
                    Some(path) => by_path(request, observer, config, &path)?,
                    None => return absent(result, reference, unknown),
                }
            }
            Err(error) => {
                let hint = match &error {
                    lookup::LookupError::Ambiguous { words, .. } => {
                        let commands = words.iter().map(|words| format!("`layersweep explain {words}`"));
                        Some(format!("use {}", alternatives(&commands.collect::<Vec<_>>())))
                    }
                    _ => None,
                };
                let error = Error::from(error);
                return Err(if let Some(hint) = hint { error.hint(hint) } else { error });
            }
        }
    };
    let image = match subject {
        Some(Subject::Image(image_ix)) => {
            let story = result.state.story(&result.scan, image_ix)?;
            let reach = Reach::find(request, config, &mut result);
            let (mut rulings, plan) =
                policy_context::judge(request, observer, config, (&result, &reach.facts), image_ix)?;
            let reachable =
                rulings.iter_mut().find(|ruling| ruling.rule == Rule::OutOfReach && !ruling.keeps);
            if let Some(reachable) = reachable {
                reachable.detail = match reach.refused() {
                    Some(why) => format!("removable once gc can run; now it would be refused: {why}"),
                    None => format!("removable: {}", reach.way(result.scan.inventory[image_ix].store)),
                };
            }
            let limits = AgeLimits::of(&config.images, &result.scan.inventory[image_ix]);
            Some(ImageExplanation { story, limits, rulings, plan, reach })
        }
        _ => None,
    };
    let containers = match subject {
        Some(Subject::Container(_)) => containers(request, config, &result.scan),
        _ => None,
    };
    let absent = match subject {
        Some(Subject::Image(image_ix)) => namesakes(&result, reference, image_ix)?,
        _ => Vec::new(),
    };
    let volume = owned.as_ref().and_then(|owned| volume(&result.scan, Path::new(&owned.path)));
    // The measured path is the volume itself, or inside it; the node of the store is the directory of all volumes.
    let subject = subject.filter(|subject| volume.is_none() || !is_of_volumes(&result.scan, *subject));
    let removal = match subject {
        Some(Subject::Container(container_ix)) => diagnosis::removal_of(&result.scan, container_ix),
        _ => None,
    };
    let stopped = stopped(&result.scan, subject);
    Ok(Explanation {
        subject,
        owned,
        image,
        containers,
        absent,
        volume,
        removal,
        stopped,
        ..Explanation::of(result)
    })
}

/// Returns the stopped containers that alone use an image, or the container if it is stopped.
fn stopped(scan: &Scan, subject: Option<Subject>) -> StoppedHolders {
    let holders = match subject {
        Some(Subject::Image(image_ix)) => {
            let containers = scan.inventory.containers.iter().enumerate();
            let users = containers.filter(|(_, container)| container.uses(image_ix));
            let users: Vec<_> = users.map(|(position, _)| position.into()).collect();
            let holders = StoppedHolders::of(scan, &users);
            let image = &scan.inventory[image_ix];
            let store = scan.inventory[image.store].root.to_string_lossy();
            Some(holders).filter(|holders| holders.keeps(&store, &image.id))
        }
        Some(Subject::Container(container_ix)) => Some(StoppedHolders::of(scan, &[container_ix])),
        _ => None,
    };
    holders.unwrap_or_default()
}

fn by_path(
    request: &Request,
    observer: &dyn Observer,
    config: &Config,
    path: &Path,
) -> Result<(ScanResult, Option<Subject>, Option<Owned>), Error> {
    let options = ScanOptions { trees: true, ..ScanOptions::for_policy(config) };
    let mut result = scan::scan_with(request, observer, Purpose::Look, false, options)?;
    let located = lookup::locate(&result.scan, path)?;
    let subject = lookup::at_path(&result.scan, &located);
    let (owned, findings) = path_usage::owners(request, observer, config, &result.scan, &located);
    observer.findings(Audience::Usual, &findings);
    result.scan.inventory.findings.extend(findings);
    Ok((result, subject, Some(owned)))
}

fn volume_path(scan: &Scan, name: &str) -> Option<PathBuf> {
    let mut stores = scan.inventory.volumes.iter();
    stores.find_map(|(store, volumes)| {
        let volume = volumes.iter().find(|volume| volume.name == name)?;
        let graphroot = PathBuf::from(scan.sysroot.shown(&scan.inventory[*store].root));
        Some(volume_directory(scan, *store, volume).unwrap_or_else(|| graphroot.join("volumes").join(name)))
    })
}

/// Returns the directory of the layer that has the data of a volume of the driver `image`.
fn volume_directory(scan: &Scan, store: StoreIx, volume: &Volume) -> Option<PathBuf> {
    let kept_by = volume.kept_by.as_ref()?;
    let inventory = &scan.inventory;
    let mut containers = inventory.containers.iter().filter(|container| container.store == store);
    let container = containers.find(|container| container.id == *kept_by)?;
    let layer = container.holds.iter().map(|node| &inventory[*node]).find(|node| node.layer.is_some())?;
    Some(PathBuf::from(scan.sysroot.shown(&layer.path)))
}

fn volume(scan: &Scan, path: &Path) -> Option<VolumeExplanation> {
    scan.inventory.volumes.iter().find_map(|(store, volumes)| {
        let graphroot = PathBuf::from(scan.sysroot.shown(&scan.inventory[*store].root));
        let below = path.strip_prefix(graphroot.join("volumes")).ok();
        let name = below.and_then(|below| below.iter().next());
        let volume = volumes.iter().find(|volume| {
            name.is_some_and(|name| name == volume.name.as_str())
                || volume_directory(scan, *store, volume).is_some_and(|directory| path.starts_with(directory))
        });
        let Volume { name, containers, .. } = volume?.clone();
        let tool = scan.inventory[*store].kind.facts().tool;
        let owner = tool.unwrap_or("podman");
        let tool = tool.map_or_else(|| owners_store(scan, *store).tool("podman"), str::to_owned);
        let shown = if scan.inventory.out_of_tool.contains_key(store) {
            let directory = scan.inventory[*store].root.join("volumes").join(&name);
            format!("ls -l {}", shell_word(&scan.sysroot.shown(&directory)))
        } else {
            format!("{tool} volume inspect {}", shell_word(&name))
        };
        let command = PrintedCommand::Shows(shown);
        Some(VolumeExplanation { name, owner, containers, command })
    })
}

/// Returns true if an object is the directory of all volumes of a store, or data in it that belongs to no object.
fn is_of_volumes(scan: &Scan, subject: Subject) -> bool {
    let Subject::Node(node) = subject else { return false };
    let node = &scan.inventory[node];
    node.kind == NodeKind::Other && node.path.starts_with(scan.inventory[node.store].root.join("volumes"))
}

fn namesakes(result: &ScanResult, reference: &str, image_ix: ImageIx) -> Result<Vec<AbsentImage>, Error> {
    let (id, stories) = (&result.scan.inventory[image_ix].id, result.state.stories(reference)?);
    let others =
        stories.into_iter().filter(|story| story.image_id != id.as_str() && story.meant_name.is_some());
    Ok(others.map(|story| AbsentImage::find(&result.scan, story)).collect())
}

/// Explains a reference that names nothing in the stores, from the records.
///
/// # Errors
/// `unknown` if the records do not know it either.
fn absent(result: ScanResult, reference: &str, unknown: lookup::LookupError) -> Result<Explanation, Error> {
    let stories = result.state.stories(reference)?;
    if stories.is_empty() {
        let records = result.state.directory.dir.display();
        let known = if result.state.is_new {
            format!("there are no records in {records}, so deleted images are unknown")
        } else {
            format!("the records in {records} do not know a deleted image of that name")
        };
        let listed = "`layersweep images` and `layersweep layers` list what exists";
        let path = "a path begins with / or ./";
        return Err(Error::from(unknown).hint(format!("{known}; {listed}; {path}")));
    }
    let absent = stories.into_iter().map(|story| AbsentImage::find(&result.scan, story));
    Ok(Explanation { absent: absent.collect(), ..Explanation::of(result) })
}

/// Plans a collection of containers. Returns `None` if no runtime answers: only the runtime knows the state of a
/// container and when it exited.
fn containers(request: &Request, config: &Config, scan: &Scan) -> Option<Plan> {
    if request.sysroot.is_some() {
        return None;
    }
    let client = runtime::connect(request, &Options::default().probing()).ok()?;
    let stores = request.stores().ok()?;
    let scope = Scope { containers: true, logs: false };
    let plan = CriRemover::new(client)
        .and_then(|remover| Containers::of(config, scope).by(&remover, &stores).plan(scan));
    plan.map_err(|error| tracing::info!("whether gc would delete it is unknown: {error}")).ok()
}
