//! Every table of the database. All of them map bytes to bytes: ids as they sort, values as
//! [`codec`](super::codec) writes them. That lets backup and verification walk any table.

use redb::TableDefinition;

pub(super) type Definition = TableDefinition<'static, &'static [u8], &'static [u8]>;

/// The name of a table, which is also what a record's MAC is bound to.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct Table(&'static str);

impl Table {
    pub fn name(self) -> &'static str {
        self.0
    }

    pub(super) fn definition(self) -> Definition {
        TableDefinition::new(self.0)
    }
}

/// Layout version, check value of the pepper; in a backup the pepper itself.
pub const META: Table = Table("meta");
/// Project id → project.
pub const PROJECTS: Table = Table("projects");
/// Key id → key.
pub const KEYS: Table = Table("keys");
/// Project id, key id → nothing: which keys a project has.
pub const KEYS_BY_PROJECT: Table = Table("keys_by_project");
/// Project id, audit id → audit row.
pub const AUDIT: Table = Table("audit");
/// Audit id → project id: the rows of all projects in order of time.
pub const AUDIT_BY_TIME: Table = Table("audit_by_time");

/// What opening a store creates if it is not there.
pub const ALL: &[Table] = &[META, PROJECTS, KEYS, KEYS_BY_PROJECT, AUDIT, AUDIT_BY_TIME];
