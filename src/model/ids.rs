//! Typed positions in the tables of an [`Inventory`](super::Inventory).
//!
//! A position is only meaningful for the inventory that it was made for; it is
//! never stored or shown.

macro_rules! index {
    ($(#[$doc:meta])* $name:ident) => {
        $(#[$doc])*
        #[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
        pub struct $name(u32);

        impl $name {
            /// The position as a table index.
            #[must_use]
            pub fn get(self) -> usize {
                self.0 as usize
            }
        }

        impl From<usize> for $name {
            /// # Panics
            /// On more than 2^32 - 1 entries, which no store can hold in memory.
            fn from(at: usize) -> Self {
                Self(u32::try_from(at).expect("an inventory table has fewer than 2^32 entries"))
            }
        }
    };
}

index!(
    /// Position in [`Inventory::filesystems`](super::Inventory::filesystems).
    FilesystemIx
);
index!(
    /// Position in [`Inventory::stores`](super::Inventory::stores).
    StoreIx
);
index!(
    /// Position in [`Inventory::nodes`](super::Inventory::nodes).
    NodeIx
);
index!(
    /// Position in [`Inventory::images`](super::Inventory::images).
    ImageIx
);
index!(
    /// Position in [`Inventory::containers`](super::Inventory::containers).
    ContainerIx
);
index!(
    /// Position in [`Inventory::leaks`](super::Inventory::leaks).
    LeakIx
);
