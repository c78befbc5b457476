//! What a subcommand returns, and how it prints the records of the store.

use std::cell::Cell;
use std::collections::BTreeMap;
use std::error::Error;
use std::io::{self, Write};

use crate::control_socket::{OTHER_VERSION, Reply};
use crate::display::format_count;

/// The error is shown to the user.
pub(super) type Outcome = Result<(), Box<dyn Error>>;

/// A writer that notes when the reader of its pipe has closed it, as `head` does.
pub(super) struct PipeWriter<'a, W> {
    pub writer: W,
    pub has_no_reader: &'a Cell<bool>,
}

impl<W> PipeWriter<'_, W> {
    fn note<T>(&self, result: io::Result<T>) -> io::Result<T> {
        result.inspect_err(|error| self.has_no_reader.set(error.kind() == io::ErrorKind::BrokenPipe))
    }
}

impl<W: Write> Write for PipeWriter<'_, W> {
    fn write(&mut self, bytes: &[u8]) -> io::Result<usize> {
        let written = self.writer.write(bytes);
        self.note(written)
    }

    fn flush(&mut self) -> io::Result<()> {
        let flushed = self.writer.flush();
        self.note(flushed)
    }
}

/// A number of things, such as `1 model` and `2 models`.
pub(super) fn counted(count: usize, noun: &str) -> String {
    if count == 1 { format!("1 {noun}") } else { format!("{count} {noun}s") }
}

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
