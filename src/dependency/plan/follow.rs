//! Rows that are followed: chosen before a window, current from their first need on, corrected when they may have drifted.

use super::reach::Reach;
use super::*;
use crate::dependency::window::{Hearing, Push, Ranking, WindowNeeds};
use std::ops::Range;
use tidemill_data::node_set::NodeSet;

/// Windows between two comparisons of thresholds while everything is followed.
const STAYS: usize = 4;

/// What a rank does with one node's row in a window.
#[derive(Clone, Debug, Default)]
pub struct Uses {
    /// Batches that read it, ascending.
    reads: Vec<u32>,
    /// The last batch that reads it, or mails its memory to a node that the rank owns or follows.
    last: u32,
}

/// What is still to come of a row after a batch.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Outlook {
    /// Batches of the window that will read it.
    pub reads: u32,
    /// Batches until the first of them.
    pub next: u32,
    /// Neither a root nor a neighbor nor another replay will see it before the window ends, where it is corrected.
    pub unseen: bool,
}

impl Planner {
    /// The same, following and gating rows as a policy says. A pass that writes no state has nothing to follow.
    pub fn with_policy(mut self, policy: Policy) -> Planner {
        if self.pass.writes {
            self.replicas = vec![Replicas::none(self.stream.nodes()); self.copies.len()];
            self.policy = Some(policy);
        }
        self
    }

    /// The batches of the window that `batch` opens, where what is followed in it depends on what they need.
    pub fn window_to_inspect(&self, batch: usize) -> Option<Range<usize>> {
        let policy = self.policy.filter(Policy::follows)?;
        let window = self.partition.window_of_batch(batch);
        if self.window == Some(window) || (self.follows_all() && !policy.looks_ahead) || self.stays(policy) {
            return None;
        }
        Some(batch..self.partition.first_batch(window + 1))
    }

    /// Where following everything was the cheapest, most windows take that as given.
    fn stays(&self, policy: Policy) -> bool {
        let all = self.points.last().is_some_and(|point| point.tau >= 1.0) && self.room >= self.stream.nodes() as usize;
        policy.tau == Auto::Auto && all && !policy.looks_ahead && !self.points.len().is_multiple_of(STAYS)
    }

    /// Everything is followed, whatever it costs.
    fn follows_all(&self) -> bool {
        let all = |policy: Policy| matches!(policy.tau, Auto::Value(tau) if tau >= 1.0);
        self.policy.is_some_and(all) && self.room >= self.stream.nodes() as usize
    }

    /// A planner that plays a window through with every row fetched.
    pub fn inspector(&self) -> Planner {
        let nobody = vec![NodeSet::new(self.stream.nodes()); self.copies.len()];
        let policy = self.policy.map(|policy| Policy { gated: false, ..policy });
        Planner { coming: Some(nobody), points: Vec::new(), uses: HashMap::new(), policy, ..self.clone() }
    }

    /// Notes what the next batch needs.
    pub fn inspect(&mut self, batch: &GlobalBatch<'_>, scratch: &mut SampleScratch, needs: &mut WindowNeeds) {
        self.enter_window(batch.number, &mut Exchange::default());
        let primary: Vec<Rank> = (0..batch.events.len()).map(|i| self.partition.primary(batch.first + i)).collect();
        let all: Vec<u32> = (0..batch.roots.len() as u32).collect();
        let whole = batch.sample(&all, scratch);
        let reach = Reach::of(&whole);
        let (now, first) = (batch.number as u32, self.first_version());
        let mut needed: HashSet<(Rank, NodeId)> = HashSet::new();
        let mut counted: HashSet<(Rank, u32)> = HashSet::new();
        for (logical, &root) in whole.root_of.iter().enumerate() {
            let (asking, owner) = (primary[batch.event_of(logical)], self.owner(batch.roots[logical].node));
            let (reader, embedder) = match self.delegate {
                Auto::Value(true) => (owner, None),
                Auto::Value(false) => (asking, None),
                Auto::Auto => (asking, (owner != asking).then_some(owner)),
            };
            if !counted.insert((reader, root)) {
                continue;
            }
            needs.roots += 1;
            if embedder == Some(self.me) {
                // it may be embedded here
                let rows = reach.of_root(root).rows.iter().copied();
                rows.filter(|&node| self.owner(node) != self.me).for_each(|node| needs.read(node, now));
            }
            for &node in &reach.of_root(root).rows {
                if self.owner(node) != reader && needed.insert((reader, node)) {
                    self.inspect_need(node, (reader, embedder), now, first, needs);
                }
            }
        }
        self.copies.iter_mut().for_each(|copies| drop(copies.evict_all()));
        self.inspect_mails(batch, needs);
        self.mark_written(batch);
    }

    /// The least version that the window at hand writes.
    fn first_version(&self) -> u32 {
        self.partition.first_batch(self.window.expect("entered")) as u32 + 2
    }

    fn inspect_need(
        &mut self,
        node: NodeId,
        (reader, embedder): (Rank, Option<Rank>),
        now: u32,
        first: u32,
        needs: &mut WindowNeeds,
    ) {
        let version = self.written[node.index()];
        let found = self.copies[reader.index()].need(node, version, now);
        if found != Found::Fresh && version > 0 {
            let (owner, entry) = (self.owner(node), version < first);
            needs.pushes.push(Push { batch: now, owner, reader, node, entry, root: needs.roots, embedder });
        }
        if reader == self.me {
            needs.read(node, now);
        }
    }

    /// Who hears of whom through the batch's mails, and which nodes it touches.
    fn inspect_mails(&self, batch: &GlobalBatch<'_>, needs: &mut WindowNeeds) {
        let now = batch.number as u32;
        for (node, sender) in self.last_heard(batch) {
            let peer = batch.roots[sender].node;
            let (from, to) = (self.owner(peer), self.owner(node));
            needs.hearings.push(Hearing { batch: now, from, to, peer, node });
            needs.updates.entry(node).or_insert((0, to)).0 += 1;
        }
    }

    /// Decides what is followed in the window that comes next, from its needs.
    pub fn open_window(&mut self, needs: &WindowNeeds) {
        let Some(policy) = self.policy else { return };
        let ranking = Ranking::new(needs, policy.costs, self.copies.len(), self.stream.nodes(), self.room);
        let point = match policy.tau {
            Auto::Auto => ranking.best(),
            Auto::Value(tau) => ranking.point(tau),
        };
        let followed = ranking.followed(point.tau);
        self.points.push(point);
        self.uses = match policy.looks_ahead {
            true => self.uses_of(needs, &followed[self.me.index()]),
            false => HashMap::new(),
        };
        self.coming = Some(followed);
    }

    fn uses_of(&self, needs: &WindowNeeds, followed: &NodeSet) -> HashMap<NodeId, Uses> {
        let mut uses: HashMap<NodeId, Uses> = HashMap::new();
        for (&node, reads) in &needs.reads {
            let last = reads.last().copied().unwrap_or(0);
            uses.insert(node, Uses { reads: reads.clone(), last });
        }
        for hearing in &needs.hearings {
            if hearing.to == self.me || followed.contains(hearing.node) {
                let uses = uses.entry(hearing.peer).or_default();
                uses.last = uses.last.max(hearing.batch);
            }
        }
        uses
    }

    /// What is to come of a replica's row once batch `batch` is committed.
    pub fn outlook(&self, node: NodeId, batch: usize) -> Outlook {
        let Some(uses) = self.uses.get(&node) else { return Outlook { unseen: true, ..Outlook::default() } };
        let now = batch as u32;
        let coming = &uses.reads[uses.reads.partition_point(|&read| read <= now)..];
        Outlook {
            reads: coming.len() as u32,
            next: coming.first().map_or(0, |&next| next - now),
            // s(peer) of the batch's own mails is the row after it.
            unseen: coming.is_empty() && uses.last < now,
        }
    }

    /// Each endpoint of a batch and the logical root of its last mail's sender, ascending.
    fn last_heard(&self, batch: &GlobalBatch<'_>) -> BTreeMap<NodeId, usize> {
        let (mut heard, b) = (BTreeMap::new(), batch.events.len());
        for i in 0..b {
            heard.insert(batch.roots[i].node, b + i);
            heard.insert(batch.roots[b + i].node, i);
        }
        heard
    }

    /// What a batch sends and replays, over all ranks, as far as the state goes: all but pushed rows and embeddings, which are
    /// counted as they are planned.
    ///
    /// * `made`: where the batch's sources and destinations are embedded.
    pub(super) fn count_mails(&self, batch: &GlobalBatch<'_>, made: &[(Rank, u32)], traffic: &mut Traffic) {
        if !self.pass.writes {
            return;
        }
        let mut memories: HashSet<(Rank, Rank, u32)> = HashSet::new();
        let mut pairs: HashSet<(Rank, Rank)> = HashSet::new();
        for (node, sender) in self.last_heard(batch) {
            let peer = batch.roots[sender].node;
            let (from, carried) = if self.pass.embeddings_mailed { made[sender] } else { (self.owner(peer), peer.0) };
            for (i, to) in self.holders(node).enumerate() {
                traffic.updates += u64::from(i > 0);
                if to != from && !self.replicates(to, peer) && memories.insert((from, to, carried)) {
                    pairs.insert((from, to));
                }
            }
        }
        traffic.memories += memories.len() as u64;
        traffic.messages += pairs.len() as u64;
    }

    /// Thresholds and their costs, window after window.
    pub fn points(&self) -> &[Point] {
        &self.points
    }

    /// The policy, if it is not the exact mode's.
    pub fn policy(&self) -> Option<Policy> {
        self.policy
    }

    pub(super) fn follows(&self, rank: Rank, node: NodeId) -> bool {
        self.replicas.get(rank.index()).is_some_and(|replicas| replicas.follows(node))
    }

    /// Whether a rank has another's node up to date, by replay; one that is blank it would have at no cost.
    pub fn replicates(&self, rank: Rank, node: NodeId) -> bool {
        self.replicas.get(rank.index()).is_some_and(|replicas| replicas.is_current(node))
    }

    /// The ranks that have a node up to date after each batch: its owner, and who replays it.
    pub fn holders(&self, node: NodeId) -> impl Iterator<Item = Rank> + '_ {
        let owner = self.owner(node);
        let replicas = (0..self.replicas.len() as u16).map(Rank);
        std::iter::once(owner).chain(replicas.filter(move |&rank| rank != owner && self.replicates(rank, node)))
    }

    /// The window whose owners correct replicas before a batch.
    pub(super) fn correction_at(&self, batch: usize) -> Option<usize> {
        let interval = self.policy?.corrections? as usize;
        let before = self.window?; // nothing has drifted before the first batch
        let border = self.partition.window_of_batch(batch) != before;
        (border || (interval > 0 && batch.is_multiple_of(interval))).then_some(before)
    }

    /// At a window's border: copies of nodes that are followed from now on become replicas, and the other way round. Where the
    /// gate decides what is pushed, no plan knows whether a copy is up to date: such copies and replicas go.
    pub(super) fn turn_replicas(&mut self, batch: usize, exchange: &mut Exchange) {
        let Some(policy) = self.policy.filter(Policy::follows) else { return };
        let all = policy.corrections.is_some_and(|every| every > 0 && batch.is_multiple_of(every as usize));
        if policy.looks_ahead && exchange.correct.is_some() && !all {
            let mut wanted: Vec<NodeId> = self.uses.keys().copied().collect();
            wanted.sort_unstable();
            exchange.wanted = Some(wanted);
        }
        let nodes = self.stream.nodes();
        let sets = self.coming.take().unwrap_or_else(|| {
            let last = self.points.last().copied();
            self.points.push(last.unwrap_or(Point { tau: 1.0, communication: 0.0, replay: 0.0, followed: 0 }));
            let mut all = NodeSet::new(nodes);
            (0..nodes).for_each(|node| {
                all.insert(NodeId(node));
            });
            vec![all; self.copies.len()]
        });
        for (rank, set) in sets.into_iter().enumerate() {
            let reader = Rank(rank as u16);
            let mut fresh = Vec::new();
            for node in self.copies[rank].keys().into_iter().filter(|&node| set.contains(node)) {
                let version = self.written[node.index()];
                let current = !policy.gated && self.copies[rank].find(node, version) == Found::Fresh;
                self.copies[rank].forget(node);
                match current {
                    true => fresh.push(node),
                    false if reader == self.me => exchange.drop_before.push(node),
                    false => {}
                }
            }
            let table = self.partition.table(self.window.expect("entered"));
            let left = self.replicas[rank].turn_to(set, |node| table.owner(node) == reader);
            fresh.into_iter().for_each(|node| {
                self.replicas[rank].make_current(node);
            });
            for node in left {
                if !policy.gated {
                    self.copies[rank].need(node, self.written[node.index()], batch.saturating_sub(1) as u32);
                } else if reader == self.me {
                    exchange.drop_before.push(node);
                }
            }
            let room = if self.replicas[rank].len() == nodes as usize { self.room } else { self.replicas[rank].len() };
            self.copies[rank].make_room(self.room - room);
        }
    }

    /// A rank needs a row that it follows.
    pub(super) fn need_replica(&mut self, node: NodeId, owner: Rank, reader: Rank, share: &mut Share) {
        let blank = self.written[node.index()] == 0;
        let new = self.replicas[reader.index()].make_current(node);
        let sent = new && !blank;
        if sent {
            self.push(node, owner, reader, share);
        }
        if reader == self.me {
            share.counts.remote += 1;
            share.counts.fetched += u64::from(sent);
            share.counts.cached += u64::from(!sent);
            if new && blank {
                share.exchange.blank.push(node);
            }
        }
    }

    /// Followed nodes that the batch is the first to write are current from then on, read or not.
    pub(super) fn follow_endpoints(&mut self, batch: &GlobalBatch<'_>, exchange: &mut Exchange) {
        if self.replicas.is_empty() {
            return;
        }
        for root in &batch.roots[..2 * batch.events.len()] {
            let node = root.node;
            if self.written[node.index()] > 0 {
                continue;
            }
            for rank in (0..self.replicas.len() as u16).map(Rank) {
                let mine = rank == self.me;
                if self.follows(rank, node) && self.owner(node) != rank {
                    let new = self.replicas[rank.index()].make_current(node);
                    if new && mine {
                        exchange.blank.push(node);
                    }
                }
            }
        }
    }
}
