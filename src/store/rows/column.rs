//! One column of a row.

use sqlx::sqlite::SqliteRow;
use sqlx::{Decode, Row as _, Sqlite, Type};

use crate::store::{StoreError, StoreResult};

/// The error of a row that cannot be read.
pub(in crate::store) fn corrupt(what: &str) -> StoreError {
    StoreError::Corrupt(what.to_owned())
}

/// The value of a column.
pub(in crate::store) fn get<'r, T>(row: &'r SqliteRow, column: usize) -> StoreResult<T>
where
    T: Decode<'r, Sqlite> + Type<Sqlite>,
{
    row.try_get(column).map_err(StoreError::from)
}

/// An integer column, if the value fits the type.
pub(in crate::store) fn int<T: TryFrom<i64>>(row: &SqliteRow, column: usize) -> StoreResult<T> {
    T::try_from(get::<i64>(row, column)?).map_err(|_| corrupt("a number is out of range"))
}
