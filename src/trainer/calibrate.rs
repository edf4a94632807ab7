//! `[calibration]`: what sending and replay cost here, measured once at the start of a run on several ranks.

use crate::comms::Communicator;
use crate::dependency::Calibration;
use crate::error::Result;
use crate::memory::{Mail, NodeMemory, StateCommit, StateShape, unsent};
use crate::pipeline::features::Features;
use crate::pipeline::gather::Gather;
use std::time::Instant;
use tch::Tensor;
use tidemill_data::id::{EventId, NodeId, Timestamp};
use tidemill_models::model::Model;

/// Rows of a trial: about what a batch replays.
const ROWS: usize = 256;
const ROUNDS: usize = 9;

/// Fills in what a configuration does not give; the first rank's figures hold for all.
///
/// # Errors
/// A lost peer.
pub(super) fn calibrate(
    given: Calibration,
    comm: &Communicator,
    sequence: u64,
    gather: &Gather,
    model: &dyn Model,
) -> Result<Calibration> {
    if given.is_complete() || comm.world() == 1 {
        return Ok(given);
    }
    comm.barrier(sequence)?; // no rank still loads its data
    let rates = comm.measure(sequence + 1)?.unwrap_or_default();
    let measured = [rates.latency_s, rates.bytes_per_s, update_s(gather, model)];
    let given = [given.latency_s, given.bytes_per_s, given.update_s];
    let chosen: Vec<f64> =
        given.iter().zip(measured).map(|(&given, found)| if given > 0.0 { given } else { found }).collect();
    let mut bytes = bytemuck::cast_slice(&chosen).to_vec();
    comm.broadcast(0, sequence + 2, &mut bytes)?;
    let chosen: Vec<f64> = bytes.chunks_exact(8).map(bytemuck::pod_read_unaligned).collect();
    let found = Calibration { latency_s: chosen[0], bytes_per_s: chosen[1], update_s: chosen[2] };
    tracing::info!(
        "calibration: latency {:.1} us, {:.1} MB/s, {:.2} us a replayed update",
        1e6 * found.latency_s,
        1e-6 * found.bytes_per_s,
        1e6 * found.update_s
    );
    Ok(found)
}

/// Median seconds of a row's update, its memory read, mail applied and state committed.
fn update_s(gather: &Gather, model: &dyn Model) -> f64 {
    let nodes = ROWS.min(gather.shape.nodes).min(gather.stream.len());
    let mut memory = NodeMemory::new(StateShape { nodes, ..gather.shape }, Timestamp(0));
    let features = Features::new(gather.stream.clone());
    let ids: Vec<NodeId> = (0..nodes as u32).map(NodeId).collect();
    let mail = |&node: &NodeId| -> (NodeId, Mail) { (node, unsent(node, EventId(node.0), Timestamp(1))) };
    let mails: Vec<(NodeId, Mail)> = ids.iter().map(mail).collect();
    let payload = Tensor::zeros([nodes as i64, gather.shape.payload_dim], (gather.shape.kind, gather.shape.device));
    let mut round = || {
        let start = Instant::now();
        let rows = tch::no_grad(|| model.apply_mail(&memory.rows(&ids), &gather.mail(&ids, &memory, &features)));
        let encode = |elapsed: &[i64]| {
            gather.shape.code_dim?;
            Some(model.encode_mail_time(&gather.seconds(elapsed.iter().copied())))
        };
        memory.commit(&StateCommit { nodes: &ids, rows: &rows, mails: &mails, payload: &payload }, encode);
        memory.settle();
        start.elapsed().as_secs_f64() / nodes as f64
    };
    round(); // without mail
    let mut rounds: Vec<f64> = (0..ROUNDS).map(|_| round()).collect();
    rounds.sort_by(f64::total_cmp);
    rounds[ROUNDS / 2]
}
