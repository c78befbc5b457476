//! Keeps this node alive for the others, and follows what they change.
//!
//! A task with a connection of its own asks the database every fifth of a second for all nodes, the time, and what the
//! other nodes have added to the [change log](super::change_log). It announces their changes to the store's watchers and
//! then notes the answer in the [`Cluster`]. Between, it renews the node's heartbeat.

use std::collections::HashMap;
use std::collections::hash_map::Entry;
use std::sync::Arc;
use std::time::Duration;

use tokio::runtime::Handle;
use tokio::sync::watch;
use tokio::task::JoinSet;
use tokio::time::{MissedTickBehavior, interval};

use super::change_log;
use super::connection::{Answer, Connection, Request, pair};
use super::connector::Connector;
use super::error::PostgresError;
use super::node::{self, Node, Registered};
use super::outage::{Outage, watch_answers};
use super::statements::{self, Order};
use crate::cluster::Cluster;
use crate::shared_state::SharedState;
use crate::transaction::Change;
use outpost_common::clock_rng::ClockRng;

/// Between two questions. Several fit into the time for which caches may be used without an answer.
const INTERVAL: Duration = Duration::from_millis(200);

/// Between two renewals of the heartbeat. Several fit into the time for which one is valid.
const HEARTBEAT_INTERVAL: Duration = Duration::from_secs(2);

/// Max time of an answer. After that, the connection is replaced.
const ANSWER_LIMIT: Duration = Duration::from_secs(2);

/// Rows of the change log that are read at once.
const PAGE: i64 = 1000;

/// How long rows of the change log are kept, at least. Much longer than [`MAX_GAP`].
const KEEP_CHANGES: Duration = Duration::from_secs(600);

/// After this time without an answer, rows of the change log may be missing.
const MAX_GAP: Duration = Duration::from_secs(300);

/// The result of the last poll.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub enum Pulse {
    /// The node is registered.
    #[default]
    Alive,
    /// The database did not answer, for this reason. It is asked again.
    Missed(String),
    /// Another process has taken over. The task has ended.
    Fenced,
}

/// The task. Dropping this ends it, but not the heartbeat: see [`node::leave`].
pub struct Membership {
    pulse: watch::Receiver<Pulse>,
    outage: Outage,
    _tasks: JoinSet<()>,
}

/// The state of the task.
pub(super) struct Member {
    pub connector: Connector,
    pub node: Node,
    pub cluster: Arc<Cluster>,
    pub shared: Arc<SharedState>,
    pub clock_rng: Arc<dyn ClockRng>,
}

/// Where the task is.
#[derive(Default)]
struct Progress {
    connection: Option<Connection>,
    /// For each other node the first key of the change log that was not read.
    read_to: HashMap<i64, Vec<u8>>,
    /// Uptime of the last answer.
    answered: Option<Duration>,
    /// Uptime of the last renewal of the heartbeat.
    renewed: Duration,
    /// When the change log was last trimmed, and the commits that the nodes had made by then.
    trimmed: Option<(Duration, Vec<(i64, i64)>)>,
}

impl Membership {
    /// Starts the task on `runtime`, just after the node's registration.
    pub(super) fn start(runtime: &Handle, member: Member) -> Self {
        let (sender, pulse) = watch::channel(Pulse::Alive);
        let (outage, watching) = watch_answers(member.cluster.clone());
        let mut tasks = JoinSet::new();
        tasks.spawn_on(watching, runtime);
        tasks.spawn_on(member.run(sender), runtime);
        Self { pulse, outage, _tasks: tasks }
    }

    /// The result of the last poll.
    pub fn pulse(&self) -> watch::Receiver<Pulse> {
        self.pulse.clone()
    }

    /// Whether the database does not answer any more.
    pub(super) fn outage(&self) -> Outage {
        self.outage.clone()
    }
}

impl Member {
    async fn run(self, pulse: watch::Sender<Pulse>) {
        let mut ticks = interval(INTERVAL);
        ticks.set_missed_tick_behavior(MissedTickBehavior::Delay);
        let mut progress = Progress { renewed: self.clock_rng.uptime(), ..Progress::default() };
        loop {
            ticks.tick().await;
            let shown = match self.step(&mut progress).await {
                Ok(()) => Pulse::Alive,
                Err(PostgresError::Fenced) => Pulse::Fenced,
                Err(error) => {
                    progress.connection = None;
                    Pulse::Missed(error.to_string())
                }
            };
            let has_ended = shown == Pulse::Fenced;
            pulse.send_if_modified(|last| {
                // The reason may be another one each time.
                let is_new = std::mem::discriminant(last) != std::mem::discriminant(&shown);
                *last = shown;
                is_new
            });
            if has_ended {
                return;
            }
        }
    }

    async fn step(&self, progress: &mut Progress) -> Result<(), PostgresError> {
        let mut connection = match progress.connection.take().filter(Connection::is_usable) {
            Some(connection) => connection,
            // A heartbeat that is lost when the database crashes does no harm.
            None => self.connector.connect_without_sync().await?,
        };
        self.ask(&mut connection, progress).await?;
        let now = self.clock_rng.uptime();
        if now.saturating_sub(progress.renewed) >= HEARTBEAT_INTERVAL {
            node::renew(&mut connection, &self.node).await?;
            progress.renewed = now;
        }
        progress.connection = Some(connection);
        Ok(())
    }

    /// Reads the nodes and what they have changed, announces the changes and notes the answer.
    async fn ask(&self, connection: &mut Connection, progress: &mut Progress) -> Result<(), PostgresError> {
        let asked = self.clock_rng.uptime();
        if progress.answered.is_none_or(|last| asked.saturating_sub(last) > MAX_GAP) {
            // The nodes are met anew, which announces that anything may have changed.
            progress.read_to.clear();
        }
        let mut behind: Vec<(i64, Vec<u8>)> = progress.read_to.iter().map(|(node, at)| (*node, at.clone())).collect();
        let mut requests = vec![Request::rows(statements::NODES, Vec::new())];
        let ends = behind.iter().map(|(node, _)| change_log::position(node + 1, 0)).collect::<Result<Vec<_>, _>>()?;
        let page = statements::page(change_log::TABLE, true, true, Order::Ascending);
        for ((_, from), end) in behind.iter().zip(&ends) {
            requests.push(Request::rows(page.clone(), vec![from, end, &PAGE]));
        }
        let answers = connection.run_within(ANSWER_LIMIT, requests).await?;
        let answered = self.clock_rng.uptime();
        let mut answers = answers.into_iter().collect::<Result<Vec<Answer>, _>>()?.into_iter().map(Answer::into_rows);
        let nodes = answers.next().unwrap_or_default().iter().map(node::read).collect::<Result<Vec<_>, _>>()?;
        self.require_epoch(&nodes)?;
        let mut changes = Vec::new();
        let mut is_complete = true;
        for ((_, at), rows) in behind.iter_mut().zip(answers) {
            let rows = rows.iter().map(|row| pair(row, true)).collect::<Result<Vec<_>, _>>()?;
            changes.extend(rows.iter().filter_map(change_log::change));
            is_complete &= i64::try_from(rows.len()).is_ok_and(|count| count < PAGE);
            if let Some((last, _)) = rows.into_iter().next_back() {
                // The first key behind the last one.
                *at = [&last[..], &[0]].concat();
            }
        }
        progress.read_to.extend(behind);
        self.announce(progress, &nodes, &changes)?;
        if is_complete {
            progress.answered = Some(answered);
            self.cluster.note(node::answer(&nodes, asked, answered)?);
        }
        self.trim(connection, progress, &nodes).await
    }

    /// # Errors
    /// [`PostgresError::Fenced`] if another process has registered under this node's name.
    fn require_epoch(&self, nodes: &[Registered]) -> Result<(), PostgresError> {
        let own = nodes.iter().find(|known| known.node.number == self.node.number);
        match own.is_some_and(|own| own.node.epoch == self.node.epoch) {
            true => Ok(()),
            false => Err(PostgresError::Fenced),
        }
    }

    /// Tells watchers what other nodes have changed. Of a node that is met for the first time that is unknown.
    fn announce(&self, progress: &mut Progress, nodes: &[Registered], changes: &[Change]) -> Result<(), PostgresError> {
        let mut has_new = false;
        for known in nodes.iter().filter(|known| known.node.number != self.node.number) {
            if let Entry::Vacant(unknown) = progress.read_to.entry(known.node.number) {
                unknown.insert(change_log::position(known.node.number, known.node.seq + 1)?);
                has_new = true;
            }
        }
        self.shared.watchers.announce(changes, has_new);
        Ok(())
    }

    /// Removes rows of the change log that every node has read or will not need, from time to time.
    async fn trim(
        &self,
        connection: &mut Connection,
        progress: &mut Progress,
        nodes: &[Registered],
    ) -> Result<(), PostgresError> {
        let now = self.clock_rng.uptime();
        if progress.trimmed.as_ref().is_some_and(|(last, _)| now.saturating_sub(*last) < KEEP_CHANGES) {
            return Ok(());
        }
        let commits = nodes.iter().map(|known| (known.node.number, known.node.seq)).collect();
        let (_, old) = progress.trimmed.replace((now, commits)).unwrap_or_default();
        for (node, seq) in old {
            let (from, end) = (change_log::position(node, 0)?, change_log::position(node, seq)?);
            connection.run_one(Request::count(statements::TRIM_CHANGES, vec![&from, &end])).await?;
        }
        Ok(())
    }
}
