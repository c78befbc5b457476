//! The models of the folder that other servers run.

use std::sync::Arc;

use super::Registry;
use outpost_upstream::UpstreamModel;

/// The result of a look at one model, without a scan of the whole models folder.
#[derive(Clone, Debug)]
pub enum UpstreamLookup {
    /// Another server runs it.
    Upstream(Arc<UpstreamModel>),
    /// It is a model of this server, or one that cannot be used.
    Local,
    /// Its ID is new, or its file has changed.
    Unknown,
}

impl Registry {
    /// Looks up an upstream model. Reads only its `upstream.toml`, not the whole models folder.
    pub fn peek_upstream(&self, id: &str) -> UpstreamLookup {
        let snapshot = self.snapshot.load();
        match snapshot.models.get(id) {
            Some(found) if !found.info.is_upstream() => UpstreamLookup::Local,
            Some(found) if found.is_current() => match &found.upstream {
                Some(upstream) => UpstreamLookup::Upstream(Arc::clone(upstream)),
                None => UpstreamLookup::Local,
            },
            None if self.is_registered(id) => UpstreamLookup::Local,
            Some(_) | None => UpstreamLookup::Unknown,
        }
    }

    /// The upstream model `id`; `None` if there is no such model or it cannot be used. Blocks while the models folder is
    /// read.
    pub fn find_upstream(&self, id: &str) -> Option<Arc<UpstreamModel>> {
        self.lookup_on_disk(id)?.upstream
    }
}
