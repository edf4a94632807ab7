//! Node memory and mailbox: all that one batch leaves to the next (TGN, arXiv:2006.10637, section 3.1).
//!
//! One writer: only the pipeline's state stage calls [`NodeMemory::commit`], in batch order. A batch is committed twice, as
//! its state after the forward pass and as its parameters after the optimizer step; between the two the rows that the batch
//! replaced are kept, so that a batch whose loss or gradient is not finite leaves no trace ([`NodeMemory::roll_back`]).
//! Models never see this type: they get rows and return rows.

mod mailbox;

pub use mailbox::{Mail, MailRows, Mailbox};

use std::collections::VecDeque;
use tch::{Device, Kind, Tensor};
use tidemill_data::id::{EventId, NodeId, Timestamp};

/// Shape of the state that a model keeps per node.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct StateShape {
    /// Nodes.
    pub nodes: usize,
    /// Width of a memory row, D_m.
    pub memory_dim: i64,
    /// Width of a mail's payload, D_p.
    pub payload_dim: i64,
    /// Width of a stored time code, if the model stores one.
    pub code_dim: Option<i64>,
    /// Floating-point kind.
    pub kind: Kind,
    /// Where the tensors live.
    pub device: Device,
}

/// Memory rows, times of last update and pending mail of every node.
pub struct NodeMemory {
    shape: StateShape,
    origin: Timestamp,
    rows: Tensor,
    last_update: Vec<Timestamp>,
    mailbox: Mailbox,
    undo: VecDeque<Undo>,
    commits: usize,
}

/// What a batch writes: its endpoints' new rows and the mails it leaves.
pub struct StateCommit<'a> {
    /// Nodes written, each once.
    pub nodes: &'a [NodeId],
    /// `[C, D_m]`: their new memory.
    pub rows: &'a Tensor,
    /// New mails in order; `elapsed` is set here from the committed `last_update`.
    pub mails: &'a [(NodeId, Mail)],
    /// `[Q, D_p]`.
    pub payload: &'a Tensor,
}

/// What a commit replaced.
struct Undo {
    nodes: Vec<NodeId>,
    state: NodeState,
}

/// The whole state of some nodes, in order. Tensors are on the CPU or the state's device as made.
pub struct NodeState {
    /// `[C, D_m]`.
    pub rows: Tensor,
    /// `[C]`.
    pub last_update: Vec<Timestamp>,
    /// Pending mails per node, `[C]`.
    pub counts: Vec<u32>,
    /// Their integers, node after node.
    pub mails: Vec<Mail>,
    /// `[Q, D_p]`.
    pub payload: Tensor,
    /// `[Q, D_t]`.
    pub code: Option<Tensor>,
}

impl NodeMemory {
    /// Zero memory without mail; `origin` is the time of last update of a node never touched.
    pub fn new(shape: StateShape, origin: Timestamp) -> NodeMemory {
        NodeMemory {
            rows: Tensor::zeros([shape.nodes as i64, shape.memory_dim], (shape.kind, shape.device)),
            last_update: vec![origin; shape.nodes],
            mailbox: Mailbox::new(shape.nodes, shape.payload_dim, shape.code_dim, shape.kind, shape.device),
            undo: VecDeque::new(),
            commits: 0,
            shape,
            origin,
        }
    }

    /// The state's shape.
    pub fn shape(&self) -> StateShape {
        self.shape
    }

    /// Back to zero memory without mail, as at the start of an epoch.
    pub fn reset(&mut self) {
        let _ = self.rows.zero_();
        self.last_update.fill(self.origin);
        self.mailbox.clear();
        self.undo.clear();
    }

    /// Memory rows of nodes.
    ///
    /// * `nodes`: `[N]` i64. * returns `[N, D_m]`, a copy.
    pub fn rows(&self, nodes: &Tensor) -> Tensor {
        self.rows.index_select(0, nodes)
    }

    /// The pending mail.
    pub fn mailbox(&self) -> &Mailbox {
        &self.mailbox
    }

    /// Committed time of last update.
    pub fn last_update(&self, node: NodeId) -> Timestamp {
        self.last_update[node.index()]
    }

    /// Time of last update once the pending mail is applied.
    pub fn next_update(&self, node: NodeId) -> Timestamp {
        self.mailbox.latest(node).unwrap_or(self.last_update(node))
    }

    /// The state commit: endpoints' rows become the memory, their mail is cleared, then the batch's mails are stored.
    ///
    /// `encode` gives the stored time code of the mails' elapsed ticks, for models that store one.
    pub fn commit(&mut self, commit: &StateCommit, encode: impl FnOnce(&[i64]) -> Option<Tensor>) {
        self.undo.push_back(Undo { nodes: commit.nodes.to_vec(), state: self.read(commit.nodes) });
        self.write_rows(commit.nodes, commit.rows);
        for &node in commit.nodes {
            self.last_update[node.index()] = self.next_update(node);
            self.mailbox.take(node);
        }
        let timed = |&(node, mail): &(NodeId, Mail)| {
            let elapsed = mail.time.0 - self.last_update[node.index()].0;
            (node, Mail { elapsed, ..mail })
        };
        let mails: Vec<(NodeId, Mail)> = commit.mails.iter().map(timed).collect();
        let elapsed: Vec<i64> = mails.iter().map(|(_, mail)| mail.elapsed).collect();
        self.mailbox.put(&mails, commit.payload, encode(&elapsed).as_ref());
        self.commits += 1;
    }

    /// State commits made since the program started, those taken back included: by it readers know what they have seen.
    pub fn commits(&self) -> usize {
        self.commits
    }

    /// The state commit of a model that keeps its latest mails: rows become the memory at the given times, no mail is cleared,
    /// and each receiver keeps its latest `slots` mails, one of them new.
    ///
    /// * `times`: `[C]`, of the last event of each of `commit.nodes`.
    pub fn commit_slots(&mut self, commit: &StateCommit, times: &[Timestamp], slots: usize) {
        let mut touched = commit.nodes.to_vec();
        touched.extend(commit.mails.iter().map(|(node, _)| *node));
        touched.sort_unstable();
        touched.dedup();
        self.undo.push_back(Undo { state: self.read(&touched), nodes: touched });
        self.write_rows(commit.nodes, commit.rows);
        for (&node, &time) in commit.nodes.iter().zip(times) {
            self.last_update[node.index()] = time;
        }
        self.mailbox.put(commit.mails, commit.payload, None);
        commit.mails.iter().for_each(|&(node, _)| self.mailbox.keep_latest(node, slots));
    }

    /// The time of last update of a node never touched.
    pub fn origin(&self) -> Timestamp {
        self.origin
    }

    /// The oldest batch without one had its parameter commit: what it replaced is forgotten.
    pub fn settle(&mut self) {
        self.undo.pop_front().expect("a parameter commit follows a state commit");
    }

    /// Takes back every batch without a parameter commit, latest first.
    pub fn roll_back(&mut self) {
        while let Some(undo) = self.undo.pop_back() {
            self.overwrite(&undo.nodes, &undo.state);
        }
    }

    /// Copies the whole state of some nodes.
    pub fn read(&self, nodes: &[NodeId]) -> NodeState {
        let pool: Vec<i64> = nodes.iter().flat_map(|&n| self.mailbox.rows_of(n)).map(|&row| i64::from(row)).collect();
        let pool_index = Tensor::from_slice(&pool).to_device(self.shape.device);
        NodeState {
            rows: self.rows(&self.index(nodes)),
            last_update: nodes.iter().map(|&n| self.last_update(n)).collect(),
            counts: nodes.iter().map(|&n| self.mailbox.rows_of(n).len() as u32).collect(),
            mails: pool.iter().map(|&row| self.mailbox.mail(row as u32)).collect(),
            payload: self.mailbox.payload(&pool_index),
            code: self.mailbox.code(&pool_index),
        }
    }

    /// Replaces the whole state of some nodes by a copy that [`NodeMemory::read`] made.
    pub fn overwrite(&mut self, nodes: &[NodeId], state: &NodeState) {
        self.write_rows(nodes, &state.rows);
        let mut owners = Vec::with_capacity(state.mails.len());
        for ((&node, &time), &count) in nodes.iter().zip(&state.last_update).zip(&state.counts) {
            self.last_update[node.index()] = time;
            self.mailbox.take(node);
            owners.extend((0..count).map(|_| node));
        }
        let mails: Vec<(NodeId, Mail)> = owners.into_iter().zip(state.mails.iter().copied()).collect();
        self.mailbox.put(&mails, &state.payload, state.code.as_ref());
    }

    /// Copies the whole state of all nodes.
    pub fn read_all(&self) -> NodeState {
        self.read(&self.all_nodes())
    }

    /// Copies the whole state of all nodes, a few at a time and in order: what a large state is hashed and stored by.
    pub fn parts(&self) -> impl Iterator<Item = NodeState> + '_ {
        self.nodes_of_parts().map(|nodes| self.read(&nodes))
    }

    /// The nodes of each of [`NodeMemory::parts`].
    pub fn nodes_of_parts(&self) -> impl Iterator<Item = Vec<NodeId>> + use<> {
        let nodes = self.shape.nodes;
        (0..nodes)
            .step_by(PART)
            .map(move |first| (first..(first + PART).min(nodes)).map(|n| NodeId(n as u32)).collect())
    }

    /// Replaces the whole state of all nodes; nothing is left to roll back to.
    pub fn restore(&mut self, state: &NodeState) {
        self.reset();
        self.overwrite(&self.all_nodes(), state);
    }

    /// Heap bytes of the tensors.
    pub fn bytes(&self) -> usize {
        self.rows.numel() * self.shape.kind.elt_size_in_bytes() + self.mailbox.bytes()
    }

    fn all_nodes(&self) -> Vec<NodeId> {
        (0..self.shape.nodes as u32).map(NodeId).collect()
    }

    fn index(&self, nodes: &[NodeId]) -> Tensor {
        let ids: Vec<i64> = nodes.iter().map(|n| i64::from(n.0)).collect();
        Tensor::from_slice(&ids).to_device(self.shape.device)
    }

    fn write_rows(&mut self, nodes: &[NodeId], rows: &Tensor) {
        if !nodes.is_empty() {
            let index = self.index(nodes);
            let _ = self.rows.index_copy_(0, &index, &rows.detach());
        }
    }
}

/// Nodes of one of [`NodeMemory::parts`].
const PART: usize = 1 << 15;

/// A mail of an event before it is stored.
pub fn unsent(peer: NodeId, event: EventId, time: Timestamp) -> Mail {
    Mail { peer, event, time, elapsed: 0 }
}

#[cfg(test)]
mod tests;
