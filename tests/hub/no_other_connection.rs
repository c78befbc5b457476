//! A pull contacts the servers that it is told to, and nothing else. The test runs in a network namespace of its own, whose
//! counters show every connection and every datagram, also those for which there is no route.

use std::collections::HashMap;
use std::fs;
use std::process::Command;

use crate::registry::{OLLAMA, Registry};
use crate::repository::{Repository, tiny};

const INSIDE: &str = "no_other_connection::inside";

#[test]
fn a_pull_contacts_only_its_servers() {
    let may_unshare = Command::new("unshare").args(["-rn", "ip", "link", "set", "lo", "up"]).output();
    if !may_unshare.is_ok_and(|output| output.status.success()) {
        eprintln!("skipped: this machine allows no network namespaces, or has no 'unshare' and 'ip'");
        return;
    }
    let mut inside = Command::new("unshare");
    inside.args(["-rn", "sh", "-c", "ip link set lo up && exec \"$0\" \"$@\""]).arg(std::env::current_exe().unwrap());
    let output = inside.args(["--exact", INSIDE, "--ignored", "--nocapture"]).output().unwrap();
    let text = crate::process::output_text(&output);
    assert!(output.status.success() && text.contains("1 passed"), "{text}");
}

/// The counters of this network namespace, such as `Tcp:ActiveOpens`.
fn counters() -> HashMap<String, u64> {
    let text = fs::read_to_string("/proc/self/net/snmp").unwrap();
    let lines: Vec<&str> = text.lines().collect();
    let mut counters = HashMap::new();
    for pair in lines.chunks_exact(2) {
        for (name, value) in pair[0].split_whitespace().zip(pair[1].split_whitespace()).skip(1) {
            let protocol = pair[0].split_whitespace().next().unwrap();
            // Some limits are negative.
            counters.insert(format!("{protocol}{name}"), value.parse().unwrap_or(0));
        }
    }
    counters
}

/// Runs only in the namespace: elsewhere, other processes open connections.
#[test]
#[ignore = "started by a_pull_contacts_only_its_servers"]
fn inside() {
    let of_hub = Repository::with(&[("tiny-F32.gguf", &tiny())]);
    let mut registry = Registry::new("library/tiny");
    registry.layer(&format!("{OLLAMA}.model"), None, &tiny());
    registry.publish("latest");
    let before = counters();
    of_hub.pull_ok(&["hf:u/tiny-GGUF"]);
    registry.pull_ok(&["ollama:tiny"]);
    let after = counters();
    let grown = |name: &str| after[name] - before[name];
    let accepted: usize = [&of_hub.hub, &of_hub.cdn, &registry.hub, &registry.cdn].iter().map(|it| it.accepted()).sum();
    assert!(accepted >= 4);
    assert_eq!(grown("Tcp:ActiveOpens"), accepted as u64, "every connection went to one of the servers");
    assert_eq!((grown("Udp:OutDatagrams"), grown("Ip:OutNoRoutes")), (0, 0), "no names were looked up");
}
