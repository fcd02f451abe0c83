//! Values on their way in and out of SQLite.

use jiff::Timestamp;
use rusqlite::types::Type;

use crate::model::path_text;
use crate::model::plan::{Reason, TargetKind};
use crate::model::{OutcomeKind, StoreId, StoreKind};

/// Microseconds since 1970, as all times are stored.
pub(super) fn micros(at: Timestamp) -> i64 {
    at.as_microsecond()
}

/// The time in `column`.
pub(super) fn time(row: &rusqlite::Row<'_>, column: &str) -> rusqlite::Result<Timestamp> {
    moment(row.get(column)?)
}

/// The time in `column`, where there is one.
pub(super) fn maybe_time(row: &rusqlite::Row<'_>, column: &str) -> rusqlite::Result<Option<Timestamp>> {
    row.get::<_, Option<i64>>(column)?.map(moment).transpose()
}

/// A stored time.
pub(super) fn moment(micros: i64) -> rusqlite::Result<Timestamp> {
    Timestamp::from_microsecond(micros)
        .map_err(|error| rusqlite::Error::FromSqlConversionFailure(0, Type::Integer, error.into()))
}

/// SQLite's integers have a sign; nothing here comes near their end.
pub(super) fn signed(number: impl TryInto<i64>) -> i64 {
    number.try_into().unwrap_or(i64::MAX)
}

/// The number in `column`, never below 0.
pub(super) fn unsigned(row: &rusqlite::Row<'_>, column: &str) -> rusqlite::Result<u64> {
    Ok(u64::try_from(row.get::<_, i64>(column)?).unwrap_or(0))
}

/// The number in `column`, where there is one.
pub(super) fn maybe_unsigned(row: &rusqlite::Row<'_>, column: &str) -> rusqlite::Result<Option<u64>> {
    Ok(row.get::<_, Option<i64>>(column)?.map(|number| u64::try_from(number).unwrap_or(0)))
}

/// The store in the columns `kind` (by whatever name), `root` and `driver`.
pub(super) fn store(row: &rusqlite::Row<'_>, kind: &str) -> rusqlite::Result<StoreId> {
    let root: String = row.get("root")?;
    Ok(StoreId::new(row.get(kind)?, path_text::from_text(&root), row.get("driver")?))
}

/// A value as JSON.
pub(super) fn json(value: &impl serde::Serialize) -> rusqlite::Result<String> {
    serde_json::to_string(value).map_err(|error| rusqlite::Error::ToSqlConversionFailure(error.into()))
}

/// The value whose JSON is in `column`.
pub(super) fn from_json<T: serde::de::DeserializeOwned>(
    row: &rusqlite::Row<'_>,
    column: &str,
) -> rusqlite::Result<T> {
    serde_json::from_str(row.get_ref(column)?.as_str()?).map_err(damaged)
}

/// What does not read as what it should be.
pub(super) fn damaged(what: impl Into<Box<dyn std::error::Error + Send + Sync>>) -> rusqlite::Error {
    rusqlite::Error::FromSqlConversionFailure(0, Type::Text, what.into())
}

/// Stores an enum of the model by its name.
macro_rules! by_name {
    ($name:ident) => {
        impl rusqlite::ToSql for $name {
            fn to_sql(&self) -> rusqlite::Result<rusqlite::types::ToSqlOutput<'_>> {
                Ok(self.as_str().into())
            }
        }

        impl rusqlite::types::FromSql for $name {
            fn column_result(value: rusqlite::types::ValueRef<'_>) -> rusqlite::types::FromSqlResult<Self> {
                let text = value.as_str()?;
                let known = Self::ALL.iter().copied().find(|one| one.as_str() == text);
                let unknown = || format!("{text:?} is not a {}", stringify!($name)).into();
                known.ok_or_else(|| rusqlite::types::FromSqlError::Other(unknown()))
            }
        }
    };
}

by_name!(OutcomeKind);
by_name!(Reason);
by_name!(StoreKind);
by_name!(TargetKind);

pub(super) use by_name;
