//! A node: a process that writes, under a name.
//!
//! The row of a node has its number, an epoch and a sequence number. Whoever registers under the name raises the
//! epoch. Each write transaction begins with an update of the row that requires the epoch and the sequence number, so
//! a process that has been replaced can write nothing more.
//!
//! For now only one node may use a database. Every node renews a heartbeat by the database's clock
//! ([`heartbeat`](super::heartbeat)). Registration under another name is refused while a heartbeat is valid. When it
//! has expired, registration fences the silent node, in case that it is only slow. Registrations run one at a time,
//! because they lock the row of the table `turn` first.

use std::time::Duration;

use super::connection::{Connection, Phase, Request};
use super::error::{PostgresError, PostgresOpenError};
use super::rows::column;
use super::statements;

/// How long a heartbeat is valid.
pub const HEARTBEAT_VALID: Duration = Duration::from_secs(10);

/// Max characters of a node's name.
const MAX_NAME: usize = 200;

/// Attempts to register while other nodes register too, or a process that has just died still holds a lock. Each one
/// waits for the lock as long as the session's settings say.
const ATTEMPTS: usize = 8;

/// This process as a node.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Node {
    pub name: String,
    /// Counts from 1.
    pub number: i64,
    /// Number of registrations under this name.
    pub epoch: i64,
    /// Number of commits of this node.
    pub seq: i64,
}

/// A row of the tables of nodes and heartbeats.
struct Registered {
    node: Node,
    /// How long the heartbeat is still valid, by the database's clock; at most 0 if it has expired.
    valid_ms: i64,
}

/// Registers this process under a name. A process that had the name before is fenced.
///
/// # Errors
/// [`PostgresOpenError::OtherNode`] while a node of another name is alive.
pub async fn register(connection: &mut Connection, name: &str, layout: u32) -> Result<Node, PostgresOpenError> {
    if name.is_empty() || name.chars().count() > MAX_NAME || name.chars().any(char::is_control) {
        return Err(PostgresOpenError::BadNodeName(name.chars().take(MAX_NAME).collect()));
    }
    let mut attempts = 1;
    loop {
        let result = try_register(connection, name, layout).await;
        connection.rollback();
        match result {
            Err(PostgresOpenError::Failed(PostgresError::Conflict(_))) if attempts < ATTEMPTS => attempts += 1,
            result => return result,
        }
    }
}

async fn try_register(connection: &mut Connection, name: &str, layout: u32) -> Result<Node, PostgresOpenError> {
    connection.phase = Phase::Writing;
    connection.run_one(Request::command(statements::BEGIN_TURN)).await?;
    connection.run_one(Request::rows(statements::LOCK_TURN, Vec::new())).await?;
    let nodes = registered(connection).await?;
    let alive = nodes.iter().find(|other| other.node.name != name && other.valid_ms > 0);
    if let Some(alive) = alive {
        let seconds = (alive.valid_ms + 999) / 1000;
        return Err(PostgresOpenError::OtherNode { name: alive.node.name.clone(), seconds });
    }
    let last = nodes.iter().map(|other| other.node.number).max().unwrap_or(0);
    let known = nodes.into_iter().find(|other| other.node.name == name);
    let (node, is_new) = match known {
        Some(known) => (Node { epoch: known.node.epoch + 1, ..known.node }, false),
        None => (Node { name: name.to_owned(), number: last + 1, epoch: 1, seq: 0 }, true),
    };
    // The process that had the name before may have committed since the row was read.
    let seq = write(connection, &node, is_new, layout).await?;
    Ok(Node { seq, ..node })
}

/// Fails if a server is alive.
///
/// # Errors
/// [`PostgresOpenError::InUse`].
pub async fn require_none(connection: &mut Connection) -> Result<(), PostgresOpenError> {
    match registered(connection).await?.into_iter().find(|known| known.valid_ms > 0) {
        Some(alive) => Err(PostgresOpenError::InUse { name: alive.node.name }),
        None => Ok(()),
    }
}

async fn registered(connection: &mut Connection) -> Result<Vec<Registered>, PostgresError> {
    let rows = connection.run_one(Request::rows(statements::NODES, Vec::new())).await?.into_rows();
    let read = |row: &tokio_postgres::Row| {
        let node =
            Node { number: column(row, 0)?, name: column(row, 1)?, epoch: column(row, 2)?, seq: column(row, 3)? };
        Ok(Registered { node, valid_ms: column(row, 4)? })
    };
    rows.iter().map(read).collect()
}

/// Writes the rows of a registration and commits. Returns the node's sequence number.
async fn write(connection: &mut Connection, node: &Node, is_new: bool, layout: u32) -> Result<i64, PostgresError> {
    let valid = valid_ms();
    let layout = i64::from(layout);
    let row = if is_new {
        Request::count(statements::ADD_NODE, vec![&node.number, &node.name, &node.epoch])
    } else {
        Request::rows(statements::TAKE_NODE, vec![&node.number, &node.epoch])
    };
    let requests = vec![
        row,
        Request::count(statements::FENCE_OTHERS, vec![&node.number]),
        Request::count(statements::END_OTHER_HEARTBEATS, vec![&node.number]),
        Request::count(statements::FIRST_HEARTBEAT, vec![&node.number, &node.epoch, &valid, &layout]),
        Request::command(statements::COMMIT),
    ];
    let answers = connection.run_all(requests).await?;
    connection.phase = Phase::Idle;
    let rows = answers.into_iter().next().map(super::connection::Answer::into_rows).unwrap_or_default();
    rows.first().map_or(Ok(0), |row| column(row, 0))
}

/// Renews the heartbeat.
///
/// # Errors
/// [`PostgresError::Fenced`] if another process has registered since.
pub async fn renew(connection: &mut Connection, node: &Node) -> Result<(), PostgresError> {
    let valid = valid_ms();
    let request = Request::count(statements::HEARTBEAT, vec![&node.number, &node.epoch, &valid]);
    match connection.run_one(request).await?.changed() {
        1 => Ok(()),
        _ => Err(PostgresError::Fenced),
    }
}

/// Ends the heartbeat, so that another node can start at once.
pub async fn leave(connection: &mut Connection, node: &Node) -> Result<(), PostgresError> {
    connection.run_one(Request::count(statements::END_HEARTBEAT, vec![&node.number, &node.epoch])).await?;
    Ok(())
}

fn valid_ms() -> i64 {
    i64::try_from(HEARTBEAT_VALID.as_millis()).unwrap_or(i64::MAX)
}
