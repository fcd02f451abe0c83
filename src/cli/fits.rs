//! `layersweep fits REF|FILE…`

use std::io::Read as _;
use std::path::Path;

use super::global::Global;
use crate::app::fits;
use crate::cli::input::args::FitsArgs;
use crate::cli::screen::output;
use crate::config::Config;
use crate::model::text::reference;
use crate::node::image_lists::{self, WantedImage};
use crate::report::{json, text};
use crate::services::error::{Error, Exit};

/// Maximum size of a file. A release with 200 images has manifests of some 500 KiB.
const MOST_BYTES: u64 = 64 << 20;

pub(super) fn run(global: &Global, config: &Config, args: &FitsArgs) -> Result<Exit, Error> {
    let mut wanted = Vec::new();
    for argument in &args.images {
        wanted.extend(images(argument)?);
    }
    let found = fits::fits(&global.request, global, config, wanted)?;
    let document = json::fits(&found, config.images.targets.used);
    output::result(global.format, &document, text::fits)?;
    Ok(found.exit())
}

/// Returns the images that an argument names: a file that exists, `-` for standard input, or a reference.
fn images(argument: &str) -> Result<Vec<WantedImage>, Error> {
    if argument == "-" {
        return parse("standard input", read(std::io::stdin().lock(), "standard input")?);
    }
    let path = Path::new(argument);
    let kind = path.metadata().map(|found| found.file_type());
    if kind.as_ref().is_ok_and(|kind| kind.is_file()) {
        let file = std::fs::File::open(path).map_err(|error| bad(argument, &error.to_string()))?;
        return parse(argument, read(file, argument)?);
    }
    match kind {
        Ok(kind) if kind.is_dir() => return Err(bad(argument, "it is a directory")),
        Ok(_) => return Err(bad(argument, "it is not a regular file; `-` reads from standard input")),
        Err(error) if argument.starts_with(['/', '.']) => return Err(bad(argument, &error.to_string())),
        Err(_) => {}
    }
    let reference = reference::checked(argument).map_err(|why| bad(argument, why))?;
    Ok(vec![WantedImage {
        no_such_file: reference::host(reference).is_none(),
        ..WantedImage::named(reference)
    }])
}

fn read(source: impl std::io::Read, name: &str) -> Result<String, Error> {
    let mut text = String::new();
    let length = source.take(MOST_BYTES + 1).read_to_string(&mut text);
    if length.map_err(|error| bad(name, &error.to_string()))? as u64 > MOST_BYTES {
        Err(bad(name, "it is larger than 64 MiB"))
    } else {
        Ok(text)
    }
}

fn parse(name: &str, text: String) -> Result<Vec<WantedImage>, Error> {
    image_lists::parse(name, &text).map_err(|why| bad(name, &why))
}

fn bad(name: &str, why: &str) -> Error {
    Error::usage(format!("{name}: {why}")).hint(
        "give manifests (skopeo inspect --raw docker://IMAGE), a list with one reference a line, a PinnedImageSet or an \
         ImageStream",
    )
}
