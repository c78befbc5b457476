//! A database that a store is copied to.
//!
//! From the first row to the last, the row of the layout says that a copy has not ended, with the number of the attempt.
//! Servers and commands refuse such a database, whatever their version. The same row decides between a copy and a
//! server that start at once, because only one of them can insert it.
//!
//! An interrupted copy starts over: it raises the number and removes the rows. The earlier one may still
//! run, so every transaction locks the row and requires the number. An earlier copy can then write nothing more.
//!
//! A separate marker row would stop only programs that know it, and an earlier copy is fenced off without a heartbeat.

use super::blocking::block_on;
use super::connection::{Answer, Connection, Phase, Request, column, pair};
use super::error::{PostgresError, PostgresOpenError};
use super::schema;
use super::statements::{self, OWN_TABLES, Order};
use super::transfer::PostgresCopy;
use crate::meta::{LAYOUT_KEY, Layout};
use crate::remote::Row;
use crate::store_error::{OpenError, StoreCopyError};
use crate::tables;

/// Rows that are removed at once.
const REMOVED_ROWS: i64 = 1000;
/// Attempts to begin while the server still runs a statement of a copy that was killed. Each one waits for its lock.
const ATTEMPTS: usize = 8;

/// The target of a copy. Blocking; not for threads of a runtime.
pub(crate) struct CopyTarget<'a> {
    database: &'a PostgresCopy,
    connection: Connection,
    /// The row of the layout while this copy may write.
    unfinished: Vec<u8>,
}

impl<'a> CopyTarget<'a> {
    /// Creates the tables and marks the database as an unfinished copy. What an interrupted copy has left is removed.
    ///
    /// # Errors
    /// [`PostgresOpenError::NotEmpty`] if the database has rows of anything else.
    pub fn begin(database: &'a PostgresCopy) -> Result<Self, OpenError> {
        let mut connection = database.connect()?;
        let mut attempts = 1;
        let begun = loop {
            match block_on(database.runtime(), begin(&mut connection)) {
                Err(PostgresError::Conflict(_)) if attempts < ATTEMPTS => attempts += 1,
                result => break result.map_err(PostgresOpenError::from)?,
            }
        };
        let unfinished = begun.ok_or_else(|| PostgresOpenError::NotEmpty { database: database.name() })?;
        let mut target = Self { database, connection, unfinished };
        target.clear().map_err(PostgresOpenError::from)?;
        Ok(target)
    }

    /// Stores rows of a table, which takes effect at once.
    ///
    /// # Errors
    /// If the database fails, or another copy has started over.
    pub fn put(&mut self, table: &str, rows: &[Row]) -> Result<(), PostgresError> {
        let (keys, values) = columns(rows);
        let write = Request::count(statements::put(table), vec![&keys, &values]);
        let Self { database, connection, unfinished } = self;
        block_on(database.runtime(), async {
            lock(connection, unfinished).await?;
            commit(connection, vec![write]).await
        })
    }

    /// Makes the copy a store: its last transaction stores the table `meta`, which replaces the mark. Returns whether the
    /// rows that are read back are equal.
    ///
    /// # Errors
    /// As [`Self::put`].
    pub fn finish(mut self, meta: &[Row]) -> Result<bool, StoreCopyError> {
        // The other one has been idle during the comparison, which may take long.
        self.connection = self.database.connect()?;
        let (keys, values) = columns(meta);
        let table = tables::META.name();
        let write = Request::count(statements::put(table), vec![&keys, &values]);
        let read = Request::rows(statements::get(table), vec![&keys]);
        let Self { database, connection, unfinished } = &mut self;
        let finished = block_on(database.runtime(), async {
            lock(connection, unfinished).await?;
            let found = connection.run_all(vec![write, read]).await?.pop().map(Answer::into_rows).unwrap_or_default();
            let mut found = found.iter().map(|row| pair(row, true)).collect::<Result<Vec<Row>, _>>()?;
            found.sort();
            let is_equal = found == meta;
            if is_equal {
                commit(connection, Vec::new()).await?;
            }
            Ok(is_equal)
        });
        finished.map_err(StoreCopyError::Target)
    }

    /// Removes the rows of an interrupted copy, page by page, because a statement must not take long.
    fn clear(&mut self) -> Result<(), PostgresError> {
        let Self { database, connection, unfinished } = self;
        block_on(database.runtime(), async {
            let names = schema::existing(connection).await?;
            let is_filled = |name: &String| !OWN_TABLES.contains(&name.as_str()) && name != tables::META.name();
            for name in names.iter().filter(|name| is_filled(name)) {
                clear_table(connection, name, unfinished).await?;
            }
            Ok(())
        })
    }
}

/// Keys and values of rows.
fn columns(rows: &[Row]) -> (Vec<&[u8]>, Vec<&[u8]>) {
    rows.iter().map(|(key, value)| (key.as_slice(), value.as_slice())).unzip()
}

/// Marks the database. Returns the mark, or `None` if the database has a store or rows of anything else.
async fn begin(connection: &mut Connection) -> Result<Option<Vec<u8>>, PostgresError> {
    connection.rollback();
    schema::create_tables(connection).await?;
    if schema::layout(connection).await?.is_none() {
        let existing = schema::existing(connection).await?;
        if schema::table_with_rows(connection, &existing).await?.is_some() {
            return Ok(None);
        }
        let first = Layout::UnfinishedCopy { attempt: 0 }.encode();
        insert_layout(connection, &first).await?;
    }
    // Read again: a server or another copy may have been faster.
    let Some(found) = schema::layout(connection).await? else { return Ok(None) };
    let Some(Layout::UnfinishedCopy { attempt }) = Layout::decode(&found) else { return Ok(None) };
    let next = Layout::of_next_attempt(attempt).encode();
    let (keys, values): (&[&[u8]], &[&[u8]]) = (&[LAYOUT_KEY], &[&next]);
    let raise = Request::count(statements::put(tables::META.name()), vec![&keys, &values]);
    lock(connection, &found).await?;
    commit(connection, vec![raise]).await?;
    Ok(Some(next))
}

/// Inserts the row of the layout, unless it exists.
async fn insert_layout(connection: &mut Connection, value: &[u8]) -> Result<(), PostgresError> {
    let (keys, values): (&[&[u8]], &[&[u8]]) = (&[LAYOUT_KEY], &[value]);
    connection.run_one(Request::count(statements::fill(tables::META.name()), vec![&keys, &values])).await?;
    Ok(())
}

/// Begins a transaction that has the row of the layout locked.
///
/// # Errors
/// If its value is not `expected`.
async fn lock(connection: &mut Connection, expected: &[u8]) -> Result<(), PostgresError> {
    let keys: &[&[u8]] = &[LAYOUT_KEY];
    connection.phase = Phase::Writing;
    let begin = Request::command(statements::BEGIN_READ_COMMITTED);
    let lock = Request::rows(statements::lock(tables::META.name()), vec![&keys]);
    let rows = connection.run_all(vec![begin, lock]).await?.pop().map(Answer::into_rows).unwrap_or_default();
    match rows.first().map(|row| column::<Vec<u8>>(row, 1)).transpose()? {
        Some(found) if found == expected => Ok(()),
        _ => Err(PostgresError::Refused("another copy into this database has begun since, which goes on".to_owned())),
    }
}

async fn commit(connection: &mut Connection, mut requests: Vec<Request<'_>>) -> Result<(), PostgresError> {
    requests.push(Request::command(statements::COMMIT));
    connection.run_all(requests).await?;
    connection.phase = Phase::Idle;
    Ok(())
}

async fn clear_table(connection: &mut Connection, name: &str, unfinished: &[u8]) -> Result<(), PostgresError> {
    let mut from = Vec::new();
    loop {
        let page = Request::rows(statements::page(name, false, false, Order::Ascending), vec![&from, &REMOVED_ROWS]);
        let rows = connection.run_one(page).await?.into_rows();
        let keys = rows.iter().map(|row| column::<Vec<u8>>(row, 0)).collect::<Result<Vec<_>, _>>()?;
        let Some(last) = keys.last() else { return Ok(()) };
        from.clone_from(last);
        lock(connection, unfinished).await?;
        commit(connection, vec![Request::count(statements::remove(name), vec![&keys])]).await?;
    }
}
