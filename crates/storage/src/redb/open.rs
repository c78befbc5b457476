//! Opens the data folder and starts its writer thread.

use std::path::Path;
use std::sync::Arc;
use std::sync::mpsc::Receiver;
use std::thread::JoinHandle;

use super::database::{self, DatabaseFile, Opener};
use super::migrations;
use super::spare_space::SpareSpace;
use super::state::RedbState;
use super::unfinished;
use super::writer::Writer;
use crate::shared_state::SharedState;
use crate::store_error::OpenError;
use crate::write_queue::Message;
use crate::{pepper, private_files};
use outpost_common::clock_rng::ClockRng;
use outpost_common::disk_space::DiskReserve;

/// The engine and its writer thread, which takes messages from `inbox` and ends when no sender is left.
pub(crate) fn open(
    dir: &Path,
    (cache_bytes, min_free_disk): (usize, Option<u64>),
    opener: Opener,
    clock_rng: &dyn ClockRng,
    inbox: Receiver<Message>,
) -> Result<(Arc<RedbState>, JoinHandle<()>), OpenError> {
    private_files::private_dir(dir).map_err(|error| OpenError::io(dir, error))?;
    let lock = database::lock_folder(dir)?;
    let path = dir.join(private_files::DATABASE);
    unfinished::refuse(dir)?;
    let reserve = DiskReserve::new(dir, min_free_disk);
    let spare = SpareSpace::new(dir, reserve.clone());
    spare.release_if_full();
    let pepper = Arc::new(pepper::load_or_create(dir, path.exists(), clock_rng)?);
    if path.exists() {
        unfinished::remove_rest(dir);
    } else {
        migrations::create(&path, &pepper, cache_bytes)?;
    }
    let source = DatabaseFile { path: path.clone(), cache_bytes, opener };
    let db = source.open()?;
    // redb may panic over damaged pages; that is reported as damage.
    let migrated = database::catch_panic(|| migrations::run(&db, &path, &pepper))
        .unwrap_or_else(|| Err(OpenError::corrupt(&path, "unreadable pages")));
    if let Err(error) = migrated {
        database::close_unchanged(db);
        return Err(error);
    }
    spare.fill();
    let state = Arc::new(RedbState::new(db, source, (reserve, spare), Arc::new(SharedState::new(pepper, None))));
    let writer = Writer { state: state.clone(), inbox, _lock: lock };
    let thread = std::thread::Builder::new().name("outpost-writer".into()).spawn(move || writer.run());
    Ok((state, thread.map_err(|error| OpenError::io(&path, error))?))
}
