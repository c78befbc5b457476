//! A snapshot of the database, read over a pooled connection.
//!
//! The snapshot begins with the first read, together with its `BEGIN`. After an error it reads nothing more, because
//! another connection would see another state.

use std::cell::{Cell, RefCell};
use std::collections::BTreeMap;
use std::ops::ControlFlow;
use std::sync::Arc;

use super::connection::{Answer, Request, column, pair};
use super::error::PostgresError;
use super::pool::{Pool, PooledConnection};
use super::schema;
use super::statements::{self, OWN_TABLES, Order};
use crate::engine::{EngineRead, EngineSnapshot, Export, Failed, Health, Scan, Scanned, Visit};
use crate::remote::{FIRST_LARGE_ROWS, Fetched, Page, Row, Wanted, first_rows, next_rows};
use crate::tables::Table;

/// A snapshot of all tables.
pub struct PostgresSnapshot {
    connection: RefCell<PooledConnection>,
    has_begun: Cell<bool>,
    /// The error that ended the snapshot.
    failed: RefCell<Option<Failed>>,
    /// The timeouts are those for reading whole tables.
    is_long: Cell<bool>,
}

impl PostgresSnapshot {
    /// Takes a connection for the snapshot. Blocking, like all reads.
    ///
    /// # Errors
    /// If all connections stay in use for too long, or the database cannot be reached.
    pub fn open(pool: &Arc<Pool>) -> Result<Self, Failed> {
        let connection = RefCell::new(pool.take()?);
        Ok(Self { connection, has_begun: Cell::new(false), failed: RefCell::new(None), is_long: Cell::new(false) })
    }

    fn read(&self, wanted: &Wanted) -> Result<Fetched, Failed> {
        self.call(|connection| connection.run(async |connection| connection.read(wanted).await))
    }

    /// Runs a call, again on a new connection if the snapshot has not begun and the kept connection was lost.
    fn call<T>(&self, mut call: impl FnMut(&mut PooledConnection) -> Result<T, PostgresError>) -> Result<T, Failed> {
        if let Some(failed) = &*self.failed.borrow() {
            return Err(failed.clone());
        }
        let mut connection = self.connection.borrow_mut();
        let mut result = call(&mut connection);
        if !self.has_begun.replace(true) && matches!(&result, Err(error) if error.is_lost()) {
            match connection.replace() {
                Ok(true) => result = call(&mut connection),
                Ok(false) => {}
                Err(error) => result = Err(error),
            }
        }
        result.map_err(|error| self.failed.borrow_mut().insert(Failed::from(error)).clone())
    }

    /// Runs one statement in the snapshot.
    fn rows(
        &self,
        sql: &str,
        parameters: &[super::connection::Parameter<'_>],
    ) -> Result<Vec<tokio_postgres::Row>, Failed> {
        let answers = self.call(|connection| {
            let request = Request::rows(sql.to_owned(), parameters.to_vec());
            connection.run(async |connection| connection.read_rows(vec![request]).await)
        })?;
        Ok(answers.into_iter().next().map(Answer::into_rows).unwrap_or_default())
    }

    /// Begins the snapshot with time limits for reading whole tables.
    fn make_long(&self) -> Result<(), Failed> {
        if self.is_long.replace(true) {
            return Ok(());
        }
        self.call(|connection| {
            let settings = statements::long_read(connection.timeouts());
            let requests = settings.into_iter().map(Request::command).collect();
            connection.run(async |connection| connection.read_rows(requests).await)
        })?;
        Ok(())
    }
}

impl EngineRead for PostgresSnapshot {
    fn get(&self, table: Table, key: &[u8]) -> Result<Option<Vec<u8>>, Failed> {
        let keys = [key.to_vec()];
        Ok(self.get_all(table, &keys)?.pop().flatten())
    }

    fn get_all(&self, table: Table, keys: &[Vec<u8>]) -> Result<Vec<Option<Vec<u8>>>, Failed> {
        if keys.is_empty() {
            return Ok(Vec::new());
        }
        let wanted = Wanted { keys: vec![(table, keys.to_vec())], pages: Vec::new() };
        Ok(self.read(&wanted)?.values.pop().unwrap_or_default())
    }

    fn scan(&self, scan: &Scan<'_>, visit: Visit<'_>) -> Scanned {
        let mut end = scan.end();
        let mut rows = first_rows(scan);
        while end.as_deref().is_none_or(|end| end > scan.prefix) {
            let page = Page { table: scan.table, from: scan.prefix.to_vec(), end, values: scan.values, rows };
            let wanted = Wanted { keys: Vec::new(), pages: vec![page] };
            let page = self.read(&wanted)?.pages.pop().unwrap_or_default();
            for (key, value) in &page {
                match visit(key, value) {
                    Ok(ControlFlow::Continue(())) => {}
                    Ok(ControlFlow::Break(())) => return Ok(Ok(())),
                    Err(error) => return Ok(Err(error)),
                }
            }
            if is_last(&page, rows) {
                break;
            }
            rows = next_rows(&page, rows);
            end = page.into_iter().next_back().map(|(key, _)| key);
        }
        Ok(Ok(()))
    }
}

impl EngineSnapshot for PostgresSnapshot {
    fn tables(&self) -> Result<BTreeMap<String, u64>, Failed> {
        self.make_long()?;
        let names = self.call(|connection| connection.run(async |connection| schema::existing(connection).await))?;
        let mut counts = BTreeMap::new();
        for name in names.into_iter().filter(|name| !OWN_TABLES.contains(&name.as_str())) {
            let rows = self.count(&name)?;
            counts.insert(name, rows);
        }
        Ok(counts)
    }

    fn export(&self, table: &str, export: Export<'_>) -> Result<(), Failed> {
        let is_name = |c: char| c.is_ascii_lowercase() || c.is_ascii_digit() || c == '_';
        if table.is_empty() || !table.chars().all(is_name) {
            return Err(Failed { health: Health::Sound, reason: format!("'{table}' is not the name of a table") });
        }
        self.make_long()?;
        let sql = statements::page(table, true, false, Order::Ascending);
        let (mut from, mut rows) = (Vec::new(), FIRST_LARGE_ROWS);
        loop {
            let page = self.rows(&sql, &[&from, &rows])?;
            let page = page.iter().map(|row| pair(row, true)).collect::<Result<Vec<Row>, _>>()?;
            if page.iter().any(|(key, value)| export(key, value).is_break()) || is_last(&page, rows) {
                return Ok(());
            }
            rows = next_rows(&page, rows);
            // The first key after the last one of this page.
            from = page.into_iter().next_back().map(|(key, _)| key).unwrap_or_default();
            from.push(0);
        }
    }
}

impl PostgresSnapshot {
    /// Number of rows of a table, which may take long.
    fn count(&self, table: &str) -> Result<u64, Failed> {
        let sql = statements::count(table);
        let answers = self.call(|connection| {
            let limit = connection.timeouts().count;
            connection.run(async |connection| {
                let request = Request::rows(sql.clone(), Vec::new());
                connection.run_within(limit, vec![request]).await?.into_iter().collect::<Result<Vec<_>, _>>()
            })
        })?;
        let rows = answers.into_iter().next().map(Answer::into_rows).unwrap_or_default();
        let count = rows.first().map(|row| column::<i64>(row, 0)).transpose()?.unwrap_or(0);
        Ok(u64::try_from(count).unwrap_or(0))
    }
}

/// True if this is the last page, for which `rows` rows were requested.
fn is_last(page: &[Row], rows: i64) -> bool {
    i64::try_from(page.len()).is_ok_and(|found| found < rows)
}
