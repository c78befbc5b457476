//! How many rows a page has: more and more, as far as their size allows.

use super::batch::Row;
use crate::engine::Scan;

/// Rows of the first page of a walk without a better hint.
const FIRST_ROWS: i64 = 64;
/// Rows of the first page of values that may be large.
pub const FIRST_LARGE_ROWS: i64 = 4;
const MAX_ROWS: i64 = 1024;
/// A page is not made larger than this, as far as the one before it tells.
const PAGE_BYTES: usize = 2 << 20;

/// Rows of the first page of a walk.
pub fn first_rows(scan: &Scan<'_>) -> i64 {
    if scan.values && scan.table.has_large_values() {
        return FIRST_LARGE_ROWS;
    }
    scan.rows.map_or(FIRST_ROWS, |rows| i64::try_from(rows).unwrap_or(MAX_ROWS)).clamp(1, MAX_ROWS)
}

/// Rows of the page after this one: four times as many, unless they would be too large.
pub fn next_rows(page: &[Row], rows: i64) -> i64 {
    let bytes = page.iter().map(|(key, value)| key.len() + value.len()).sum();
    rows_after(page.len(), bytes, rows)
}

/// The same after a number of rows and bytes.
pub fn rows_after(count: usize, bytes: usize, rows: i64) -> i64 {
    let average = (bytes / count.max(1)).max(1);
    let fitting = i64::try_from(PAGE_BYTES / average).unwrap_or(MAX_ROWS);
    (rows * 4).min(MAX_ROWS).min(fitting).max(1)
}
