//! Splits a time window into segments answered by stored sums, and by raw records for the rest.

use crate::clock_rng::Timestamp;
use crate::error::{Error, Result};
use crate::ids::ProjectId;
use crate::storage::Reader;
use crate::storage::usage::{self, Horizon, Sums, Width};

/// A segment of a window: whole slots of one width, or raw records.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
struct Segment {
    width: Option<Width>,
    from: Timestamp,
    to: Timestamp,
}

/// Splits `[from, to)` into disjoint segments of at most the width `widest`.
fn split(from: Timestamp, to: Timestamp, widest: Option<Width>, out: &mut Vec<Segment>) {
    if from >= to {
        return;
    }
    let Some(width) = widest else {
        out.push(Segment { width: None, from, to });
        return;
    };
    let narrower = Width::ALL.into_iter().rev().find(|other| *other < width);
    let (first, last) = (width.ceil(from), width.floor(to));
    if first >= last {
        return split(from, to, narrower, out);
    }
    split(from, first, narrower, out);
    out.push(Segment { width: Some(width), from: first, to: last });
    split(last, to, narrower, out);
}

/// Visits the usage in `[from, to)` as sums: time, series, amounts. The time is in the same slot of `widest` as the
/// usage.
pub(super) fn each(
    tx: &impl Reader,
    project: ProjectId,
    (from, to): (Timestamp, Timestamp),
    widest: Width,
    mut visit: impl FnMut(Timestamp, u32, &Sums) -> Result<()>,
) -> Result<()> {
    require_detail(&usage::horizon(tx)?, (from, to), widest)?;
    let mut segments = Vec::new();
    split(from, to, Some(widest), &mut segments);
    for Segment { width, from, to } in segments {
        match width {
            Some(width) => usage::each_sum(tx, project, width, (from, to), &mut visit)?,
            None => usage::each_raw(tx, project, from, to, |at, raw| visit(at, raw.series, &Sums::from(&raw)))?,
        }
    }
    Ok(())
}

/// Refuses a window whose ends split a stored sum, because no exact answer exists.
fn require_detail(horizon: &Horizon, (from, to): (Timestamp, Timestamp), widest: Width) -> Result<()> {
    if widest == Width::Minute && from < horizon.minutes {
        let text = format!(
            "Before {} usage is kept only by the hour. Use 'bucket_width' 1h or 1d, or a later 'start_time'.",
            horizon.minutes
        );
        return Err(Error::invalid("bucket_width", text));
    }
    for (field, at) in [("start_time", from), ("end_time", to)] {
        let (since, width, unit) = match at {
            _ if at < horizon.minutes => (horizon.minutes, Width::Hour, "hour"),
            _ if at < horizon.raw => (horizon.raw, Width::Minute, "minute"),
            _ => continue,
        };
        if width.floor(at) != at {
            let text = format!(
                "'{field}' is {at}, but before {since} usage is kept only by the {unit}. Give a whole {unit}, such as {}.",
                width.floor(at)
            );
            return Err(Error::invalid(field, text));
        }
    }
    Ok(())
}

/// Tokens that a project used since `start`, the start of a day.
pub(in crate::service) fn tokens_since(tx: &impl Reader, project: ProjectId, start: Timestamp) -> Result<u64> {
    let mut tokens = 0_u64;
    let end = Timestamp::from_millis(i64::MAX);
    usage::each_sum(tx, project, Width::Day, (start, end), |_, _, sums| {
        tokens = tokens.saturating_add(sums.amounts.tokens());
        Ok(())
    })?;
    Ok(tokens)
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::{Segment, split};
    use crate::clock_rng::Timestamp;
    use crate::storage::usage::Width;

    proptest! {
        #[test]
        fn segments_cover_a_window_once_and_start_on_whole_slots(from in 0..4_000_000_000_000_i64, length in 0..10_000_000_000_i64, widest in 0..3_usize) {
            let (from, to) = (Timestamp::from_millis(from), Timestamp::from_millis(from + length));
            let mut segments = Vec::new();
            split(from, to, Some(Width::ALL[widest]), &mut segments);
            let mut at = from;
            for Segment { width, from, to } in &segments {
                prop_assert_eq!(*from, at);
                prop_assert!(from < to);
                if let Some(width) = width {
                    prop_assert_eq!((width.floor(*from), width.floor(*to)), (*from, *to));
                    prop_assert!(*width <= Width::ALL[widest]);
                } else {
                    prop_assert!(to.as_millis() - from.as_millis() < 2 * Width::Minute.millis());
                }
                at = *to;
            }
            prop_assert_eq!(at, to);
            prop_assert!(segments.len() <= 7);
        }
    }
}
