//! What a batch writes on one of several ranks: its own nodes, and the memory that travels for mails between ranks.
//!
//! The commit rule: only a node's owner computes its new row, for every event that touches it, whoever that event is primary
//! for. From other ranks it needs the peers' committed memory and nothing else; each such row travels once a batch and rank.
//! A replica of another rank's node that the rank keeps current gets the same mails, and s(peer) is taken from a replica where
//! there is one. A pure function of events, owners and replicas, so sender and receiver find the same lists in the same order.

use super::commit::{CommitPlan, MailRule, MailsKept, ends};
use crate::dependency::{Planner, Routes};
use crate::memory::{Mail, unsent};
use crate::partition::Rank;
use crate::replay::Unit;
use std::collections::{HashMap, HashSet};
use tidemill_data::id::{EventId, NodeId};
use tidemill_data::stream::EventStream;
use tidemill_models::model::MailTargets;

const NONE: u32 = u32::MAX;

/// Plans a rank's commits; owns the scratch space for it, 8 bytes a node.
pub struct RankCommitPlanner {
    row_of: Vec<u32>,
    slot_of: Vec<u32>,
}

impl RankCommitPlanner {
    /// A planner for a stream of `nodes` nodes.
    pub fn new(nodes: usize) -> RankCommitPlanner {
        RankCommitPlanner { row_of: vec![NONE; nodes], slot_of: vec![NONE; nodes] }
    }

    /// What this rank writes of the global batch `events`.
    ///
    /// * `rows`: the rows read, own endpoints among them. * `batch`: its number, which the planner has shared out.
    pub fn plan(
        &mut self,
        rule: MailRule,
        stream: &EventStream,
        events: &[EventId],
        rows: &[NodeId],
        (planner, batch): (&Planner, usize),
    ) -> CommitPlan {
        if rule.targets == MailTargets::Nobody {
            return CommitPlan::default();
        }
        rows.iter().enumerate().for_each(|(row, node)| self.row_of[node.index()] = row as u32);
        let mut endpoints = Vec::new(); // all ranks', each once, in order of appearance
        let mut sent: Vec<(u32, Mail)> = Vec::with_capacity(2 * events.len()); // (place of the receiver, mail)
        for end in ends(rule.order, stream, events) {
            let slot = &mut self.slot_of[end.node.index()];
            if *slot == NONE {
                *slot = endpoints.len() as u32;
                endpoints.push(end.node);
            }
            sent.push((*slot, unsent(end.peer, end.event, stream.time(end.event))));
        }
        if rule.kept == MailsKept::Last {
            let mut last = vec![None; endpoints.len()];
            sent.into_iter().for_each(|mail| last[mail.0 as usize] = Some(mail));
            sent = last.into_iter().flatten().collect();
        }
        let mails: Vec<(NodeId, Mail)> = sent.into_iter().map(|(to, mail)| (endpoints[to as usize], mail)).collect();
        let mut plan = self.own_part(&endpoints, mails, planner);
        if planner.policy().is_some_and(|policy| policy.looks_ahead) {
            plan.units = units(&plan.replays, stream, events, (planner, batch));
        }
        endpoints.iter().for_each(|node| self.slot_of[node.index()] = NONE);
        plan
    }

    /// Keeps what this rank writes, and notes whose committed memory it sends and gets.
    fn own_part(&mut self, endpoints: &[NodeId], mails: Vec<(NodeId, Mail)>, planner: &Planner) -> CommitPlan {
        let own = |node: NodeId| planner.owner(node) == planner.me();
        let nodes: Vec<NodeId> = endpoints.iter().copied().filter(|&node| own(node)).collect();
        let rows = nodes.iter().map(|node| self.row_of[node.index()]).collect();
        let followed = |node: NodeId| planner.replicates(planner.me(), node);
        let replays: Vec<NodeId> = endpoints.iter().copied().filter(|&node| followed(node)).collect();
        for (place, node) in nodes.iter().chain(&replays).enumerate() {
            self.slot_of[node.index()] = place as u32;
        }
        let (peers, received) = self.routes(&mails, planner);
        let mut first = HashMap::new(); // where each peer's memory begins among what is at hand
        let mut end = (nodes.len() + replays.len()) as u32;
        for (rank, list) in &peers.into {
            first.insert(*rank, end);
            end += list.len() as u32;
        }
        let place = |peer: NodeId| match received.get(&peer) {
            Some((rank, at)) => first[rank] + at,
            None => self.slot_of[peer.index()],
        };
        let mails: Vec<(NodeId, Mail)> = mails.into_iter().filter(|&(node, _)| own(node) || followed(node)).collect();
        let payload_rows = mails.iter().map(|(_, mail)| place(mail.peer)).collect();
        CommitPlan { nodes, rows, mails, payload_rows, peers, replays, ..CommitPlan::default() }
    }

    /// Whose committed memory travels for mails, and from whom and at which place each node's comes.
    fn routes(&self, mails: &[(NodeId, Mail)], planner: &Planner) -> (Routes<u32>, HashMap<NodeId, (Rank, u32)>) {
        let (me, mut routes) = (planner.me(), Routes::default());
        let mut sent: HashSet<(Rank, NodeId)> = HashSet::new();
        let mut received: HashMap<NodeId, (Rank, u32)> = HashMap::new();
        let mut counts: HashMap<Rank, u32> = HashMap::new();
        for &(node, mail) in mails {
            let from = planner.owner(mail.peer);
            for to in planner.holders(node) {
                if from == to || planner.replicates(to, mail.peer) {
                    continue;
                }
                if from == me && sent.insert((to, mail.peer)) {
                    routes.note(me, from, to, self.slot_of[mail.peer.index()]);
                }
                if to == me && !received.contains_key(&mail.peer) {
                    let count = counts.entry(from).or_default();
                    received.insert(mail.peer, (from, *count));
                    *count += 1;
                    routes.note(me, from, to, 0);
                }
            }
        }
        (routes, received)
    }
}

/// The work of a batch for each node that is replayed.
fn units(
    replays: &[NodeId],
    stream: &EventStream,
    events: &[EventId],
    (planner, batch): (&Planner, usize),
) -> Vec<Unit> {
    let mut touched: HashMap<NodeId, u32> = HashMap::new();
    for &event in events {
        *touched.entry(stream.source(event)).or_default() += 1;
        *touched.entry(stream.destination(event)).or_default() += 1;
    }
    let unit = |node: &NodeId| {
        let outlook = planner.outlook(*node, batch);
        Unit { events: touched[node], reads: outlook.reads, next: outlook.next, unseen: outlook.unseen }
    };
    replays.iter().map(unit).collect()
}
