//! The keys of the configuration file: one for each argument of `outpost serve`. A test compares the table with the
//! arguments.

use self::Applies::{AfterRestart, AtReload, AtReloadUnlessSwitched};

/// When a changed value takes effect.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Applies {
    /// At the next SIGHUP.
    AtReload,
    /// At the next SIGHUP if it was set before and still is; otherwise at the next start.
    AtReloadUnlessSwitched,
    /// At the next start.
    AfterRestart,
}

/// A key of the configuration file.
#[derive(Debug, PartialEq, Eq)]
pub struct Key {
    /// The section and the name in it, such as `server.listen`.
    pub name: &'static str,
    /// The ID of the argument.
    pub argument: &'static str,
    pub applies: Applies,
    /// A value for the template, in TOML, if the argument has no default.
    pub example: Option<&'static str>,
    /// The description of a key that has the opposite meaning of its flag, such as `speculation` of `--no-speculation`.
    pub opposite: Option<&'static str>,
}

impl Key {
    const fn new(name: &'static str, argument: &'static str, applies: Applies) -> Self {
        Self { name, argument, applies, example: None, opposite: None }
    }

    const fn example(self, toml: &'static str) -> Self {
        Self { example: Some(toml), ..self }
    }

    const fn opposite(self, description: &'static str) -> Self {
        Self { opposite: Some(description), ..self }
    }

    /// The section, and the name in it.
    pub fn parts(&self) -> (&'static str, &'static str) {
        self.name.split_once('.').unwrap_or(("", self.name))
    }

    /// The key of that name.
    pub fn find(name: &str) -> Option<&'static Self> {
        KEYS.iter().find(|key| key.name == name)
    }
}

/// All keys, in the order of the template. The keys of a section are together.
pub const KEYS: &[Key] = &[
    Key::new("server.listen", "listen", AfterRestart),
    Key::new("server.data", "data", AfterRestart),
    Key::new("server.models", "models", AfterRestart),
    Key::new("server.pull_starter", "no_pull", AfterRestart)
        .opposite("Whether a start without any model pulls the starter models"),
    Key::new("server.allow_pull", "allow_pull", AfterRestart),
    Key::new("server.pull_allowed_hosts", "pull_allowed_hosts", AfterRestart).example(r#"["mirror.internal"]"#),
    Key::new("server.public_url", "public_url", AfterRestart).example(r#""https://ai.example.org""#),
    Key::new("server.strict_schemas", "strict_schemas", AfterRestart),
    Key::new("server.strict_envelope", "strict_envelope", AfterRestart),
    Key::new("server.ignore_unknown_fields", "ignore_unknown_fields", AfterRestart),
    Key::new("server.open_metrics", "open_metrics", AfterRestart),
    Key::new("server.stop_delay_seconds", "stop_delay_seconds", AfterRestart),
    Key::new("server.drain_seconds", "drain_seconds", AfterRestart),
    Key::new("tls.cert", "tls_cert", AtReloadUnlessSwitched).example(r#""/etc/outpost/cert.pem""#),
    Key::new("tls.key", "tls_key", AtReloadUnlessSwitched).example(r#""/etc/outpost/key.pem""#),
    Key::new("tls.self_signed", "tls_self_signed", AfterRestart),
    Key::new("store.url", "store", AfterRestart).example(r#""postgres://outpost@localhost/outpost""#),
    Key::new("store.password_file", "store_password_file", AfterRestart).example(r#""/etc/outpost/database-password""#),
    Key::new("store.connections", "store_connections", AfterRestart),
    Key::new("store.node_name", "node_name", AfterRestart).example(r#""node-1""#),
    Key::new("compute.threads", "threads", AfterRestart).example("8"),
    Key::new("compute.memory", "memory", AfterRestart).example(r#""6GiB""#),
    Key::new("compute.device", "device", AfterRestart).example(r#"["auto"]"#),
    Key::new("compute.kv_type", "kv_type", AfterRestart),
    Key::new("compute.prefix_cache_disk", "prefix_cache_disk", AfterRestart).example(r#""20GiB""#),
    Key::new("compute.max_running", "max_running", AfterRestart),
    Key::new("compute.speculation", "no_speculation", AfterRestart)
        .opposite("Whether speculative decoding is used where it saves time; it never changes the output"),
    Key::new("compute.draft_model", "draft_model", AfterRestart).example(r#"["auto"]"#),
    Key::new("compute.precision", "precision", AfterRestart).example(r#"["f32"]"#),
    Key::new("network.insecure_http", "insecure_http", AfterRestart),
    Key::new("network.allowed_hosts", "allowed_hosts", AtReload).example(r#"["ai.example.org"]"#),
    Key::new("network.cors_origins", "cors_origins", AtReload).example(r#"["https://app.example.org"]"#),
    Key::new("network.trusted_proxies", "trusted_proxies", AtReload).example(r#"["10.0.0.1"]"#),
    Key::new("network.keyless_project", "keyless_project", AfterRestart).example(r#""default""#),
    Key::new("limits.max_queued", "max_queued", AtReload),
    Key::new("limits.usage_retention_days", "usage_retention_days", AtReload),
    Key::new("limits.image_url_seconds", "image_url_seconds", AfterRestart),
    Key::new("limits.min_free_disk", "min_free_disk", AfterRestart).example(r#""1GiB""#),
    Key::new("limits.max_audio_size", "max_audio_size", AfterRestart),
    Key::new("limits.max_audio_seconds", "max_audio_seconds", AfterRestart),
    Key::new("log.level", "log_level", AtReload),
    Key::new("log.format", "log_format", AfterRestart),
];

#[cfg(test)]
mod tests {
    use std::collections::BTreeSet;

    use super::KEYS;
    use crate::config::settings_command;

    #[test]
    fn every_argument_has_one_key() {
        let command = settings_command();
        let arguments: BTreeSet<&str> = command.get_arguments().map(|one| one.get_id().as_str()).collect();
        let keys: BTreeSet<&str> = KEYS.iter().map(|key| key.argument).collect();
        assert_eq!(arguments, keys, "an argument needs a key, and a key an argument");
        let names: BTreeSet<&str> = KEYS.iter().map(|key| key.name).collect();
        assert_eq!((names.len(), keys.len()), (KEYS.len(), KEYS.len()), "names are unique");
        assert!(KEYS.iter().all(|key| key.name.split('.').count() == 2), "a section and a name");
        let mut sections: Vec<&str> = KEYS.iter().map(|key| key.parts().0).collect();
        sections.dedup();
        let distinct: BTreeSet<&str> = sections.iter().copied().collect();
        assert_eq!(sections.len(), distinct.len(), "the keys of a section are together: {sections:?}");
    }

    #[test]
    fn every_argument_has_a_variable_and_a_default_or_an_example() {
        let command = settings_command();
        for key in KEYS {
            let argument = command.get_arguments().find(|one| one.get_id() == key.argument).unwrap();
            assert!(argument.get_env().is_some() && argument.get_long().is_some(), "{}", key.name);
            let is_flag = !argument.get_action().takes_values();
            let has_default = !argument.get_default_values().is_empty();
            assert_eq!(key.example.is_some(), !is_flag && !has_default, "{}", key.name);
            assert!(is_flag || key.opposite.is_none(), "{}", key.name);
        }
    }
}
