//! Facts about images from outside the disk and the runtime.

use jiff::Timestamp;

use crate::model::Inventory;
use crate::policy::{Ages, ExternalFacts};

/// Ages, pins and the like, whatever inventory the images are in: each look at the disk makes a new
/// one.
pub trait PolicyContext {
    /// One entry an image, in the order of the inventory.
    fn ages(&self, inventory: &Inventory) -> Vec<Ages>;
    /// Likewise.
    fn known(&self, inventory: &Inventory) -> Vec<ExternalFacts>;
    /// Reads afresh all that [`Self::known`] goes by, or begins to, while the disk is read. What comes of it
    /// answers for any inventory: between the last look at the disk and a removal there is no time for
    /// reading files.
    fn read_facts(&self) -> FactsOf<'_> {
        Box::new(|inventory| self.known(inventory))
    }
    /// The present on the time line that [`Self::ages`] are on, which need not be that of the
    /// wall clock.
    fn now(&self) -> Timestamp;
    /// When the scan began that the run goes by, on the same time line.
    fn scanned(&self) -> Timestamp;
}

/// What [`PolicyContext::known`] says of the images of an inventory.
pub type FactsOf<'a> = Box<dyn Fn(&Inventory) -> Vec<ExternalFacts> + 'a>;
