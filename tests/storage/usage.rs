//! Compares usage reports with a list of all recorded requests.

use std::sync::Arc;
use std::time::Duration;

use outpost::clock_rng::{ClockRng, Timestamp};
use outpost::error::Code;
use outpost::service::limits::Limits;
use outpost::service::usage::{
    Amounts, AudioMillis, Dimension, ExportFilter, Meter, Outcome, Report, ReportQuery, Retention, Usage, UsageRow,
    Width,
};

use super::fixture::{Fixture, START, error_fields};
use crate::rng::TestRng;

/// A recorded request.
struct Entry {
    at: i64,
    outcome: Outcome,
    input: u64,
    output: u64,
}

struct Metered {
    fixture: Fixture,
    usage: Usage,
    entries: Vec<Entry>,
    rng: TestRng,
}

impl Metered {
    /// Records `count` requests over about three days.
    async fn new(count: usize) -> Self {
        let fixture = Fixture::new().await;
        let clock_rng: Arc<dyn ClockRng> = fixture.clock.clone();
        let limits = Limits::new(fixture.store.clone(), clock_rng.clone());
        let meter = Meter::new(fixture.store.clone(), clock_rng.clone(), limits.clone());
        let usage = Usage::new(fixture.store.clone(), clock_rng);
        limits.admit(fixture.first.project.id).await.unwrap().1.unwrap();
        let mut rng = TestRng(11);
        let mut entries = Vec::new();
        for _ in 0..count {
            fixture.clock.pass(Duration::from_millis(rng.below(2 * 3 * 86_400_000 / count as u64)));
            let outcome = Outcome::ALL[usize::try_from(rng.below(5)).unwrap()];
            let (input, output) = (rng.below(1000), rng.below(300));
            let recorder = meter.open(&fixture.admin, format!("POST /{}", rng.below(3)));
            if rng.below(2) == 0 {
                recorder.set_model("a model");
            }
            recorder.charge_prompt(input).await.unwrap();
            recorder.set_cached(input / 2);
            recorder.set_output(output);
            let (input, output) = if outcome == Outcome::Failed { (0, 0) } else { (input, output) };
            entries.push(Entry { at: fixture.clock.now().as_millis(), outcome, input, output });
            match outcome {
                Outcome::Abandoned => drop(recorder),
                closed => recorder.close(closed).await.unwrap(),
            }
        }
        // Dropped recorders are written asynchronously. A later write completes after them.
        fixture.store.write(|_| Ok(())).await.unwrap();
        Self { fixture, usage, entries, rng }
    }

    fn random_time(&mut self) -> i64 {
        let span = u64::try_from(self.fixture.clock.now().as_millis() - START).unwrap() + 4_000_000;
        START - 2_000_000 + i64::try_from(self.rng.below(span)).unwrap()
    }

    async fn report(&self, start: i64, end: i64, width: Width) -> Result<Report, outpost::error::Error> {
        let (start, end) = (Some(Timestamp::from_millis(start)), Some(Timestamp::from_millis(end)));
        let query = ReportQuery { start, end, width: Some(width), group_by: Vec::new() };
        let report = self.usage.report(&self.fixture.admin, self.fixture.first.project.id, query, u64::MAX).await;
        report.map(|report| report.read().unwrap())
    }

    /// Checks that the report matches the list.
    async fn check(&self, start: i64, end: i64, width: Width) {
        let report = self.report(start, end, width).await.unwrap();
        assert_eq!((report.totals.requests, report.totals.amounts), self.expected(start, end));
        for bucket in &report.buckets {
            let (requests, amounts) = self.expected(bucket.start.as_millis(), bucket.end.as_millis());
            assert_eq!((bucket.results[0].1.requests, bucket.results[0].1.amounts), (requests, amounts));
        }
    }

    fn expected(&self, start: i64, end: i64) -> ([u64; 5], Amounts) {
        let (mut requests, mut amounts) = ([0; 5], Amounts::default());
        for entry in self.entries.iter().filter(|entry| (start..end).contains(&entry.at)) {
            requests[entry.outcome as usize] += 1;
            amounts.input += entry.input;
            amounts.output += entry.output;
            amounts.cached += entry.input / 2;
        }
        (requests, amounts)
    }
}

#[tokio::test]
async fn any_window_is_exact_to_the_millisecond() {
    let mut metered = Metered::new(1500).await;
    for round in 0..200 {
        let (one, other) = (metered.random_time(), metered.random_time());
        let (start, end) = (one.min(other), one.max(other) + 1);
        let width = if end - start < 50_000_000 && round % 2 == 0 { Width::Minute } else { Width::ALL[1 + round % 2] };
        metered.check(start, end, width).await;
    }
    // Windows that start or end at the time of a record: the start is inclusive, the end exclusive.
    for index in [0, 500, 1499] {
        let at = metered.entries[index].at;
        for (start, end) in [(at, at + 1), (at - 1, at), (at, at + 60_000), (at - 3_600_000, at)] {
            metered.check(start, end, Width::Minute).await;
        }
    }
    assert!(metered.fixture.store.verify().unwrap().is_clean());
}

#[tokio::test]
async fn retention_keeps_totals_and_refuses_deleted_detail() {
    let mut metered = Metered::new(2000).await;
    let day = Duration::from_secs(86_400);
    let before = metered.fixture.store.verify().unwrap().records;
    let dropped = metered.usage.prune(Retention { raw: day, minutes: 2 * day }).await.unwrap();
    let after = metered.fixture.store.verify().unwrap();
    assert!(after.is_clean(), "{:?}", after.problems);
    assert!(dropped > 1000 && after.records["usage"] < before["usage"] / 2, "{dropped}");
    assert_eq!(metered.usage.prune(Retention { raw: day, minutes: 2 * day }).await.unwrap(), 0);
    let now = metered.fixture.clock.now().as_millis();
    for _ in 0..100 {
        let hour = |random_time: i64| random_time / 3_600_000 * 3_600_000;
        let (one, other) = (metered.random_time(), metered.random_time());
        metered.check(hour(one.min(other)), hour(one.max(other)) + 3_600_000, Width::Hour).await;
        let late = now - i64::try_from(metered.rng.below(80_000_000)).unwrap();
        metered.check(late, now + 1, Width::Hour).await;
    }
    let old = now - 3 * 86_400_000;
    let cut = error_fields(metered.report(old / 60_000 * 60_000 + 1, now, Width::Day).await);
    assert_eq!(cut, (Code::InvalidParameter, Some("start_time".into())));
    let cut = error_fields(
        metered.report(old / 3_600_000 * 3_600_000, old / 3_600_000 * 3_600_000 + 90_000, Width::Day).await,
    );
    assert_eq!(cut, (Code::InvalidParameter, Some("end_time".into())));
    let minute = error_fields(metered.report(old / 3_600_000 * 3_600_000 + 60_000, now, Width::Day).await);
    assert_eq!(minute, (Code::InvalidParameter, Some("start_time".into())), "old minutes are removed too");
}

#[tokio::test]
async fn an_export_contains_every_record_once() {
    let metered = Metered::new(500).await;
    let mut rows = Vec::new();
    UsageRow::each(&metered.fixture.store, ExportFilter::default(), |row| {
        rows.push((row.time.as_millis(), row.outcome, row.input_tokens, row.output_tokens));
        Ok(())
    })
    .unwrap();
    rows.reverse();
    let mut expected: Vec<_> =
        metered.entries.iter().map(|entry| (entry.at, entry.outcome.as_str(), entry.input, entry.output)).collect();
    expected.sort_unstable();
    rows.sort_unstable();
    assert!(rows == expected, "{} rows, {} expected", rows.len(), expected.len());
}

#[tokio::test]
async fn audio_is_split_by_the_endpoint() {
    let fixture = Fixture::new().await;
    let clock_rng: Arc<dyn ClockRng> = fixture.clock.clone();
    let meter =
        Meter::new(fixture.store.clone(), clock_rng.clone(), Limits::new(fixture.store.clone(), clock_rng.clone()));
    for (endpoint, millis, outcome) in [
        ("POST /audio/transcriptions", 1500, Outcome::Succeeded),
        ("POST /audio/translations", 1, Outcome::Abandoned),
        ("POST /audio/speech", 250, Outcome::Succeeded),
        ("POST /audio/transcriptions", 7000, Outcome::Failed),
        ("POST /chat/completions", 0, Outcome::Succeeded),
    ] {
        let recorder = meter.open(&fixture.admin, endpoint.to_owned());
        recorder.set_audio(millis);
        recorder.close(outcome).await.unwrap();
    }
    let usage = Usage::new(fixture.store.clone(), clock_rng);
    let report = async |group_by| {
        let query = ReportQuery { group_by, ..ReportQuery::default() };
        let report = usage.report(&fixture.admin, fixture.first.project.id, query, u64::MAX).await.unwrap();
        report.read().unwrap()
    };
    let expected = AudioMillis { input: 1501, output: 250 };
    let plain = report(Vec::new()).await;
    assert_eq!((plain.totals.audio, plain.totals.amounts.audio_millis), (expected, 1751));
    assert_eq!(plain.buckets.iter().map(|bucket| bucket.results[0].1.audio.input).sum::<u64>(), 1501);
    let grouped = report(vec![Dimension::Endpoint]).await;
    let by_endpoint: Vec<_> =
        grouped.groups.iter().map(|(group, sums)| (group.endpoint.as_deref().unwrap(), sums.audio)).collect();
    let audio = |input, output| AudioMillis { input, output };
    let expected_groups = [
        ("POST /audio/speech", audio(0, 250)),
        ("POST /audio/transcriptions", audio(1500, 0)),
        ("POST /audio/translations", audio(1, 0)),
        ("POST /chat/completions", audio(0, 0)),
    ];
    assert_eq!(by_endpoint, expected_groups);
    let mut seconds = [0.0; 3];
    UsageRow::each(&fixture.store, ExportFilter::default(), |row| {
        for (sum, value) in
            seconds.iter_mut().zip([row.audio_seconds, row.audio_input_seconds, row.audio_output_seconds])
        {
            *sum += value;
        }
        Ok(())
    })
    .unwrap();
    assert_eq!(seconds.map(|value| format!("{value:.3}")), ["1.751", "1.501", "0.250"]);
}
