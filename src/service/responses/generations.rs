//! Messages between nodes of a shared store about the responses that they generate: the start of a generation, and the
//! steps of the output, so that a stream on any node can follow.
//!
//! Nothing of this is stored if the process has the store for itself. The parts do not count against quotas: they are
//! bounded, and the steps of the whole output take their place.
//!
//! Counting the parts against quotas would change the project's row twice a second on every node.

use super::Responses;
use crate::error::Result;
use crate::ids::ResponseId;
use crate::storage::response_steps::{self, ResponseGenerationRecord, ResponseStepsRecord};
use crate::storage::responses as stored;
use crate::storage::work_leases::{self, Work};
use crate::storage::{Cluster, Reader, WriteTx};

/// Max bytes of the steps of a response. If there are more, none are stored after its end, and no more than these before.
pub const MAX_STEPS_BYTES: usize = 8 << 20;
/// Max parts of a generation: those of 80 minutes. Other nodes get further steps when all are stored.
pub const MAX_PARTS: u32 = 10_000;
/// Parts that are read at once.
const PARTS_PER_READ: u32 = 64;

/// How far a response is.
#[derive(Debug)]
pub enum GenerationProgress {
    /// It waits to be generated, or this process generates it.
    Waiting,
    /// Another node generates it.
    Running(GenerationParts),
    /// The node that generated it has stopped or failed. It will be generated again.
    Interrupted,
    /// It has ended or was deleted. `steps`: of its output, as JSON, if they are kept; empty if there are none.
    Ended { steps: Option<String> },
}

/// The report of another node about its generation.
#[derive(Debug)]
pub struct GenerationParts {
    /// The number of the generation. The response has another one if it is generated again.
    pub number: u64,
    /// The JSON of the next parts.
    pub parts: Vec<String>,
    /// Whether there are more parts already.
    pub has_more: bool,
}

impl Responses {
    /// Whether other nodes may generate responses.
    pub fn is_shared(&self) -> bool {
        self.store.cluster().is_some()
    }

    /// Tells the other nodes that this one generates a response from the beginning. Returns whether the response is open
    /// and this process is to generate it.
    pub async fn begin_generation(&self, id: ResponseId, number: u64) -> Result<bool> {
        let begun = self.store.write(move |tx| {
            let claimed = work_leases::require(tx, Work::Response(id)).is_ok();
            let (true, Some(process)) = (stored::is_open(tx, id)? && claimed, tx.process()) else { return Ok(false) };
            response_steps::begin_generation(tx, id, number, process)?;
            Ok(true)
        });
        Ok(self.notify_unless(begun.await?))
    }

    /// Stores the part with this number, unless an earlier attempt has. Returns whether the generation is still that of the
    /// open response.
    pub async fn append_part(&self, id: ResponseId, number: u64, part: u32, json: String) -> Result<bool> {
        let steps = ResponseStepsRecord { json };
        let appended = self.store.write(move |tx: &WriteTx| {
            let claimed = work_leases::require(tx, Work::Response(id)).is_ok();
            let found = response_steps::generation(tx, id)?.filter(|found| found.number == number && claimed);
            let Some(generation) = found else { return Ok(false) };
            if generation.parts == part {
                response_steps::append(tx, id, generation, &steps)?;
            }
            Ok(true)
        });
        Ok(self.notify_unless(appended.await?))
    }

    /// A response that was cancelled, deleted or taken over need not be generated here any more.
    fn notify_unless(&self, is_running: bool) -> bool {
        if !is_running {
            self.changes.send_replace(());
        }
        is_running
    }

    /// How far a response is. `next_part`: the first part that is not known, of the generation with the number `known`, if
    /// one is known.
    pub async fn progress(&self, id: ResponseId, known: Option<u64>, next_part: u32) -> Result<GenerationProgress> {
        let cluster = self.store.cluster().cloned();
        let read = self.store.read(move |tx| {
            if !stored::is_open(tx, id)? {
                let steps = response_steps::find(tx, id)?.map(|steps| steps.json);
                return Ok(GenerationProgress::Ended { steps });
            }
            let (Some(generation), Some(cluster)) = (response_steps::generation(tx, id)?, &cluster) else {
                return Ok(GenerationProgress::Waiting);
            };
            let ResponseGenerationRecord { number, process, parts: count } = generation;
            if process == cluster.process() {
                return Ok(GenerationProgress::Waiting);
            }
            if !cluster.is_alive(process) {
                return Ok(GenerationProgress::Interrupted);
            }
            // Parts of another generation than the known one are not looked at.
            let next = if known.is_none_or(|known| known == number) { next_part } else { count };
            let parts = response_steps::parts(tx, id, &generation, next, PARTS_PER_READ)?;
            let has_more = count.saturating_sub(next) > PARTS_PER_READ;
            let parts = parts.into_iter().map(|part| part.json).collect();
            Ok(GenerationProgress::Running(GenerationParts { number, parts, has_more }))
        });
        read.await
    }
}

/// Whether a live node generates an open response.
pub(super) fn is_running(tx: &impl Reader, id: ResponseId, cluster: Option<&Cluster>) -> Result<bool> {
    let Some(cluster) = cluster else { return Ok(false) };
    Ok(response_steps::generation(tx, id)?.is_some_and(|generation| cluster.is_alive(generation.process)))
}
