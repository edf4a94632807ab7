//! What a batch takes in memory while it waits between two stages: its buffers and tensors, not the allocator's own.

use super::commit::CommitPlan;
use super::event::BatchPlan;
use super::state::ReadyBatch;
use crate::dependency::{Exchange, Routes};
use crate::sampler::{Hop, Sample};
use tch::Tensor;
use tidemill_models::input::{LayerInput, MailInput, ModelInput, PairInput, SlotInput};

/// Bytes of a buffer, its unused end included.
fn vec<T>(buffer: &Vec<T>) -> u64 {
    (buffer.capacity() * size_of::<T>()) as u64
}

fn routes<T>(routes: &Routes<T>) -> u64 {
    routes.out.iter().chain(&routes.into).map(|(_, items)| vec(items)).sum()
}

/// Bytes of a plan.
pub fn plan_bytes(plan: &BatchPlan) -> u64 {
    let kept: u64 = plan.keep.iter().flatten().map(vec).sum();
    let integers = vec(&plan.all) + vec(&plan.embeds) + vec(&plan.events) + vec(&plan.negatives);
    let more = vec(&plan.negative_sources) + vec(&plan.candidates) + vec(&plan.rows) + vec(&plan.embeddings);
    let seen = plan.seen.as_ref().map_or(0, vec);
    size_of::<BatchPlan>() as u64
        + kept
        + integers
        + more
        + seen
        + sample(&plan.sample)
        + commit(&plan.commit)
        + exchange(&plan.exchange)
}

fn sample(sample: &Sample) -> u64 {
    let hop = |hop: &Hop| {
        vec(&hop.roots)
            + vec(&hop.count)
            + vec(&hop.neighbor)
            + vec(&hop.event)
            + vec(&hop.time)
            + vec(&hop.below_root)
            + vec(&hop.below_neighbor)
    };
    sample.hops.iter().map(hop).sum::<u64>() + vec(&sample.root_of) + vec(&sample.rows)
}

fn commit(plan: &CommitPlan) -> u64 {
    vec(&plan.nodes)
        + vec(&plan.rows)
        + vec(&plan.times)
        + vec(&plan.mails)
        + vec(&plan.payload_rows)
        + vec(&plan.messages)
        + routes(&plan.peers)
}

fn exchange(exchange: &Exchange) -> u64 {
    let nodes = [&exchange.leave, &exchange.drop_before, &exchange.drop_after, &exchange.blank];
    let events = [&exchange.features_before, &exchange.features_after];
    nodes.into_iter().map(vec).sum::<u64>()
        + events.into_iter().map(vec).sum::<u64>()
        + routes(&exchange.migrate)
        + routes(&exchange.push)
        + routes(&exchange.versions)
        + routes(&exchange.refresh)
        + routes(&exchange.features)
        + routes(&exchange.embeddings)
}

fn tensor(tensor: &Tensor) -> u64 {
    (tensor.numel() * tensor.kind().elt_size_in_bytes()) as u64
}

fn maybe(optional: &Option<Tensor>) -> u64 {
    optional.as_ref().map_or(0, tensor)
}

/// Bytes of a batch with its state read: its plan and its tensors, wherever these are.
pub fn ready_bytes(batch: &ReadyBatch) -> u64 {
    plan_bytes(&batch.plan) + input(&batch.input) + pairs(&batch.pairs)
}

fn input(input: &ModelInput) -> u64 {
    let slots =
        |slots: &SlotInput| tensor(&slots.payload) + tensor(&slots.mail) + tensor(&slots.filled) + tensor(&slots.dt);
    tensor(&input.memory)
        + maybe(&input.node_features)
        + mail(&input.mail)
        + input.slots.as_ref().map_or(0, slots)
        + input.layers.iter().map(layer).sum::<u64>()
}

fn mail(mail: &MailInput) -> u64 {
    tensor(&mail.row)
        + maybe(&mail.segment)
        + tensor(&mail.payload)
        + maybe(&mail.edge_features)
        + tensor(&mail.dt)
        + maybe(&mail.code)
}

fn layer(layer: &LayerInput) -> u64 {
    let times = tensor(&layer.dt) + tensor(&layer.root_dt) + maybe(&layer.since_origin);
    tensor(&layer.root)
        + tensor(&layer.neighbor)
        + tensor(&layer.valid)
        + times
        + maybe(&layer.edge_features)
        + maybe(&layer.keep)
}

fn pairs(pairs: &PairInput) -> u64 {
    let seen = pairs.seen.iter().flatten().map(tensor).sum::<u64>();
    tensor(&pairs.source) + tensor(&pairs.destination) + tensor(&pairs.negative) + seen
}
