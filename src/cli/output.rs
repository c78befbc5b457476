//! What a subcommand returns, and how it prints the records of the store.

use std::collections::BTreeMap;
use std::error::Error;
use std::io::Write;

use crate::control_socket::{OTHER_VERSION, Reply};
use crate::display::format_count;

/// The error is shown to the user.
pub(super) type Outcome = Result<(), Box<dyn Error>>;

/// The number of records: `12,431 records`. With `verbose`, a line per table is printed first.
pub(super) fn count_records(
    records: &BTreeMap<String, u64>,
    verbose: bool,
    out: &mut dyn Write,
) -> Result<String, Box<dyn Error>> {
    if verbose {
        for (table, count) in records {
            writeln!(out, "{table}: {}", format_count(*count))?;
        }
    }
    Ok(format!("{} records", format_count(records.values().sum())))
}

/// The error for a reply of the server that is not a result.
pub(super) fn failure(reply: Reply) -> Box<dyn Error> {
    match reply {
        Reply::Failed { message } => message.into(),
        _ => OTHER_VERSION.into(),
    }
}
