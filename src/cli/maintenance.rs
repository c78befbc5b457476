//! `outpost backup`, `restore` and `check`: through the server if it is running, else on the files themselves.

use std::error::Error;
use std::io::Write;
use std::path::Path;
use std::sync::Arc;

use super::output::{Outcome, print_lines, print_reply};
use crate::app::SystemClockRng;
use crate::clock_rng::ClockRng;
use crate::control_socket::{self, Reply, Request};
use crate::service::setup;
use crate::storage::{self, Store, StoreSettings};

pub fn backup(data: &Path, to: &Path, out: &mut dyn Write) -> Outcome {
    // The server may have another working directory, so the path must be absolute.
    let to = std::path::absolute(to)?;
    if let Some(answer) = control_socket::send(data, &Request::Backup { to: to.clone() })? {
        print_reply(answer, out)?;
    } else {
        let store = open(data, Arc::new(SystemClockRng::new()))?;
        let report = store.backup(&to);
        store.shutdown();
        let report = report?;
        print_lines(&control_socket::summary(&report.records, report.bytes), out)?;
    }
    writeln!(
        out,
        "The backup is {}. It contains the pepper that API keys depend on. Protect it like the data folder.",
        to.display()
    )?;
    Ok(())
}

pub fn restore(data: &Path, from: &Path, out: &mut dyn Write) -> Outcome {
    let report = storage::restore(from, data)?;
    print_lines(&control_socket::summary(&report.records, report.bytes), out)?;
    writeln!(out, "{} is restored. Start the server with: outpost serve --data {}", data.display(), data.display())?;
    Ok(())
}

pub fn check(data: &Path, out: &mut dyn Write) -> Outcome {
    if let Some(answer) = control_socket::send(data, &Request::Check)? {
        writeln!(out, "A server is running: every record is checked; stop it to check the file's pages too.")?;
        return print_reply(answer, out);
    }
    require_store(data)?;
    let report = storage::check(data)?;
    print_reply(Reply::from_report(report), out)
}

/// Access to the data folder is sufficient authorization; there is no such operation over the network.
pub fn admin_key(data: &Path, out: &mut dyn Write) -> Outcome {
    let clock_rng: Arc<dyn ClockRng> = Arc::new(SystemClockRng::new());
    let store = open(data, clock_rng.clone())?;
    let made = actix_web::rt::System::new().block_on(setup::new_admin_key(&store, &clock_rng));
    store.shutdown();
    writeln!(out, "{}", made?.secret.expose())?;
    Ok(())
}

/// Opens the store of a folder that has one.
pub(super) fn open(data: &Path, clock_rng: Arc<dyn ClockRng>) -> Result<Store, Box<dyn Error>> {
    require_store(data)?;
    let settings = StoreSettings { dir: data.to_owned(), cache_bytes: 16 << 20, queue: 16 };
    Ok(Store::open(settings, clock_rng)?)
}

fn require_store(data: &Path) -> Outcome {
    if data.join(storage::DATABASE_FILE).exists() {
        return Ok(());
    }
    Err(format!("there is no store in {}; --data names the folder", data.display()).into())
}
