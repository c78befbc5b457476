//! Measures a download of 1 GiB over loopback, and curl for comparison. Run it with `--release` and `--ignored --nocapture`.

use std::process::Command;
use std::time::Instant;

use hyper_util::client::proxy::matcher::Matcher;
use outpost::download::Settings;

use crate::hub_server::HubServer;
use crate::support::{Target, downloader_with, policy, request};

const RUNS: usize = 5;

#[test]
#[ignore = "it measures, and takes minutes"]
#[expect(clippy::disallowed_methods, reason = "it measures real time")]
fn a_gibibyte_is_compared_with_curl() {
    let server = HubServer::start();
    let file = vec![7; 1 << 30];
    server.add("/f", file.clone());
    for _ in 0..RUNS {
        let (ours, theirs) = (Target::new(), Target::new());
        let from = downloader_with(policy(&[&server]), Settings::default(), Matcher::builder().build());
        let before = Instant::now();
        ours.fetch(&from, request(&server, "/f"), &file).unwrap();
        let own = before.elapsed();
        let to = theirs.path();
        let before = Instant::now();
        let done = Command::new("curl").args(["--silent", "--output"]).arg(&to).arg(server.url("/f")).status().unwrap();
        let curl = before.elapsed();
        assert!(done.success());
        assert!(Command::new("sha256sum").arg(&to).output().unwrap().status.success());
        let with_hash = before.elapsed();
        println!(
            "own, verified and synced: {own:.2?}; curl: {curl:.2?}; curl and sha256sum: {with_hash:.2?}; ratio {:.2}",
            with_hash.as_secs_f64() / own.as_secs_f64()
        );
    }
}
