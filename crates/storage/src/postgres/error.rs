//! Errors of the database and of its use, for the writer and for the operator.

use crate::engine::{Failed, Health};

/// An operation on the database failed.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum PostgresError {
    /// Nothing was written. The transaction can run again at once.
    #[error("the transaction conflicts with another one: {0}")]
    Conflict(String),
    /// The connection is gone, or the database cannot answer at the moment.
    #[error("the database does not answer: {reason}")]
    Lost {
        /// Set if the transaction may be committed in spite of the error. Otherwise, nothing was written.
        commit_sent: bool,
        reason: String,
    },
    /// Another process has this node's row now. This process must not write any more.
    #[error("another process has taken over this node; this process must stop")]
    Fenced,
    /// The operator must change something. The message says what.
    #[error("{0}")]
    Refused(String),
    /// The database and this program do not understand each other.
    #[error("the database refused a statement of outpost: {0}")]
    Bug(String),
}

impl PostgresError {
    pub(super) fn lost(reason: impl Into<String>) -> Self {
        Self::Lost { commit_sent: false, reason: reason.into() }
    }

    /// The same error of a step that contained COMMIT.
    pub(super) fn in_commit(self) -> Self {
        match self {
            Self::Lost { reason, .. } => Self::Lost { commit_sent: true, reason },
            other => other,
        }
    }

    pub fn is_lost(&self) -> bool {
        matches!(self, Self::Lost { .. })
    }
}

/// A read failed. The next snapshot uses another connection.
impl From<PostgresError> for Failed {
    fn from(error: PostgresError) -> Self {
        let health = if error.is_lost() { Health::Broken } else { Health::Sound };
        Self { health, reason: error.to_string() }
    }
}

/// Why a database cannot be used as a store. Each message says what to do.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum PostgresOpenError {
    #[error(transparent)]
    Failed(#[from] PostgresError),
    #[error(
        "The database has layout {found}, but this outpost knows layouts up to {known}. A newer outpost wrote it: \
         start that version."
    )]
    NewerLayout { found: u32, known: u32 },
    #[error(
        "The database has layout {found}, but this outpost writes layout {known}, and only databases in a data folder \
         are migrated. With the outpost that wrote it, copy the store to a folder with `outpost store copy`; start this \
         one with that folder once; then copy the store back into an empty database."
    )]
    OlderLayout { found: u32, known: u32 },
    #[error("The table outpost_meta is damaged ({0}). Restore the database from your latest backup.")]
    Damaged(String),
    #[error(
        "A copy into the database was interrupted, or is still running, so the database does not have all records. Run \
         `outpost store copy` again with the same --from and --to, which starts over, or drop the tables whose names \
         begin with outpost_ to begin without the records."
    )]
    UnfinishedCopy,
    #[error(
        "The table outpost_{table} has rows, but the table outpost_meta has no layout version: an unreleased build of \
         outpost wrote the database, or it is not a whole store. To start anew, drop the tables whose names begin with \
         outpost_ and move the data folder away. Otherwise restore the database from your latest backup."
    )]
    NoLayout { table: &'static str },
    #[error(
        "The pepper file of this data folder does not belong to the database. All nodes need the same one: copy the \
         file `pepper` from the data folder of the first node into this one."
    )]
    WrongPepper,
    #[error(
        "The database belongs to a store whose pepper is not in the data folder {folder}. Copy the file `pepper` from \
         the data folder of the first node into it. To begin without its records, drop the tables whose names begin with \
         outpost_."
    )]
    NoPepper { folder: String },
    #[error(
        "The server '{name}' is using the database. Stop it first, because the copy would not have what it writes. If it \
         has crashed, try again in ten seconds."
    )]
    InUse { name: String },
    #[error("There is no store in {database}. Check the URL, or start a server with it.")]
    NoStore { database: String },
    #[error(
        "{database} is not empty. A copy never overwrites: choose another database, or drop the tables whose names \
         begin with outpost_ if they are the rest of a copy that failed."
    )]
    NotEmpty { database: String },
    #[error(
        "The node name '{0}' cannot be used. A name has 1 to 200 characters, none of which is a control character."
    )]
    BadNodeName(String),
}
