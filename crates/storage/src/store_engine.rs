//! An engine as the store uses it.

use std::sync::Arc;
use std::sync::mpsc::SyncSender;

use crate::cluster::Cluster;
use crate::engine::{EngineSnapshot, Failed, Health};
use crate::exchanges::ExchangeQueue;
use crate::write_queue::Message;
use outpost_common::disk_space::DiskReserve;

/// A database. Its writer thread, which takes [`Message`]s, belongs to the engine as well.
pub(super) trait StoreEngine: Send + Sync {
    /// # Errors
    /// If the database cannot be used at the moment.
    fn check_open(&self) -> Result<(), Failed>;

    fn snapshot(&self) -> Result<Box<dyn EngineSnapshot>, Failed>;

    /// A reader met this. The engine may send its writer a message.
    fn report(&self, met: Health, writer: &SyncSender<Message>);

    /// Size of the database in bytes; 0 if unknown.
    fn bytes(&self) -> u64;

    /// Bytes that the database takes of its disk, without parts of the file that were never written; 0 if unknown.
    fn written_bytes(&self) -> u64 {
        0
    }

    /// The reserve of the disk with the database; `None` if it is not on a disk of this machine.
    fn reserve(&self) -> Option<&DiskReserve> {
        None
    }

    /// Keeps space back for the time when the disk is full, unless that is done. Blocking.
    fn keep_space_back(&self) {}

    /// The nodes that share the database; `None` if no others can.
    fn cluster(&self) -> Option<&Arc<Cluster>> {
        None
    }

    /// Runs exchanges; `None` if no other node can use the database.
    fn exchanges(&self) -> Option<&ExchangeQueue> {
        None
    }
}
