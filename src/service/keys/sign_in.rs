//! Links that sign a browser in once, so that users need not copy an API key.
//!
//! A link has a random token in its fragment, which browsers do not send. The dashboard exchanges the token for the secret of
//! a new admin key that expires. Only the digests of the tokens are kept, in memory, so a restart ends all links. Whoever
//! has access to the data folder, or sees the terminal in which the server starts, may have a link.
//!
//! A start prints a link and not the admin key, because standard output is often kept: the journal of systemd is
//! readable for a group of users, and containers keep it for years. A link is used up when it is opened, ends by itself
//! and gives a key of 12 hours, so what was printed is worth nothing later. A path or query would be in access logs of
//! proxies. A store would have to keep the tokens from other nodes, backups and replicas, for ten minutes of use.

use std::collections::VecDeque;
use std::net::IpAddr;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::Duration;

use zeroize::Zeroizing;

use super::Keys;
use super::base62;
use super::secret::Secret;
use super::setup;
use crate::clock_rng::ClockRng;
use crate::error::{Code, Error, Result};
use crate::storage::{Digest, Store};

/// The name of the keys.
const KEY_NAME: &str = "browser sign-in";
const KEY_LIFETIME: Duration = Duration::from_secs(12 * 3600);
const LINK_LIFETIME: Duration = Duration::from_secs(600);
/// Links that are valid at the same time; a further one ends the oldest.
const MAX_LINKS: usize = 16;
const PREFIX: &str = "ol_";
/// A hundred and twenty-eight bits in base62.
const DIGITS: usize = 22;

/// The links of this server.
#[derive(Clone)]
pub struct SignIn {
    store: Store,
    clock_rng: Arc<dyn ClockRng>,
    links: Arc<Mutex<VecDeque<Link>>>,
}

struct Link {
    digest: Digest,
    /// Uptime.
    valid_until: Duration,
}

impl SignIn {
    pub fn new(store: Store, clock_rng: Arc<dyn ClockRng>) -> Self {
        Self { store, clock_rng, links: Arc::default() }
    }

    /// A new link to the dashboard at `base`, the URL of this server without a trailing slash. It is valid once, for ten
    /// minutes.
    pub fn new_link(&self, base: &str) -> String {
        let mut random = Zeroizing::new([0; 16]);
        self.clock_rng.fill(random.as_mut());
        let token = Zeroizing::new(format!("{PREFIX}{}", base62::encode(random.as_ref(), DIGITS)));
        let link = Link {
            digest: self.store.pepper().digest(&token),
            valid_until: self.clock_rng.uptime().saturating_add(LINK_LIFETIME),
        };
        let mut links = self.links();
        if links.len() >= MAX_LINKS {
            links.pop_front();
        }
        links.push_back(link);
        format!("{base}/#sign-in={}", *token)
    }

    /// The secret of a new admin key, for the token of a link, which is used up. A token that is not valid counts as a
    /// failed authentication of `address`.
    pub async fn redeem(&self, keys: &Keys, address: Option<IpAddr>, token: &str) -> Result<Secret> {
        if !self.take(token) {
            return Err(keys.refuse(address, invalid()));
        }
        let made = setup::expiring_admin_key(&self.store, &self.clock_rng, KEY_NAME, KEY_LIFETIME).await?;
        tracing::info!(key = %made.key.id, "a browser has signed in with a link");
        Ok(made.secret)
    }

    /// Removes the link with this token. False if there is none that is valid.
    fn take(&self, token: &str) -> bool {
        let (digest, now) = (self.store.pepper().digest(token), self.clock_rng.uptime());
        let mut links = self.links();
        links.retain(|link| now < link.valid_until);
        let found = links.iter().position(|link| link.digest.matches(&digest));
        found.and_then(|index| links.remove(index)).is_some()
    }

    fn links(&self) -> MutexGuard<'_, VecDeque<Link>> {
        self.links.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

fn invalid() -> Error {
    let text = "This sign-in link is not valid: it was used already, it is older than ten minutes, or the server has restarted. \
         For a new link, run 'outpost sign-in' on the server, or sign in with an API key.";
    Error::new(Code::InvalidSignInLink, text)
}
