//! Every SQL statement of the program, in the subset that PostgreSQL 14, CockroachDB and YugabyteDB share.
//!
//! `{table}` in the functions below is a name without the prefix. Times are milliseconds of the database's clock, so
//! the clocks of the nodes do not matter.

use super::settings::Timeouts;

/// Begins the name of every table.
pub(super) const PREFIX: &str = "outpost_";

/// Tables of this engine itself, without the prefix.
pub(super) const OWN_TABLES: &[&str] = &["nodes", "heartbeats", "changes", "turn"];

/// The database's clock in milliseconds since 1970.
macro_rules! now_ms {
    () => {
        "floor(extract(epoch FROM clock_timestamp()) * 1000)::bigint"
    };
}

// Transactions.

pub(super) const BEGIN_WRITE: &str = "BEGIN ISOLATION LEVEL SERIALIZABLE";
/// The lock comes before the snapshot, which the first statement that reads takes. See [`turn`](super::turn).
pub(super) const BEGIN_WRITE_SHARED: &str =
    "BEGIN ISOLATION LEVEL SERIALIZABLE; LOCK TABLE outpost_turn IN ROW SHARE MODE";
/// Waits for the transactions that hold the lock, for half a second at most.
pub(super) const BEGIN_WRITE_EXCLUSIVE: &str = "BEGIN ISOLATION LEVEL SERIALIZABLE; SET LOCAL lock_timeout = 500; \
     LOCK TABLE outpost_turn IN EXCLUSIVE MODE";
pub(super) const BEGIN_READ: &str = "BEGIN ISOLATION LEVEL REPEATABLE READ READ ONLY";
/// For transactions that lock rows before they read them: registrations and exchanges.
pub(super) const BEGIN_READ_COMMITTED: &str = "BEGIN ISOLATION LEVEL READ COMMITTED";
pub(super) const COMMIT: &str = "COMMIT";
pub(super) const ROLLBACK: &str = "ROLLBACK";

// Rows.

/// The rows of several keys.
pub(super) fn get(table: &str) -> String {
    format!("SELECT k, v FROM {PREFIX}{table} WHERE k = ANY($1::bytea[])")
}

/// The rows of several keys, locked in ascending order, so that transactions wait for one another without a deadlock.
pub(super) fn lock(table: &str) -> String {
    format!("SELECT k, v FROM {PREFIX}{table} WHERE k = ANY($1::bytea[]) ORDER BY k FOR UPDATE")
}

/// The order of a page's rows.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Order {
    Ascending,
    Descending,
}

/// A page of rows from `$1` on: all, or those before `$2`. The last parameter is the number of rows.
pub(super) fn page(table: &str, values: bool, bounded: bool, order: Order) -> String {
    let columns = if values { "k, v" } else { "k" };
    let (upper, limit) = if bounded { (" AND k < $2", "$3") } else { ("", "$2") };
    let direction = if order == Order::Descending { " DESC" } else { "" };
    format!("SELECT {columns} FROM {PREFIX}{table} WHERE k >= $1{upper} ORDER BY k{direction} LIMIT {limit}::bigint")
}

pub(super) fn put(table: &str) -> String {
    format!(
        "INSERT INTO {PREFIX}{table} (k, v) SELECT * FROM unnest($1::bytea[], $2::bytea[]) \
         ON CONFLICT (k) DO UPDATE SET v = excluded.v"
    )
}

pub(super) fn remove(table: &str) -> String {
    format!("DELETE FROM {PREFIX}{table} WHERE k = ANY($1::bytea[])")
}

/// Inserts rows that do not exist yet.
pub(super) fn fill(table: &str) -> String {
    format!(
        "INSERT INTO {PREFIX}{table} (k, v) SELECT * FROM unnest($1::bytea[], $2::bytea[]) ON CONFLICT (k) DO NOTHING"
    )
}

pub(super) fn count(table: &str) -> String {
    format!("SELECT count(*) FROM {PREFIX}{table}")
}

// Nodes.

/// Parameters: node, epoch, old and new sequence number. Changes no row if the node is fenced.
pub(super) const ADVANCE: &str = "UPDATE outpost_nodes SET seq = $4 WHERE node = $1 AND epoch = $2 AND seq = $3";
/// Follows COMMIT as its proof.
pub(super) const SEQ: &str = "SELECT seq, epoch FROM outpost_nodes WHERE node = $1";
/// Settles a commit with an unknown outcome. As a write, it waits for the lost transaction's lock, or ends that
/// transaction.
pub(super) const SETTLE: &str =
    "UPDATE outpost_nodes SET attempt = attempt + 1 WHERE node = $1 AND epoch = $2 RETURNING seq";
/// Registrations run one at a time.
pub(super) const LOCK_REGISTRATION: &str = "SELECT id FROM outpost_turn WHERE id = 0 FOR UPDATE";
/// All nodes, with the time until which each one's heartbeat is valid (0 if it has none), and the time now.
pub(super) const NODES: &str = concat!(
    "SELECT n.node, n.name, n.epoch, n.seq, coalesce(h.until_ms, 0), ",
    now_ms!(),
    " FROM outpost_nodes n LEFT JOIN outpost_heartbeats h ON h.node = n.node ORDER BY n.node"
);
pub(super) const ADD_NODE: &str =
    "INSERT INTO outpost_nodes (node, name, epoch, seq, attempt) VALUES ($1, $2, $3, 0, 0)";
/// Fences the process that had the node. Parameters: node, epoch, name.
pub(super) const TAKE_NODE: &str = "UPDATE outpost_nodes SET epoch = $2, name = $3 WHERE node = $1 RETURNING seq";
/// Parameters: node, epoch, validity in milliseconds, layout.
pub(super) const FIRST_HEARTBEAT: &str = concat!(
    "INSERT INTO outpost_heartbeats (node, epoch, until_ms, layout) VALUES ($1, $2, ",
    now_ms!(),
    " + $3::bigint, $4) ON CONFLICT (node) DO UPDATE SET epoch = excluded.epoch, until_ms = excluded.until_ms, \
     layout = excluded.layout"
);
/// Parameters: node, epoch, validity in milliseconds. Changes no row if the node is fenced.
pub(super) const HEARTBEAT: &str =
    concat!("UPDATE outpost_heartbeats SET until_ms = ", now_ms!(), " + $3::bigint WHERE node = $1 AND epoch = $2");
pub(super) const END_HEARTBEAT: &str = "DELETE FROM outpost_heartbeats WHERE node = $1 AND epoch = $2";
/// Ends the part of the change log that is older than all that nodes still read. Parameters: first and end of the keys.
pub(super) const TRIM_CHANGES: &str = "DELETE FROM outpost_changes WHERE k >= $1 AND k < $2";
/// The database's clock.
pub(super) const NOW: &str = concat!("SELECT ", now_ms!());
/// For sessions whose writes may be lost if the database crashes.
pub(super) const NO_WAIT_FOR_DISK: &str = "SET synchronous_commit = off";

// Schema.

/// The names of all tables of outpost.
pub(super) const TABLES: &str = "SELECT tablename::text FROM pg_catalog.pg_tables WHERE schemaname = current_schema() AND tablename LIKE 'outpost\\_%'";

/// YugabyteDB distributes rows by hash otherwise, which makes ordered walks slow. Other databases refuse it.
pub(super) const RANGE_TABLES: &str = "SET yb_use_hash_splitting_by_default = false";

/// The statement that creates a table. All numbers are `bigint`, because `int` has 64 bits in CockroachDB.
pub(super) fn create(table: &str) -> String {
    let columns = match table {
        "nodes" => {
            "node bigint PRIMARY KEY, name text NOT NULL UNIQUE, epoch bigint NOT NULL, seq bigint NOT NULL, \
             attempt bigint NOT NULL"
        }
        "heartbeats" => {
            "node bigint PRIMARY KEY, epoch bigint NOT NULL, until_ms bigint NOT NULL, layout bigint NOT NULL"
        }
        "turn" => "id bigint PRIMARY KEY",
        _ => "k bytea PRIMARY KEY, v bytea NOT NULL",
    };
    format!("CREATE TABLE IF NOT EXISTS {PREFIX}{table} ({columns})")
}

/// The row that registrations lock.
pub(super) const ADD_REGISTRATION: &str = "INSERT INTO outpost_turn (id) VALUES (0) ON CONFLICT (id) DO NOTHING";

// Session.

/// The settings of a session. A database that does not know one is used without it.
///
/// Without sequential scans a transaction reads, and so locks, only the part of a table that it looks at. A commit
/// waits until it is durable, even if the operator has made that optional.
pub(super) fn session(timeouts: &Timeouts) -> Vec<String> {
    vec![
        format!("SET statement_timeout = {}", timeouts.statement.as_millis()),
        format!("SET lock_timeout = {}", timeouts.lock.as_millis()),
        format!("SET idle_in_transaction_session_timeout = {}", timeouts.idle_transaction.as_millis()),
        "SET enable_seqscan = off".to_owned(),
        "SET enable_bitmapscan = off".to_owned(),
        "SELECT set_config('synchronous_commit', 'on', false) WHERE current_setting('synchronous_commit') = 'off'"
            .to_owned(),
    ]
}

/// The settings of a snapshot that reads whole tables. Between two reads, another store may be read for long.
pub(super) fn long_read(timeouts: &Timeouts) -> Vec<String> {
    let limit = timeouts.count.as_millis();
    vec![
        format!("SET LOCAL statement_timeout = {limit}"),
        "SET LOCAL idle_in_transaction_session_timeout = 0".to_owned(),
    ]
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::tables;

    /// Operators who create the tables themselves rely on the page.
    #[test]
    fn the_page_lists_every_statement_and_table() {
        let page = include_str!("../../../../docs/postgresql.md");
        let mut listed = vec![get("T"), lock("T"), put("T"), remove("T"), fill("T"), count("T"), create("T")];
        listed.push(super::page("T", true, true, Order::Descending));
        listed.extend(OWN_TABLES.iter().map(|name| create(name)));
        let constants = [
            BEGIN_WRITE,
            BEGIN_WRITE_SHARED,
            BEGIN_WRITE_EXCLUSIVE,
            BEGIN_READ,
            BEGIN_READ_COMMITTED,
            COMMIT,
            ROLLBACK,
            ADVANCE,
            SEQ,
            SETTLE,
            LOCK_REGISTRATION,
            NOW,
            NODES,
            ADD_NODE,
            TAKE_NODE,
            TRIM_CHANGES,
            NO_WAIT_FOR_DISK,
            FIRST_HEARTBEAT,
            HEARTBEAT,
            END_HEARTBEAT,
            TABLES,
            RANGE_TABLES,
            ADD_REGISTRATION,
        ];
        listed.extend(constants.map(str::to_owned));
        listed.extend(session(&Timeouts::default()).into_iter().skip(3));
        for statement in listed {
            assert!(page.contains(&statement), "docs/postgresql.md lacks: {statement}");
        }
        let (_, list) = page.split_once("The tables `outpost_T` are:").unwrap();
        let words: Vec<&str> = list.split(|c: char| !(c.is_ascii_lowercase() || c == '_')).collect();
        for table in tables::ALL {
            assert!(words.contains(&table.name()), "docs/postgresql.md lacks the table {}", table.name());
        }
    }
}
