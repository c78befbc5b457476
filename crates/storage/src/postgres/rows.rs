//! Reads the columns of rows.

use tokio_postgres::Row;
use tokio_postgres::types::FromSql;

use super::error::PostgresError;

/// Key and value of a row; without the value if it was not read.
pub(super) fn pair(row: &Row, has_value: bool) -> Result<(Vec<u8>, Vec<u8>), PostgresError> {
    Ok((column(row, 0)?, if has_value { column(row, 1)? } else { Vec::new() }))
}

/// A column of a row, counted from 0.
pub(super) fn column<'a, T: FromSql<'a>>(row: &'a Row, at: usize) -> Result<T, PostgresError> {
    row.try_get(at).map_err(|error| PostgresError::Bug(error.to_string()))
}
