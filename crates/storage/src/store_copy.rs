//! Copies a whole store from one engine to another, and compares the copy with its source.

use std::collections::BTreeMap;
use std::ops::ControlFlow;
use std::path::{Path, PathBuf};
use std::sync::Arc;

use ring::digest::{Context, SHA256};

use crate::engine::Failed;
use crate::pepper::{self, Pepper};
use crate::postgres::{CopyTarget, PostgresCopy, PostgresLocation};
use crate::redb::folder::{FolderCopy, open_folder};
use crate::remote::Row;
use crate::store_error::{OpenError, StoreCopyError};
use crate::tables;
use crate::transaction::ReadTx;

/// Bytes of rows that are sent to a database at once.
const BATCH_BYTES: usize = 2 << 20;
/// Rows that are sent to a database at once.
const BATCH_ROWS: usize = 1000;

/// Where a store is.
#[derive(Clone, Debug)]
pub enum StorePlace {
    /// A data folder, with a redb file and the pepper.
    Folder(PathBuf),
    /// A database; the pepper is in the data folder.
    Postgres(Box<PostgresLocation>),
}

/// What was copied.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct StoreCopyReport {
    /// Records by table.
    pub records: BTreeMap<String, u64>,
}

/// Copies all records from one place to another, which must be empty, and compares every record of both. `data_dir` has
/// the pepper of databases. Blocking.
///
/// The target is no store until all records are there and compared: a folder has them in a file of another name, and the
/// layout of a database says so. A copy that was interrupted can be run again, which starts over.
///
/// # Errors
/// If the copy fails, a folder has at most the pepper. A database may contain a part of the records, and every start
/// refuses it.
pub fn copy_store(from: &StorePlace, to: &StorePlace, data_dir: &Path) -> Result<StoreCopyReport, StoreCopyError> {
    match from {
        StorePlace::Folder(dir) => {
            let source = open_folder(dir)?;
            copy_from(&source.tx, &source.pepper, to, data_dir)
        }
        StorePlace::Postgres(location) => {
            let source = PostgresCopy::new(location)?;
            let (tx, pepper) = source.snapshot(data_dir)?;
            copy_from(&tx, &pepper, to, data_dir)
        }
    }
}

fn copy_from(
    tx: &ReadTx,
    pepper: &Arc<Pepper>,
    to: &StorePlace,
    data_dir: &Path,
) -> Result<StoreCopyReport, StoreCopyError> {
    match to {
        StorePlace::Folder(dir) => {
            let copy = FolderCopy::write(tx, pepper, dir)?;
            compare(tx, &copy.open()?, &|_| true)?;
            copy.publish()?;
        }
        StorePlace::Postgres(location) => {
            keep_pepper(pepper, data_dir)?;
            let database = PostgresCopy::new(location)?;
            let mut target = CopyTarget::begin(&database)?;
            let meta = tables::META.name();
            fill(tx, &mut target)?;
            compare(tx, &database.rows(pepper)?, &|name| name != meta)?;
            if !target.finish(&rows(tx, meta)?)? {
                return Err(StoreCopyError::Differs { table: meta.to_owned() });
            }
        }
    }
    Ok(StoreCopyReport { records: tx.tables().map_err(StoreCopyError::Source)? })
}

/// The server that uses the copy needs the pepper in its data folder.
fn keep_pepper(pepper: &Pepper, data_dir: &Path) -> Result<(), StoreCopyError> {
    match pepper::load(data_dir)? {
        Some(found) if found.raw() == pepper.raw() => Ok(()),
        Some(_) => Err(StoreCopyError::OtherPepper { dir: data_dir.to_owned() }),
        None => {
            crate::private_files::private_dir(data_dir).map_err(|error| OpenError::io(data_dir, error))?;
            Ok(pepper::save(data_dir, pepper)?)
        }
    }
}

/// Sends all tables except `meta`, whose rows make the copy a store.
fn fill(tx: &ReadTx, target: &mut CopyTarget<'_>) -> Result<(), StoreCopyError> {
    let names = tx.tables().map_err(StoreCopyError::Source)?.into_keys();
    for name in names.filter(|name| name != tables::META.name()) {
        let (mut rows, mut bytes, mut sent) = (Vec::<Row>::new(), 0, Ok(()));
        let exported = tx.export(&name, &mut |key, value| {
            bytes += key.len() + value.len();
            rows.push((key.to_vec(), value.to_vec()));
            if bytes >= BATCH_BYTES || rows.len() >= BATCH_ROWS {
                sent = target.put(&name, &rows);
                (rows, bytes) = (Vec::new(), 0);
            }
            if sent.is_ok() { ControlFlow::Continue(()) } else { ControlFlow::Break(()) }
        });
        exported.map_err(StoreCopyError::Source)?;
        if !rows.is_empty() && sent.is_ok() {
            sent = target.put(&name, &rows);
        }
        sent.map_err(StoreCopyError::Target)?;
    }
    Ok(())
}

/// The rows of a small table, in the order of their keys.
fn rows(tx: &ReadTx, table: &str) -> Result<Vec<Row>, StoreCopyError> {
    let mut rows = Vec::new();
    let exported = tx.export(table, &mut |key, value| {
        rows.push((key.to_vec(), value.to_vec()));
        ControlFlow::Continue(())
    });
    exported.map_err(StoreCopyError::Source)?;
    Ok(rows)
}

/// Compares every record in those tables of two stores that `has` selects.
fn compare(source: &ReadTx, copy: &ReadTx, has: &dyn Fn(&str) -> bool) -> Result<(), StoreCopyError> {
    let mut counts = [source, copy].map(|tx| tx.tables());
    // Tables without rows need not exist.
    counts.iter_mut().flatten().for_each(|counts| counts.retain(|_, rows| *rows > 0));
    let [source_counts, copy_counts] = counts;
    let source_counts = source_counts.map_err(StoreCopyError::Source)?;
    let copy_counts = copy_counts.map_err(StoreCopyError::Unverified)?;
    for name in source_counts.keys().chain(copy_counts.keys()).filter(|name| has(name)) {
        let digest = |tx: &ReadTx| digest(tx, name);
        let differs = source_counts.get(name) != copy_counts.get(name)
            || digest(source).map_err(StoreCopyError::Source)? != digest(copy).map_err(StoreCopyError::Unverified)?;
        if differs {
            return Err(StoreCopyError::Differs { table: name.clone() });
        }
    }
    Ok(())
}

/// A digest of all keys and values of a table.
fn digest(tx: &ReadTx, table: &str) -> Result<Vec<u8>, Failed> {
    let mut digest = Context::new(&SHA256);
    tx.export(table, &mut |key, value| {
        for part in [key, value] {
            digest.update(&(part.len() as u64).to_be_bytes());
            digest.update(part);
        }
        ControlFlow::Continue(())
    })?;
    Ok(digest.finish().as_ref().to_vec())
}
