//! Creates the tables, and checks that the database belongs to this data folder.
//!
//! Every statement runs alone and may run again, so several nodes can start at once. There are no migrations: an older
//! layout is refused.

use super::connection::{Connection, Request, column, pair};
use super::error::{PostgresError, PostgresOpenError};
use super::statements::{self, OWN_TABLES, Order};
use crate::meta::{LAYOUT_KEY, Layout, PEPPER_CHECK_KEY, meta};
use crate::pepper::Pepper;
use crate::redb::migrations::LAYOUT;
use crate::tables;

/// Attempts to create tables of which none creates one.
const FRUITLESS_ATTEMPTS: usize = 3;

/// Creates all tables that do not exist yet.
///
/// # Errors
/// If the user may not create tables. The operator can create them instead.
pub async fn create_tables(connection: &mut Connection) -> Result<(), PostgresError> {
    let (mut fewest, mut fruitless) = (usize::MAX, 0);
    loop {
        let missing = missing(connection).await?;
        fruitless = if missing.len() < fewest { 0 } else { fruitless + 1 };
        fewest = fewest.min(missing.len());
        let Err(error) = create(connection, &missing).await else { break };
        // PostgreSQL reports a creation of the same table by another session in several ways.
        let may_pass = matches!(error, PostgresError::Conflict(_) | PostgresError::Bug(_));
        if !may_pass || fruitless == FRUITLESS_ATTEMPTS {
            return Err(explain(error));
        }
    }
    connection.run_one(Request::count(statements::ADD_REGISTRATION, Vec::new())).await?;
    Ok(())
}

async fn missing(connection: &mut Connection) -> Result<Vec<&'static str>, PostgresError> {
    let existing = existing(connection).await?;
    let all = tables::ALL.iter().map(|table| table.name()).chain(OWN_TABLES.iter().copied());
    Ok(all.filter(|name| !existing.iter().any(|known| known == name)).collect())
}

async fn create(connection: &mut Connection, missing: &[&str]) -> Result<(), PostgresError> {
    if !missing.is_empty() {
        // Only YugabyteDB knows it.
        let _ = connection.run_one(Request::command(statements::RANGE_TABLES)).await;
    }
    for name in missing {
        connection.run_one(Request::command(statements::create(name))).await?;
    }
    Ok(())
}

/// The names of the existing tables, without the prefix.
pub(super) async fn existing(connection: &mut Connection) -> Result<Vec<String>, PostgresError> {
    let rows = connection.run_one(Request::rows(statements::TABLES, Vec::new())).await?.into_rows();
    let names = rows.iter().map(|row| column::<String>(row, 0)).collect::<Result<Vec<_>, _>>()?;
    Ok(names.iter().filter_map(|name| name.strip_prefix(statements::PREFIX)).map(str::to_owned).collect())
}

fn explain(error: PostgresError) -> PostgresError {
    match error {
        PostgresError::Refused(reason) => PostgresError::Refused(format!(
            "The tables cannot be created: {reason}. Let the database's user create tables in its schema, or create \
             them as docs/postgresql.md lists them."
        )),
        other => other,
    }
}

/// Whether the database has a store: a node or a copy has filled the table `meta`.
///
/// # Errors
/// If the database has neither a store nor nothing: an unfinished copy, or rows without a layout.
pub async fn has_store(connection: &mut Connection) -> Result<bool, PostgresOpenError> {
    let existing = existing(connection).await?;
    if !existing.iter().any(|name| name == tables::META.name()) {
        return Ok(false);
    }
    let mut found = layout(connection).await?;
    if found.is_none() {
        let Some(table) = table_with_rows(connection, &existing).await? else { return Ok(false) };
        // A node may have filled the database since.
        found = layout(connection).await?;
        if found.is_none() {
            return Err(PostgresOpenError::NoLayout { table });
        }
    }
    match found.as_deref().and_then(Layout::decode) {
        Some(Layout::UnfinishedCopy { .. }) => Err(PostgresOpenError::UnfinishedCopy),
        _ => Ok(true),
    }
}

/// The row of the layout.
pub(super) async fn layout(connection: &mut Connection) -> Result<Option<Vec<u8>>, PostgresError> {
    let keys: &[&[u8]] = &[LAYOUT_KEY];
    let read = Request::rows(statements::get(tables::META.name()), vec![&keys]);
    let rows = connection.run_one(read).await?.into_rows();
    rows.first().map(|row| column(row, 1)).transpose()
}

/// A table with rows of a store, if there is one.
pub(super) async fn table_with_rows(
    connection: &mut Connection,
    existing: &[String],
) -> Result<Option<&'static str>, PostgresError> {
    let names = || tables::ALL.iter().map(|table| table.name()).filter(|name| existing.iter().any(|one| one == name));
    let (from, rows): (&[u8], i64) = (&[], 1);
    let first_row = |name| Request::rows(statements::page(name, false, false, Order::Ascending), vec![&from, &rows]);
    let answers = connection.run_all(names().map(first_row).collect()).await?;
    let has_rows = answers.into_iter().map(|answer| !answer.into_rows().is_empty());
    Ok(names().zip(has_rows).find_map(|(name, has_rows)| has_rows.then_some(name)))
}

/// Fills the table `meta` of an empty database, or checks that the database has this layout and this pepper.
pub async fn check_or_fill(connection: &mut Connection, pepper: &Pepper) -> Result<(), PostgresOpenError> {
    let keys = [LAYOUT_KEY, PEPPER_CHECK_KEY];
    let values = [Layout::Version(LAYOUT).encode(), meta(&pepper.check_value())];
    let (keys, values): (&[&[u8]], &[Vec<u8>]) = (&keys, &values);
    // If two nodes fill it at once, both rows are those of the first.
    connection.run_one(Request::count(statements::fill(tables::META.name()), vec![&keys, &values])).await?;
    check(connection, pepper).await
}

/// Checks that the database has this layout and this pepper.
pub async fn check(connection: &mut Connection, pepper: &Pepper) -> Result<(), PostgresOpenError> {
    let keys: &[&[u8]] = &[LAYOUT_KEY, PEPPER_CHECK_KEY];
    let read = Request::rows(statements::get(tables::META.name()), vec![&keys]);
    let rows = connection.run_one(read).await?.into_rows();
    let rows = rows.iter().map(|row| pair(row, true)).collect::<Result<Vec<_>, _>>()?;
    let look = |key: &[u8]| rows.iter().find(|(known, _)| known == key).map(|(_, value)| value.as_slice());
    check_values(look(LAYOUT_KEY), look(PEPPER_CHECK_KEY), pepper)
}

fn check_values(layout: Option<&[u8]>, pepper_check: Option<&[u8]>, pepper: &Pepper) -> Result<(), PostgresOpenError> {
    let found = match layout.and_then(Layout::decode) {
        Some(Layout::Version(version)) => version,
        Some(Layout::UnfinishedCopy { .. }) => return Err(PostgresOpenError::UnfinishedCopy),
        None => return Err(PostgresOpenError::Damaged("it has no layout version".to_owned())),
    };
    if found > LAYOUT {
        return Err(PostgresOpenError::NewerLayout { found, known: LAYOUT });
    }
    if found < LAYOUT {
        return Err(PostgresOpenError::OlderLayout { found, known: LAYOUT });
    }
    if pepper_check != Some(&meta(&pepper.check_value())) {
        return Err(PostgresOpenError::WrongPepper);
    }
    Ok(())
}
