//! Enums whose variants have a fixed name in documents and records.

/// Defines an enum with `ALL`, `as_str`, `Display` and serde by the given names. The schemas do not list the names.
macro_rules! names {
    ($(#[$meta:meta])* $name:ident { $($variants:tt)+ }) => {
        crate::model::text::names::listed_names! { $(#[$meta])* $name { $($variants)+ } }
        crate::model::text::names::string_schema!($name);
    };
}

/// Defines the same for an enum with its own schema.
macro_rules! listed_names {
    ($(#[$meta:meta])* $name:ident { $($(#[$doc:meta])* $variant:ident = $text:literal,)+ }) => {
        $(#[$meta])*
        #[derive(
            Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash, serde::Serialize, serde::Deserialize,
        )]
        pub enum $name {
            $($(#[$doc])* #[serde(rename = $text)] $variant,)+
        }

        impl $name {
            pub const ALL: &[Self] = &[$(Self::$variant,)+];

            /// Returns the name in documents and records.
            #[must_use]
            pub fn as_str(self) -> &'static str {
                match self {
                    $(Self::$variant => $text,)+
                }
            }
        }

        impl std::fmt::Display for $name {
            fn fmt(&self, to: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
                to.write_str(self.as_str())
            }
        }
    };
}

/// Makes a name or id a string in the schemas of documents (`docs/schema/`).
macro_rules! string_schema {
    ($name:ident) => {
        #[cfg(test)]
        impl schemars::JsonSchema for $name {
            fn inline_schema() -> bool {
                true
            }

            fn schema_name() -> std::borrow::Cow<'static, str> {
                stringify!($name).into()
            }

            fn json_schema(generator: &mut schemars::SchemaGenerator) -> schemars::Schema {
                String::json_schema(generator)
            }
        }
    };
}

pub(crate) use {listed_names, names, string_schema};
