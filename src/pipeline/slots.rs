//! Mails kept in slots as tensors: what the latest mails of a batch's roots say, and what a batch's events send.
//!
//! Only the roots' own mails are read, not those of their sampled neighbors, who are there as receivers.

use super::commit::CommitPlan;
use crate::memory::NodeMemory;
use crate::sampler::Hop;
use std::collections::HashMap;
use tch::{Kind, Tensor};
use tidemill_data::stream::Tick;
use tidemill_models::input::{MailInput, SlotInput};
use tidemill_models::model::Payload;

/// The latest `slots` mails of each root of a hop, the newest first.
pub(super) fn read(hop: &Hop, memory: &NodeMemory, tick: Tick, slots: usize) -> SlotInput {
    let (shape, mailbox) = (memory.shape(), memory.mailbox());
    let cells = hop.roots.len() * slots;
    let (mut pool, mut first_of) = (Vec::new(), HashMap::new());
    let (mut mail, mut filled, mut dt) = (vec![0i64; cells], vec![false; cells], vec![0.0; cells]);
    for (root, at) in hop.roots.iter().zip((0..).step_by(slots)) {
        let rows = memory.pending(root.node);
        let first = *first_of.entry(root.node).or_insert_with(|| {
            pool.extend(rows.iter().map(|&row| i64::from(row)));
            pool.len() as i64 - rows.len() as i64
        });
        dt[at..at + slots].fill(tick.seconds(root.time.0 - memory.origin().0));
        for (slot, (i, &row)) in rows.iter().enumerate().rev().enumerate() {
            (mail[at + slot], filled[at + slot]) = (first + i as i64, true);
            dt[at + slot] = mailbox.mail(row).ticks_until(root.time) * tick.seconds(1);
        }
    }
    let of = |x: Tensor| x.view([hop.roots.len() as i64, slots as i64]).to_device(shape.device);
    SlotInput {
        payload: mailbox.payload(&Tensor::from_slice(&pool).to_device(shape.device)),
        mail: of(Tensor::from_slice(&mail)),
        filled: of(Tensor::from_slice(&filled)),
        dt: of(Tensor::from_slice(&dt).to_kind(shape.kind)),
    }
}

/// No pending mail.
pub(super) fn no_mail(memory: &NodeMemory) -> MailInput {
    let shape = memory.shape();
    let (float, whole) = ((shape.kind, shape.device), (Kind::Int64, shape.device));
    MailInput {
        row: Tensor::zeros([0], whole),
        segment: None,
        payload: Tensor::zeros([0, shape.payload_dim], float),
        edge_features: None,
        dt: Tensor::zeros([0], float),
        code: None,
    }
}

/// What the mails of a batch carry, `[Q, D_p]`: the means of their messages.
///
/// * `z`: `[R, D_emb]`, embeddings of the top hop's roots. * `source`, `destination`: `[B]` i64 into `z`.
/// * `edge_features`: `[B, D_e]`.
pub(super) fn payload(
    rule: Payload,
    plan: &CommitPlan,
    z: &Tensor,
    (source, destination): (&Tensor, &Tensor),
    edge_features: Option<&Tensor>,
) -> Tensor {
    let [source, destination] = [source, destination].map(|index| z.index_select(0, index)); // [B, D_emb]
    let of_event = |a: &Tensor, b: &Tensor| match (rule, edge_features) {
        (Payload::PairSum, Some(edge)) => a + b + edge,
        (Payload::PairSum, None) => a + b,
        (_, Some(edge)) => Tensor::cat(&[a, b, edge], 1),
        (_, None) => Tensor::cat(&[a, b], 1),
    };
    let messages = Tensor::stack(&[of_event(&source, &destination), of_event(&destination, &source)], 1).flatten(0, 1); // [2B, D_p]
    let wanted: Vec<i64> = plan.payload_rows.iter().map(|&message| i64::from(message)).collect();
    let each = messages.index_select(0, &Tensor::from_slice(&wanted).to_device(z.device()));
    if plan.messages.is_empty() {
        return each;
    }
    let lengths: Vec<i64> = plan.messages.iter().map(|&count| i64::from(count)).collect();
    let lengths = Tensor::from_slice(&lengths).to_device(z.device());
    let sums = Tensor::segment_reduce(&each, "sum", Some(&lengths), None, None, 0, true, 0.0);
    sums / lengths.to_kind(z.kind()).unsqueeze(-1)
}
