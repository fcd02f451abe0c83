//! Ids and positions. An id is the same in every scan; it is stored and printed. A position refers to a table of
//! one [`Inventory`](super::Inventory) and has no meaning in another.

use std::borrow::Borrow;
use std::fmt;
use std::ops::Deref;
use std::sync::Arc;

use serde::{Deserialize, Deserializer, Serialize, Serializer};

use crate::model::text::names::string_schema;

macro_rules! id {
    ($(#[$doc:meta])* $name:ident) => {
        $(#[$doc])*
        #[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
        pub struct $name(Arc<str>);

        impl $name {
            /// The id as records and listings spell it.
            #[must_use]
            pub fn as_str(&self) -> &str {
                &self.0
            }
        }

        impl Deref for $name {
            type Target = str;

            fn deref(&self) -> &str {
                &self.0
            }
        }

        impl Borrow<str> for $name {
            fn borrow(&self) -> &str {
                &self.0
            }
        }

        impl AsRef<str> for $name {
            fn as_ref(&self) -> &str {
                &self.0
            }
        }

        impl fmt::Display for $name {
            fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
                f.pad(&self.0)
            }
        }

        impl From<&str> for $name {
            fn from(id: &str) -> Self {
                Self(id.into())
            }
        }

        impl From<String> for $name {
            fn from(id: String) -> Self {
                Self(id.into())
            }
        }

        impl PartialEq<str> for $name {
            fn eq(&self, other: &str) -> bool {
                &*self.0 == other
            }
        }

        impl PartialEq<&str> for $name {
            fn eq(&self, other: &&str) -> bool {
                &*self.0 == *other
            }
        }

        impl PartialEq<String> for $name {
            fn eq(&self, other: &String) -> bool {
                &*self.0 == other.as_str()
            }
        }

        impl Serialize for $name {
            fn serialize<S: Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
                serializer.serialize_str(&self.0)
            }
        }

        impl<'de> Deserialize<'de> for $name {
            fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
                String::deserialize(deserializer).map(Self::from)
            }
        }

        string_schema!($name);
    };
}

id!(
    /// Id of an image in its store: for almost every image the hex digest of its configuration.
    ImageId
);

impl ImageId {
    /// Returns the containerd namespace if it is not CRI's: outside `k8s.io`, our ids begin with the namespace.
    #[must_use]
    pub fn namespace(&self) -> Option<&str> {
        self.split_once('/').map(|(namespace, _)| namespace)
    }
}

id!(
    /// Id of a layer of containers/storage, a snapshot or a blob in its store.
    LayerId
);
id!(
    /// Id of a container in its store or runtime.
    ContainerId
);

macro_rules! index {
    ($(#[$doc:meta])* $name:ident) => {
        $(#[$doc])*
        #[derive(
            Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash, serde::Serialize, serde::Deserialize,
        )]
        pub struct $name(u32);

        impl $name {
            /// Returns the position as a table index.
            #[must_use]
            pub fn get(self) -> usize {
                self.0 as usize
            }
        }

        impl From<usize> for $name {
            /// # Panics
            /// If there are more than 2^32 - 1 entries, which do not fit into memory.
            fn from(position: usize) -> Self {
                Self(u32::try_from(position).expect("an inventory table has fewer than 2^32 entries"))
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
