//! Responses that one node of a shared store generates and streams on other nodes follow.
//!
//! The node that generates stores new steps twice a second, in numbered parts. A node with streams of the response reads
//! them into its [`LiveResponse`], once for all its streams. Each generation has a number. Steps of another one are never
//! added: if the node fails and the response is generated again, the streams end.
//!
//! A connection between nodes would need addresses, authentication and certificates for a network that does not exist
//! otherwise. A stream ends with an error when the generation changes, because the texts of two generations may differ
//! by rounding.

use std::convert::Infallible;
use std::future::pending;
use std::time::Duration;

use tokio::time::{Instant, sleep};

use super::live::{LiveResponse, OutputSteps, PartReader};
use crate::error::Result;
use crate::ids::ResponseId;
use crate::service::responses::{GenerationParts, GenerationProgress, MAX_PARTS, MAX_STEPS_BYTES, Responses};

/// Between two parts.
const PUBLISH_INTERVAL: Duration = Duration::from_millis(500);
/// Between two reads for the streams of a node.
const READ_INTERVAL: Duration = Duration::from_millis(250);
/// The time until a read is tried again that has failed.
const RETRY_INTERVAL: Duration = Duration::from_secs(1);

/// Tells the other nodes of a generation until this is dropped. `number`: that of the generation; `None` if there are no
/// other nodes. `live`: the response, if its steps are kept.
pub async fn publish(
    responses: &Responses,
    id: ResponseId,
    number: Option<u64>,
    live: Option<&LiveResponse>,
) -> Infallible {
    let Some(number) = number else { return pending().await };
    let is_open = until_stored(async || responses.begin_generation(id, number).await).await;
    let Some(live) = live.filter(|_| is_open) else { return pending().await };
    let (mut part, mut known, mut bytes) = (0, 0, 0);
    loop {
        // The first part may be empty. It tells how steps are encoded.
        if let Some((json, steps)) = json_after(live, known).filter(|(_, steps)| *steps > 0 || part == 0) {
            known += steps;
            bytes += json.len();
            let has_room = bytes <= MAX_STEPS_BYTES && part < MAX_PARTS;
            let append = async || responses.append_part(id, number, part, json.clone()).await;
            if !has_room || !until_stored(append).await {
                return pending().await;
            }
            part += 1;
        }
        sleep(PUBLISH_INTERVAL).await;
    }
}

/// The JSON of the steps that follow the first `known`, and their number.
fn json_after(live: &LiveResponse, known: usize) -> Option<(String, usize)> {
    let news = live.steps_after(known);
    let count = news.steps.len();
    let output = OutputSteps { generation: news.generation, format: news.format?, steps: news.steps };
    Some((serde_json::to_string(&output).ok()?, count))
}

/// Tries a write until the store has carried it out.
async fn until_stored(mut write: impl AsyncFnMut() -> Result<bool>) -> bool {
    loop {
        match write().await {
            Ok(is_running) => return is_running,
            Err(error) => tracing::debug!(%error, "steps of a response could not be stored; it is tried again"),
        }
        sleep(PUBLISH_INTERVAL).await;
    }
}

/// Reads what another node has generated of a response, unless that was done just now. Returns when to look again; `None`:
/// not needed.
pub async fn update(responses: &Responses, id: ResponseId, live: &LiveResponse) -> Option<Instant> {
    if !responses.is_shared() || !live.may_run_elsewhere() {
        return None;
    }
    // While another stream reads, this one waits for its news.
    let Ok(mut reader) = live.reader.try_lock() else { return Some(Instant::now() + READ_INTERVAL) };
    if let Some(due) = reader.due.filter(|due| *due > Instant::now()) {
        return Some(due);
    }
    let due = match read_all(responses, id, live, &mut reader).await {
        Ok(()) => Instant::now() + READ_INTERVAL,
        Err(error) => {
            tracing::debug!(%error, "the progress of a response could not be read; it is tried again");
            Instant::now() + RETRY_INTERVAL
        }
    };
    reader.due = Some(due);
    Some(due)
}

async fn read_all(responses: &Responses, id: ResponseId, live: &LiveResponse, reader: &mut PartReader) -> Result<()> {
    loop {
        let known = live.generation();
        match responses.progress(id, known, reader.next_part).await? {
            GenerationProgress::Waiting => return Ok(()),
            GenerationProgress::Running(GenerationParts { number, parts, has_more }) => {
                if known.is_some_and(|known| known != number) {
                    live.interrupt();
                    return Ok(());
                }
                for json in parts {
                    if let Some(part) = OutputSteps::parse(&json)? {
                        live.add_part(part);
                    }
                    reader.next_part += 1;
                }
                if !has_more {
                    return Ok(());
                }
            }
            GenerationProgress::Interrupted => {
                // Streams that have sent nothing of it wait for the next generation.
                if known.is_some() {
                    live.interrupt();
                }
                return Ok(());
            }
            GenerationProgress::Ended { steps } => {
                live.end_with(OutputSteps::parse(&steps.unwrap_or_default())?);
                return Ok(());
            }
        }
    }
}
