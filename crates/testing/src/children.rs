//! The child processes of a process, read from `/proc`.

use std::fs;

/// IDs of the running children of a process.
pub fn of(parent: u32) -> Vec<u32> {
    let parent = parent.to_string();
    let is_child = |id: &u32| {
        let stat = fs::read_to_string(format!("/proc/{id}/stat")).unwrap_or_default();
        let fields: Vec<&str> = stat.rsplit_once(')').map_or(Vec::new(), |(_, rest)| rest.split_whitespace().collect());
        fields.get(1) == Some(&parent.as_str()) && fields.first() != Some(&"Z")
    };
    let ids = fs::read_dir("/proc").unwrap().filter_map(|entry| entry.ok()?.file_name().to_str()?.parse().ok());
    ids.filter(is_child).collect()
}
