//! Exports of the audit log and the metered requests: all matching rows, newest first, read in batches and never held
//! in memory as a whole.

use std::io::{BufWriter, Write};
use std::path::Path;
use std::str::FromStr;

use serde::{Deserialize, Serialize};
use serde_json::value::RawValue;

use super::access::Access;
use super::access::authorize;
use super::audit::{Audit, AuditEvent, AuditFilter, admit, scan};
use super::usage::{ExportFilter, UsageRow};
use crate::clock_rng::Timestamp;
use crate::error::{Error, Result};
use crate::ids::ProjectId;
use crate::json_lines;
use crate::storage::{NewFile, Store, projects};

/// Rows per batch.
const BATCH_ROWS: usize = 1000;

const COLUMNS: [&str; 7] = ["at", "id", "project_id", "actor", "action", "target", "detail"];

/// The format of an export.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "lowercase")]
pub enum Format {
    /// RFC 4180, with a header line.
    Csv,
    /// One JSON object a line.
    Jsonl,
}

impl FromStr for Format {
    type Err = String;

    fn from_str(text: &str) -> Result<Self, String> {
        match text {
            "csv" => Ok(Format::Csv),
            "jsonl" => Ok(Format::Jsonl),
            _ => Err("formats are csv and jsonl".into()),
        }
    }
}

impl Audit {
    /// All matching rows, as text.
    pub async fn export(&self, access: &Access, filter: AuditFilter, format: Format) -> Result<Export> {
        admit(access, &filter)?;
        if let Some(project) = filter.project {
            let access = access.clone();
            self.store.read(move |tx| authorize::named_project(tx, &access, project).map(drop)).await?;
        }
        Ok(Export::new(self.store.clone(), filter, format))
    }
}

/// A running export of the audit log.
pub struct Export {
    store: Store,
    filter: AuditFilter,
    format: Format,
    position: Position,
}

enum Position {
    Start,
    Below([u8; 16]),
    End,
}

impl Export {
    fn new(store: Store, filter: AuditFilter, format: Format) -> Self {
        Self { store, filter, format, position: Position::Start }
    }

    /// The next rows, as text; `None` at the end. Never empty.
    pub async fn next(&mut self) -> Result<Option<Vec<u8>>> {
        loop {
            let (before, first) = match self.position {
                Position::Start => (None, true),
                Position::Below(position) => (Some(position), false),
                Position::End => return Ok(None),
            };
            let filter = self.filter.clone();
            let found = self.store.read(move |tx| scan(tx, &filter, before, BATCH_ROWS)).await?;
            self.position = found.next.map_or(Position::End, Position::Below);
            let text = self.format.encode(found.events, first)?;
            if !text.is_empty() {
                return Ok(Some(text));
            }
        }
    }
}

impl Format {
    fn encode(self, events: Vec<AuditEvent>, first: bool) -> Result<Vec<u8>> {
        match self {
            Format::Csv => csv_rows(events, first),
            Format::Jsonl => json_lines(events),
        }
    }
}

fn csv_rows(events: Vec<AuditEvent>, first: bool) -> Result<Vec<u8>> {
    let mut writer = csv::WriterBuilder::new().terminator(csv::Terminator::CRLF).from_writer(Vec::new());
    if first {
        writer.write_record(COLUMNS).map_err(Error::internal)?;
    }
    for event in events {
        let row = [
            event.at.to_string(),
            event.id.to_string(),
            event.project.to_string(),
            event.actor.map(|key| key.to_string()).unwrap_or_default(),
            event.action,
            event.target,
            event.detail.unwrap_or_default(),
        ];
        writer.write_record(row.map(plain)).map_err(Error::internal)?;
    }
    writer.into_inner().map_err(|error| Error::internal(error.to_string()))
}

/// Spreadsheets evaluate cells that begin with these characters as formulas.
fn plain(cell: String) -> String {
    if cell.starts_with(['=', '+', '-', '@', '\t', '\r']) { format!("'{cell}") } else { cell }
}

#[derive(Serialize)]
struct Line {
    at: Timestamp,
    id: String,
    object: &'static str,
    project_id: ProjectId,
    actor: Option<String>,
    action: String,
    target: String,
    detail: Option<Box<RawValue>>,
}

fn json_lines(events: Vec<AuditEvent>) -> Result<Vec<u8>> {
    let mut text = Vec::new();
    for event in events {
        let line = Line {
            at: event.at,
            id: event.id.to_string(),
            object: "audit_event",
            project_id: event.project,
            actor: event.actor.map(|key| key.to_string()),
            action: event.action,
            target: event.target,
            detail: event.detail.and_then(|text| RawValue::from_string(text).ok()),
        };
        json_lines::write(&mut text, &line).map_err(Error::internal)?;
        text.push(b'\n');
    }
    Ok(text)
}

/// The exportable tables.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "lowercase")]
pub enum Table {
    Audit,
    /// Metered requests.
    Usage,
}

/// An export requested by the operator. As for a backup, access to the data folder is sufficient authorization.
#[derive(Clone, Debug, Serialize, Deserialize)]
pub struct ExportRequest {
    pub table: Table,
    /// Absent: every project.
    pub project: Option<ProjectId>,
    /// Inclusive.
    pub start: Option<Timestamp>,
    /// Exclusive.
    pub end: Option<Timestamp>,
    pub format: Format,
}

impl ExportRequest {
    /// Writes the new file `to` atomically. Returns its size.
    pub async fn run(self, store: &Store, to: &Path) -> Result<u64, String> {
        let to_text = |error: Error| error.to_string();
        if let Some(project) = self.project {
            let found = store.read(move |tx| projects::find(tx, project)).await.map_err(to_text)?;
            found.ok_or_else(|| format!("there is no project {project}"))?;
        }
        let failed = |cause: std::io::Error| format!("{}: {cause}", to.display());
        let mut file = NewFile::create(to).map_err(failed)?;
        let bytes = match self.table {
            Table::Audit => self.audit(store, &mut file).await,
            Table::Usage => self.usage(store, &mut file),
        };
        let bytes = bytes.map_err(|error| format!("{}: {}", to.display(), error.cause().unwrap_or(&error)))?;
        file.publish().map_err(failed)?;
        Ok(bytes)
    }

    async fn audit(self, store: &Store, file: &mut NewFile) -> Result<u64> {
        let Self { project, start, end, format, .. } = self;
        let filter = AuditFilter { project, start, end, ..AuditFilter::default() };
        filter.check()?;
        let (mut export, mut bytes) = (Export::new(store.clone(), filter, format), 0);
        while let Some(text) = export.next().await? {
            file.write_all(&text).map_err(Error::internal)?;
            bytes += text.len() as u64;
        }
        Ok(bytes)
    }

    /// Blocking: reads one snapshot from end to end.
    fn usage(self, store: &Store, file: &mut NewFile) -> Result<u64> {
        let mut out = Counted { out: BufWriter::new(file), bytes: 0 };
        let filter = ExportFilter { project: self.project, start: self.start, end: self.end };
        match self.format {
            Format::Jsonl => UsageRow::each(store, filter, |row| {
                json_lines::write(&mut out, row).map_err(Error::internal)?;
                out.write_all(b"\n").map_err(Error::internal)
            })?,
            Format::Csv => {
                let mut table = csv::WriterBuilder::new().terminator(csv::Terminator::CRLF).from_writer(&mut out);
                UsageRow::each(store, filter, |row| table.serialize(row).map_err(Error::internal))?;
                table.flush().map_err(Error::internal)?;
            }
        }
        out.flush().map_err(Error::internal)?;
        Ok(out.bytes)
    }
}

/// Counts what is written.
struct Counted<W> {
    out: W,
    bytes: u64,
}

impl<W: Write> Write for Counted<W> {
    fn write(&mut self, bytes: &[u8]) -> std::io::Result<usize> {
        let written = self.out.write(bytes)?;
        self.bytes += written as u64;
        Ok(written)
    }

    fn flush(&mut self) -> std::io::Result<()> {
        self.out.flush()
    }
}

#[cfg(test)]
mod tests {
    use super::plain;

    #[test]
    fn no_cell_is_interpreted_as_a_formula() {
        for start in ["=", "+", "-", "@", "\t", "\r"] {
            assert_eq!(plain(format!("{start}1+1")), format!("'{start}1+1"));
        }
        for harmless in ["", "a=b", "{\"name\":\"=1\"}", "key_1"] {
            assert_eq!(plain(harmless.into()), harmless);
        }
    }
}
