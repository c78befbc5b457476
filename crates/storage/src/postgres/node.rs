//! A node: a server that shares the database with others, under a name.
//!
//! The row of a node has its number, an epoch and a sequence number. Each registration under the name raises the epoch.
//! Each write transaction begins with an update of the row that requires the epoch and the sequence number, so a
//! process that has been replaced can write nothing more.
//!
//! Every node renews a heartbeat by the database's clock ([`membership`](super::membership)). Registrations run one at a
//! time, because they lock a row of the table `turn` first. A new name gets the number of a node that has left or has
//! been silent for a day, so that servers with names of their own at every start do not use up the numbers.
//!
//! The row is also read after COMMIT to prove it, because the database reports success for the COMMIT of a transaction
//! that has failed. After a lost connection, an update of the row waits for the old transaction or aborts it, and then
//! tells whether it was committed. Advisory locks would have been shorter, but CockroachDB and YugabyteDB do not have
//! them. A node that was silent for less than a day keeps its number, because it may only be cut off.

use std::time::Duration;

use super::connection::{Connection, Phase, Request, column};
use super::error::{PostgresError, PostgresOpenError};
use super::statements;
use crate::cluster::{Answer, NodeProcess, millis};

/// How long a heartbeat is valid.
pub const HEARTBEAT_VALID: Duration = Duration::from_secs(10);

/// How long a node must have been silent before another name gets its number.
const ABANDONED_AFTER: Duration = Duration::from_secs(86_400);

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
    /// Number of registrations under this number.
    pub epoch: i64,
    /// Number of commits of this node.
    pub seq: i64,
}

impl Node {
    /// # Errors
    /// If the number is too great, which takes 65,536 nodes.
    pub(super) fn process(&self) -> Result<NodeProcess, PostgresError> {
        let numbers = u16::try_from(self.number).ok().zip(u64::try_from(self.epoch).ok());
        let process = numbers.map(|(number, epoch)| NodeProcess { number, epoch });
        process.ok_or_else(|| PostgresError::Refused("More than 65,535 nodes have used this database.".to_owned()))
    }
}

/// A row of the tables of nodes and heartbeats.
pub(super) struct Registered {
    pub node: Node,
    /// When the heartbeat ends, in milliseconds of the database's clock; 0 if there is none.
    until_ms: i64,
    /// The database's clock when the row was read.
    pub now_ms: i64,
}

impl Registered {
    pub fn is_alive(&self) -> bool {
        self.until_ms > self.now_ms
    }

    fn is_abandoned(&self) -> bool {
        self.until_ms.saturating_add(millis(ABANDONED_AFTER)) <= self.now_ms
    }
}

/// Checks the name of a node.
pub(super) fn check_name(name: &str) -> Result<(), PostgresOpenError> {
    let is_invalid = name.is_empty() || name.chars().count() > MAX_NAME || name.chars().any(char::is_control);
    match is_invalid {
        true => Err(PostgresOpenError::BadNodeName(name.chars().take(MAX_NAME).collect())),
        false => Ok(()),
    }
}

/// Registers this process under a name. A process that had the name before is fenced.
pub async fn register(connection: &mut Connection, name: &str, layout: u32) -> Result<Node, PostgresOpenError> {
    check_name(name)?;
    let mut attempts = 1;
    loop {
        let result = try_register(connection, name, layout).await;
        connection.rollback();
        match result {
            Err(PostgresError::Conflict(_)) if attempts < ATTEMPTS => attempts += 1,
            result => return Ok(result?),
        }
    }
}

async fn try_register(connection: &mut Connection, name: &str, layout: u32) -> Result<Node, PostgresError> {
    connection.phase = Phase::Writing;
    connection.run_one(Request::command(statements::BEGIN_READ_COMMITTED)).await?;
    connection.run_one(Request::rows(statements::LOCK_REGISTRATION, Vec::new())).await?;
    let nodes = registered(connection).await?;
    let name_of = |known: &&Registered| known.node.name == name;
    let free = nodes.iter().find(name_of).or_else(|| nodes.iter().find(|known| known.is_abandoned()));
    let last = nodes.iter().map(|other| other.node.number).max().unwrap_or(0);
    let (node, is_new) = match free {
        Some(free) => (Node { name: name.to_owned(), epoch: free.node.epoch + 1, ..free.node.clone() }, false),
        None => (Node { name: name.to_owned(), number: last + 1, epoch: 1, seq: 0 }, true),
    };
    node.process()?;
    // The process that had the number before may have committed since the row was read.
    let seq = write(connection, &node, is_new, layout).await?;
    Ok(Node { seq, ..node })
}

/// Fails if a server is alive.
///
/// # Errors
/// [`PostgresOpenError::InUse`].
pub async fn require_none(connection: &mut Connection) -> Result<(), PostgresOpenError> {
    match registered(connection).await?.into_iter().find(Registered::is_alive) {
        Some(alive) => Err(PostgresOpenError::InUse { name: alive.node.name }),
        None => Ok(()),
    }
}

/// All nodes.
pub(super) async fn registered(connection: &mut Connection) -> Result<Vec<Registered>, PostgresError> {
    let rows = connection.run_one(Request::rows(statements::NODES, Vec::new())).await?.into_rows();
    rows.iter().map(read).collect()
}

/// A row of the statement that reads all nodes.
pub(super) fn read(row: &tokio_postgres::Row) -> Result<Registered, PostgresError> {
    let node = Node { number: column(row, 0)?, name: column(row, 1)?, epoch: column(row, 2)?, seq: column(row, 3)? };
    Ok(Registered { node, until_ms: column(row, 4)?, now_ms: column(row, 5)? })
}

/// The state of all nodes, read between two points of the uptime.
pub(super) fn answer(nodes: &[Registered], asked: Duration, answered: Duration) -> Result<Answer, PostgresError> {
    let alive = nodes.iter().filter(|known| known.is_alive()).map(|known| known.node.process());
    let database_millis = nodes.first().map_or(0, |known| known.now_ms);
    Ok(Answer { asked, answered, database_millis, alive: alive.collect::<Result<_, _>>()? })
}

/// Writes the rows of a registration and commits. Returns the node's sequence number.
async fn write(connection: &mut Connection, node: &Node, is_new: bool, layout: u32) -> Result<i64, PostgresError> {
    let valid = millis(HEARTBEAT_VALID);
    let layout = i64::from(layout);
    let row = if is_new {
        Request::count(statements::ADD_NODE, vec![&node.number, &node.name, &node.epoch])
    } else {
        Request::rows(statements::TAKE_NODE, vec![&node.number, &node.epoch, &node.name])
    };
    let requests = vec![
        row,
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
    let valid = millis(HEARTBEAT_VALID);
    let request = Request::count(statements::HEARTBEAT, vec![&node.number, &node.epoch, &valid]);
    match connection.run_one(request).await?.changed() {
        1 => Ok(()),
        _ => Err(PostgresError::Fenced),
    }
}

/// Ends the heartbeat, so that other nodes take over what this one does at once.
pub async fn leave(connection: &mut Connection, node: &Node) -> Result<(), PostgresError> {
    connection.run_one(Request::count(statements::END_HEARTBEAT, vec![&node.number, &node.epoch])).await?;
    Ok(())
}
