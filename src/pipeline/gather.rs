//! Integers become tensors on the state's device: part of the state stage, for its reads and its writes.

use super::features::Features;
use crate::memory::{NodeMemory, StateShape, row_numbers};
use tch::{Device, Kind, Tensor};
use tidemill_data::id::{EventId, NodeId};
use tidemill_data::stream::EventStream;
use tidemill_models::input::MailInput;

/// Makes tensors of one kind, on one device, out of integers and the stream's features.
#[derive(Clone)]
pub struct Gather {
    /// Where features and times come from.
    pub stream: EventStream,
    /// Kind and device.
    pub shape: StateShape,
}

impl Gather {
    /// A host tensor on the state's device. To a GPU it goes by way of page-locked memory, which libtorch reuses once the copy is
    /// done, and in the calling thread's stream: the call returns before the copy has begun.
    pub fn send(&self, host: Tensor) -> Tensor {
        match self.shape.device {
            Device::Cpu => host,
            device => host.pin_memory(device).to_device_(device, host.kind(), true, false),
        }
    }

    /// `[n]` i64.
    pub fn index(&self, ids: impl Iterator<Item = i64>) -> Tensor {
        self.send(Tensor::from_slice(&ids.collect::<Vec<_>>()))
    }

    /// `[n]` i64 of row numbers.
    pub fn rows(&self, rows: &[u32]) -> Tensor {
        self.send(row_numbers(rows.iter().copied()))
    }

    /// `[n]` i64 of nodes.
    pub fn nodes(&self, nodes: &[NodeId]) -> Tensor {
        self.send(row_numbers(nodes.iter().map(|node| node.0)))
    }

    /// `[n]` float: f64 values rounded once.
    pub fn floats(&self, values: impl Iterator<Item = f64>) -> Tensor {
        let host = match self.shape.kind {
            Kind::Double => Tensor::from_slice(&values.collect::<Vec<f64>>()),
            kind => Tensor::from_slice(&values.map(|x| x as f32).collect::<Vec<f32>>()).to_kind(kind),
        };
        self.send(host)
    }

    /// `[n]` float: ticks in seconds.
    pub fn seconds(&self, ticks: impl Iterator<Item = i64>) -> Tensor {
        let tick = self.stream.meta().tick;
        self.floats(ticks.map(|ticks| tick.seconds(ticks)))
    }

    /// Features of sampled edges, gathered straight into the tensor's memory; `shape` is followed by D_e.
    ///
    /// * `valid`: which slots hold an edge.
    pub fn edge_features(
        &self,
        features: &Features,
        events: &[EventId],
        valid: &[bool],
        shape: &[i64],
    ) -> Option<Tensor> {
        let dim = features.dim();
        if dim == 0 {
            return None;
        }
        let mut shape = shape.to_vec();
        shape.push(dim as i64);
        let host = Tensor::empty(&shape, (Kind::Float, Device::Cpu));
        // SAFETY: the tensor is contiguous, f32, on the CPU, freshly made and of exactly this many elements.
        let out = unsafe { std::slice::from_raw_parts_mut(host.data_ptr().cast::<f32>(), events.len() * dim) };
        features.gather(events, |slot| valid[slot], out);
        Some(self.send(host).to_kind(self.shape.kind))
    }

    /// `[Q, D_e]` of rows at hand.
    fn feature_rows(&self, rows: &[f32], dim: usize) -> Option<Tensor> {
        (dim > 0).then(|| {
            let host = Tensor::from_slice(rows).view([(rows.len() / dim) as i64, dim as i64]);
            self.send(host).to_kind(self.shape.kind)
        })
    }

    /// Pending mail of nodes; a node's place among `nodes` is its row.
    pub fn mail(&self, nodes: &[NodeId], memory: &NodeMemory, features: &Features) -> MailInput {
        let mailbox = memory.mailbox();
        let (mut row, mut segment, mut pool, mut elapsed) = (vec![], vec![], vec![], vec![]);
        let mut mailed = Vec::new();
        for (at, &node) in nodes.iter().enumerate() {
            let mails = memory.pending(node);
            if mails.is_empty() {
                continue;
            }
            features.of_mails(node, mails.iter().map(|&mail| mailbox.mail(mail).event), &mut mailed);
            for &mail in mails {
                segment.push(row.len() as i64);
                pool.push(i64::from(mail));
                elapsed.push(mailbox.mail(mail).elapsed);
            }
            row.push(at as i64);
        }
        let single = row.len() == pool.len();
        let pool = self.index(pool.into_iter());
        MailInput {
            payload: mailbox.payload(&pool),
            edge_features: self.feature_rows(&mailed, features.dim()),
            dt: self.seconds(elapsed.into_iter()),
            code: mailbox.code(&pool),
            row: self.index(row.into_iter()),
            segment: (!single).then(|| self.index(segment.into_iter())),
        }
    }

    /// All nodes' features, `[N, D_v]`, if the stream has any.
    pub fn node_features(&self) -> Option<Tensor> {
        let dim = self.stream.node_feature_dim() as i64;
        (dim > 0).then(|| {
            let nodes = self.stream.nodes();
            let rows: Vec<f32> =
                (0..nodes).flat_map(|n| self.stream.node_features(NodeId(n)).iter().copied()).collect();
            let table = Tensor::from_slice(&rows).view([i64::from(nodes), dim]);
            table.to_device(self.shape.device).to_kind(self.shape.kind)
        })
    }
}
