//! The `layersweep` program. Its code is in the library.

use std::process::ExitCode;

fn main() -> ExitCode {
    layersweep::cli::main()
}
