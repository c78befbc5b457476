//! Usage whose write fails: what was delivered is recorded once the disk works again.

use std::time::{Duration, Instant};

use outpost::service::limits::Limits;
use outpost::service::usage::{ExportFilter, Meter, Outcome, UsageRow};

use crate::server::{Installation, Server, runtime};
use crate::simulated_disk::{Disk, Fault, Kind};

const RECOVERY: Duration = Duration::from_secs(10);

/// Output tokens and outcomes of the records, sorted.
fn records(server: &Server) -> Vec<(u64, &'static str)> {
    let mut rows = Vec::new();
    UsageRow::each(&server.store, ExportFilter::default(), |row| {
        rows.push((row.output_tokens, row.outcome));
        Ok(())
    })
    .unwrap();
    rows.sort_unstable();
    rows
}

/// A broken disk, or one without space.
fn faults(database: &[u8]) -> [Fault; 2] {
    [Fault::Nth { kind: Kind::Sync, nth: 0, lasting: true }, Fault::Full { bytes: database.len(), sparse: false }]
}

#[test]
fn what_was_delivered_while_the_disk_failed_is_recorded_later() {
    let installation = Installation::new(5);
    for fault in faults(&installation.database) {
        let disk = Disk::new(installation.database.clone());
        let server = installation.open(&disk).unwrap();
        let limits = Limits::new(server.store.clone(), server.clock_rng.clone());
        let meter = Meter::new(server.store.clone(), server.clock_rng.clone(), limits);
        runtime().block_on(async {
            let access = server.admin(&installation).await.unwrap();
            let used = |tokens| {
                let recorder = meter.open(&access, "POST /chat/completions".to_owned());
                recorder.set_output(tokens);
                recorder
            };
            disk.fail(Some(fault));
            // A full disk may have room for some records.
            let mut succeeded = Vec::new();
            while used(1000 + succeeded.len() as u64).close(Outcome::Succeeded).await.is_ok() {
                succeeded.push((1000 + succeeded.len() as u64, "succeeded"));
            }
            let streamed = used(10);
            streamed.defer();
            assert!(streamed.close(Outcome::Succeeded).await.is_err());
            drop(used(20));
            disk.fail(None);
            let began = Instant::now();
            while used(30).close(Outcome::Succeeded).await.is_err() {
                assert!(began.elapsed() < RECOVERY, "no usage is recorded after the repair");
                tokio::time::sleep(Duration::from_millis(20)).await;
            }
            let expected = [vec![(10, "failed"), (20, "abandoned"), (30, "succeeded")], succeeded].concat();
            assert_eq!(records(&server), expected, "{fault:?}");
        });
        drop(meter);
        assert!(server.store.verify().unwrap().is_clean());
        server.close();
    }
}
