//! The names of models that commands take.

use std::path::Path;

use crate::engine::{InstalledSettings, installed_models};

/// Replaces a name that is an alias by the ID of its model.
pub(super) fn resolve_alias(name: &str, models_dir: &Path) -> String {
    let is_model = |id: &str| installed_models(models_dir).iter().any(|model| model.id == id);
    InstalledSettings::read(models_dir).alias_target(name, is_model).unwrap_or(name).to_owned()
}

#[cfg(test)]
mod tests {
    use super::resolve_alias;

    #[test]
    fn aliases_are_replaced_unless_a_model_has_the_name() {
        let dir = tempfile::tempdir().unwrap();
        std::fs::create_dir(dir.path().join("installed")).unwrap();
        std::fs::write(dir.path().join("installed/model.gguf"), "GGUF").unwrap();
        std::fs::write(dir.path().join("models.toml"), "[aliases]\ngpt-4o = 'mine'\ninstalled = 'mine'").unwrap();
        let installed = "installed";
        for (name, id) in [("gpt-4o", "mine"), ("gpt-4o:latest", "mine"), (installed, installed), ("other", "other")] {
            assert_eq!(resolve_alias(name, dir.path()), id);
        }
    }
}
