//! Conversion of values to and from SQLite.

use jiff::Timestamp;
use rusqlite::types::Type;

use crate::model::deletion::plan::{Reason, TargetKind};
use crate::model::text::path_text;
use crate::model::{OutcomeKind, StoreId, StoreKind};

/// Converts a time to its stored form, microseconds since 1970.
pub(super) fn micros(time: Timestamp) -> i64 {
    time.as_microsecond()
}

pub(super) fn time(row: &rusqlite::Row<'_>, column: &str) -> rusqlite::Result<Timestamp> {
    moment(row.get(column)?)
}

/// Reads the time in `column`, which may be NULL.
pub(super) fn maybe_time(row: &rusqlite::Row<'_>, column: &str) -> rusqlite::Result<Option<Timestamp>> {
    row.get::<_, Option<i64>>(column)?.map(moment).transpose()
}

pub(super) fn moment(micros: i64) -> rusqlite::Result<Timestamp> {
    Timestamp::from_microsecond(micros)
        .map_err(|error| rusqlite::Error::FromSqlConversionFailure(0, Type::Integer, error.into()))
}

/// Converts a number to SQLite's signed integer. No value here exceeds its range.
pub(super) fn signed(number: impl TryInto<i64>) -> i64 {
    number.try_into().unwrap_or(i64::MAX)
}

/// Reads the number in `column`; a negative number counts as 0.
pub(super) fn unsigned(row: &rusqlite::Row<'_>, column: &str) -> rusqlite::Result<u64> {
    Ok(u64::try_from(row.get::<_, i64>(column)?).unwrap_or(0))
}

/// Reads the number in `column`, which may be NULL.
pub(super) fn maybe_unsigned(row: &rusqlite::Row<'_>, column: &str) -> rusqlite::Result<Option<u64>> {
    Ok(row.get::<_, Option<i64>>(column)?.map(|number| u64::try_from(number).unwrap_or(0)))
}

/// Reads the store in the columns `root` and `driver` and the column of its kind, which is named `kind`.
pub(super) fn store(row: &rusqlite::Row<'_>, kind: &str) -> rusqlite::Result<StoreId> {
    let root: String = row.get("root")?;
    Ok(StoreId::new(row.get(kind)?, path_text::from_text(&root), row.get("driver")?))
}

pub(super) fn json(value: &impl serde::Serialize) -> rusqlite::Result<String> {
    serde_json::to_string(value).map_err(|error| rusqlite::Error::ToSqlConversionFailure(error.into()))
}

pub(super) fn from_json<T: serde::de::DeserializeOwned>(
    row: &rusqlite::Row<'_>,
    column: &str,
) -> rusqlite::Result<T> {
    serde_json::from_str(row.get_ref(column)?.as_str()?).map_err(damaged)
}

pub(super) fn damaged(cause: impl Into<Box<dyn std::error::Error + Send + Sync>>) -> rusqlite::Error {
    rusqlite::Error::FromSqlConversionFailure(0, Type::Text, cause.into())
}

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
                Self::ALL.iter().copied().find(|variant| variant.as_str() == text).ok_or_else(|| {
                    let message = format!("{text:?} is not a {}", stringify!($name));
                    rusqlite::types::FromSqlError::Other(message.into())
                })
            }
        }
    };
}

by_name!(OutcomeKind);
by_name!(Reason);
by_name!(StoreKind);
by_name!(TargetKind);

pub(super) use by_name;
