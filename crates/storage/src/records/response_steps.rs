//! The steps of responses' outputs, so that streams can begin at any time and on any node.
//!
//! After a response has ended, one row has all its steps. While a node of a shared store generates it, they are in numbered
//! parts, because a row that grew with every token would be written again and again. The row of the generation names the
//! node and has the number of parts, so that parts are read and removed by their keys.
//!
//! Steps are stored, not events. An event repeats IDs and indices, and the last ones repeat the whole text several
//! times: about 280 bytes per token. A stream that begins later encodes the steps with the code that the first stream
//! used, and gets the same events under the same numbers. Only responses that were created with `stream: true` keep
//! them.

use serde::{Deserialize, Serialize};

use crate::cluster::NodeProcess;
use crate::codec::Record;
use crate::error::Result;
use crate::ids::ResponseId;
use crate::tables::{RESPONSE_GENERATIONS, RESPONSE_STEPS, Table};
use crate::transaction::{Reader, WriteTx};

/// Steps of a response's output: all, or those of a part.
#[derive(Clone, Debug, Default, Serialize, Deserialize)]
pub struct ResponseStepsRecord {
    /// Empty: they were too many, or it was cancelled.
    pub json: String,
}

impl Record for ResponseStepsRecord {
    const TABLE: Table = RESPONSE_STEPS;
    const VERSION: u8 = 1;
}

/// A generation of a response by a node of a shared store.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct ResponseGenerationRecord {
    /// A random number. A response that is generated again has another one.
    pub number: u64,
    /// The process that generates it.
    pub process: NodeProcess,
    /// The number of stored parts.
    pub parts: u32,
}

impl Record for ResponseGenerationRecord {
    const TABLE: Table = RESPONSE_GENERATIONS;
    const VERSION: u8 = 1;
}

/// Stores all steps of a response that has ended.
pub fn put(tx: &WriteTx, id: ResponseId, steps: &ResponseStepsRecord) -> Result<()> {
    tx.put(&id.to_bytes(), steps)
}

/// All steps of a response, if they are stored.
pub fn find(tx: &impl Reader, id: ResponseId) -> Result<Option<ResponseStepsRecord>> {
    tx.get(&id.to_bytes())
}

/// Removes all steps of a response.
pub(crate) fn remove(tx: &WriteTx, id: ResponseId) -> Result<()> {
    tx.remove::<ResponseStepsRecord>(&id.to_bytes())
}

/// Begins a generation of an open response, in place of an earlier one.
pub fn begin_generation(tx: &WriteTx, id: ResponseId, number: u64, process: NodeProcess) -> Result<()> {
    remove_generation(tx, id)?;
    tx.put(&id.to_bytes(), &ResponseGenerationRecord { number, process, parts: 0 })
}

/// The generation of a response that runs, or was interrupted.
pub fn generation(tx: &impl Reader, id: ResponseId) -> Result<Option<ResponseGenerationRecord>> {
    tx.get(&id.to_bytes())
}

/// Adds the next part of a generation, which is in the store as `generation`.
pub fn append(
    tx: &WriteTx,
    id: ResponseId,
    generation: ResponseGenerationRecord,
    part: &ResponseStepsRecord,
) -> Result<()> {
    tx.put(&part_key(id, generation.parts), part)?;
    let parts = generation.parts.saturating_add(1);
    tx.put(&id.to_bytes(), &ResponseGenerationRecord { parts, ..generation })
}

/// Up to `limit` parts of a generation from the part `first` on.
pub fn parts(
    tx: &impl Reader,
    id: ResponseId,
    generation: &ResponseGenerationRecord,
    first: u32,
    limit: u32,
) -> Result<Vec<ResponseStepsRecord>> {
    let end = generation.parts.min(first.saturating_add(limit));
    let keys: Vec<Vec<u8>> = (first..end).map(|part| part_key(id, part)).collect();
    let found = tx.get_all(&keys)?;
    let all: Option<Vec<_>> = found.into_iter().collect();
    all.ok_or_else(|| crate::codec::inconsistent(format!("{id} has lost steps")))
}

/// Removes what is stored of a generation.
pub(crate) fn remove_generation(tx: &WriteTx, id: ResponseId) -> Result<()> {
    let Some(generation) = generation(tx, id)? else { return Ok(()) };
    (0..generation.parts).try_for_each(|part| tx.remove::<ResponseStepsRecord>(&part_key(id, part)))?;
    tx.remove::<ResponseGenerationRecord>(&id.to_bytes())
}

fn part_key(id: ResponseId, part: u32) -> Vec<u8> {
    [&id.to_bytes()[..], &part.to_be_bytes()].concat()
}

/// The part that a key names; `None`: all steps of a response.
pub(crate) fn part_of(row_key: &[u8]) -> Option<u32> {
    let (_, part) = row_key.split_at_checked(16)?;
    part.try_into().ok().map(u32::from_be_bytes)
}
