//! The run of containers and logs, told to the records and whoever watches.

use super::recording::Recording;
use crate::execute::containers::{Deletion, Doomed, Kind, Witness};
use crate::execute::measure::Ended;
use crate::history::runs;
use crate::policy::containers::Reason;
use crate::report::text::safe;

impl Witness for Recording<'_> {
    fn begins(&mut self, doomed: &Doomed) {
        let name = safe(doomed.names.first().unwrap_or(&doomed.id));
        let deletion = self.entry(doomed);
        self.says(&format!("{} {name}", doomed.kind.as_str()), deletion);
        let predicted_bytes = doomed.predicted_bytes();
        tracing::info!(id = doomed.id, predicted_bytes, "deleting {} {name}", doomed.kind.as_str());
    }

    fn gone(&mut self, doomed: &Doomed) {
        let deletion = self.entry(doomed);
        self.has_gone(deletion);
    }

    fn deleted(&mut self, deletion: &Deletion) {
        let Deletion { doomed, measured_bytes, .. } = deletion;
        tracing::info!(id = doomed.id, predicted_bytes = doomed.predicted_bytes(), measured_bytes, "deleted");
        let measured_bytes = (deletion.ended != Ended::Signal).then_some(*measured_bytes);
        self.has_come(measured_bytes, deletion.usage_after_percent);
    }

    fn spared(&mut self, _: &Doomed) {
        self.was_spared();
    }

    fn unproven(&mut self, _: &Doomed, message: &str) {
        self.is_unknown(message);
    }

    fn refused(&mut self, doomed: &Doomed, message: &str) {
        let deletion = runs::Deletion { error: Some(message.to_owned()), ..self.entry(doomed) };
        self.was_refused(deletion);
    }
}

impl Recording<'_> {
    fn entry(&self, doomed: &Doomed) -> runs::Deletion {
        runs::Deletion {
            at: self.now(),
            kind: match doomed.kind {
                Kind::Container => runs::Kind::Container,
                Kind::Sandbox => runs::Kind::Sandbox,
                Kind::Log => runs::Kind::Log,
            },
            store: match doomed.kind {
                Kind::Log => String::new(),
                Kind::Container | Kind::Sandbox => self.runtime_store(),
            },
            id: doomed.id.clone(),
            names: doomed.names.clone(),
            reason: reason(doomed.reason),
            predicted_bytes: doomed.predicted_bytes(),
            measured_bytes: None,
            byproduct_bytes: 0,
            usage_after_percent: None,
            error: None,
            outcome: runs::Certainty::Seen,
        }
    }
}

fn reason(reason: Reason) -> runs::Reason {
    match reason.as_str() {
        "age" => runs::Reason::Age,
        _ => runs::Reason::Limit,
    }
}
