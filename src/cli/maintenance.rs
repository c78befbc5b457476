//! `outpost backup`, `restore` and `check`: through the server if it is running, else on the files themselves.

use std::error::Error;
use std::io::Write;
use std::path::Path;
use std::sync::Arc;

use super::output::{Outcome, count_records, failure};
use crate::app::SystemClockRng;
use crate::clock_rng::ClockRng;
use crate::config::DataPaths;
use crate::control_socket::{self, Reply, Request};
use crate::display::format_bytes;
use crate::service::keys::setup;
use crate::storage::{self, Store, StorePlace, StoreSettings};

pub fn backup(paths: &DataPaths, to: &Path, verbose: bool, out: &mut dyn Write) -> Outcome {
    // The server may have another working directory, so the path must be absolute.
    let to = std::path::absolute(to)?;
    let (records, bytes) = match control_socket::send(&paths.data, &Request::Backup { to: to.clone() })? {
        Some(Reply::BackedUp { records, bytes }) => (records, bytes),
        Some(other) => return Err(failure(other)),
        None => {
            let store = open(paths, Arc::new(SystemClockRng::new()))?;
            let report = store.backup(&to);
            store.shutdown();
            let report = report?;
            (report.records, report.bytes)
        }
    };
    let count = count_records(&records, verbose, out)?;
    writeln!(
        out,
        "{count} ({}) are saved in {}; protect the file like the data folder, because it contains the pepper that API keys depend on.",
        format_bytes(bytes),
        to.display()
    )?;
    Ok(())
}

pub fn restore(data: &Path, from: &Path, verbose: bool, out: &mut dyn Write) -> Outcome {
    let report = storage::restore(from, data)?;
    let count = count_records(&report.records, verbose, out)?;
    let data = data.display();
    writeln!(out, "{count} are restored to {data}. Start the server with: outpost serve --data {data}")?;
    Ok(())
}

pub fn check(paths: &DataPaths, verbose: bool, out: &mut dyn Write) -> Outcome {
    let report = match control_socket::send(&paths.data, &Request::Check)? {
        Some(Reply::Checked(report)) => {
            if paths.store.store.is_none() {
                writeln!(out, "A server is running: every record is checked; stop it to check the file's pages too.")?;
            }
            report
        }
        Some(other) => return Err(failure(other)),
        None if paths.store.store.is_some() => {
            let store = open(paths, Arc::new(SystemClockRng::new()))?;
            let report = store.verify();
            store.shutdown();
            report?
        }
        None => {
            require_store(&paths.data)?;
            storage::check(&paths.data)?
        }
    };
    if report.repaired {
        writeln!(out, "The database's list of free pages was rebuilt.")?;
    }
    let count = count_records(&report.records, verbose, out)?;
    for problem in &report.problems {
        writeln!(out, "{problem}")?;
    }
    match report.problems.len() {
        0 => writeln!(out, "All {count} are intact.")?,
        problems => return Err(format!("{problems} problems were found; restore the latest good backup").into()),
    }
    Ok(())
}

/// Access to the data folder is sufficient authorization; there is no such operation over the network.
pub fn admin_key(paths: &DataPaths, out: &mut dyn Write) -> Outcome {
    let clock_rng: Arc<dyn ClockRng> = Arc::new(SystemClockRng::new());
    let store = open(paths, clock_rng.clone())?;
    let clock_rng = store.clock(clock_rng);
    let made = actix_web::rt::System::new().block_on(setup::new_admin_key(&store, &clock_rng));
    store.shutdown();
    writeln!(out, "{}", made?.secret.expose())?;
    Ok(())
}

/// Opens the store that a server would use, which must exist.
pub(super) fn open(paths: &DataPaths, clock_rng: Arc<dyn ClockRng>) -> Result<Store, Box<dyn Error>> {
    let location = paths.store.location()?;
    if location.is_none() {
        require_store(&paths.data)?;
    }
    let settings = StoreSettings { dir: paths.data.clone(), cache_bytes: 16 << 20, queue: 16, min_free_disk: Some(0) };
    Ok(Store::open_existing(settings, location.as_ref(), clock_rng)?)
}

/// Copies a store between a data folder and a database. `from` and `to`: a folder or a URL.
pub fn copy_store(paths: &DataPaths, from: &str, to: &str, verbose: bool, out: &mut dyn Write) -> Outcome {
    let report = storage::copy_store(&place(paths, from)?, &place(paths, to)?, &paths.data)?;
    let count = count_records(&report.records, verbose, out)?;
    writeln!(out, "{count} are copied, and equal to their source.")?;
    Ok(())
}

fn place(paths: &DataPaths, text: &str) -> Result<StorePlace, Box<dyn Error>> {
    Ok(match text.starts_with("postgres://") || text.starts_with("postgresql://") {
        true => StorePlace::Postgres(Box::new(paths.store.location_of(text)?)),
        false => StorePlace::Folder(text.into()),
    })
}

fn require_store(data: &Path) -> Outcome {
    if data.join(storage::DATABASE_FILE).exists() {
        return Ok(());
    }
    storage::require_finished(data)?;
    Err(format!("there is no store in {}; --data names the folder", data.display()).into())
}
