//! The hash that says whether two runs are in the same state, to the bit (algorithm page, section 10).
//!
//! sha256 over one digest a node, in node order, so that each owner of nodes contributes 32 bytes for each; then parameters
//! by name and the optimizer's state.

use crate::memory::{NodeMemory, NodeState};
use crate::pipeline::wire::bytes_of;
use sha2::{Digest, Sha256};
use tch::Tensor;
use tidemill_data::id::NodeId;
use tidemill_models::optimizer::Optimizer;
use tidemill_models::parameters::Parameters;

/// A node's digest.
pub type NodeDigest = (NodeId, [u8; 32]);

/// Digests of a rank's own nodes, in node order.
pub fn digests(memory: &NodeMemory) -> Vec<NodeDigest> {
    let parts = memory.nodes_of_parts().zip(memory.parts());
    parts.flat_map(|(nodes, part)| nodes.into_iter().zip(node_digests(&part))).collect()
}

/// Digests as bytes, 36 a node.
pub fn digest_bytes(digests: &[NodeDigest]) -> Vec<u8> {
    digests.iter().flat_map(|(node, digest)| node.0.to_le_bytes().into_iter().chain(*digest)).collect()
}

/// All ranks' digests, in node order.
///
/// # Panics
/// If the bytes are not of [`digest_bytes`].
pub fn joined(parts: Vec<Vec<u8>>) -> Vec<NodeDigest> {
    let of = |bytes: &[u8]| {
        let node = u32::from_le_bytes(bytes[..4].try_into().expect("four bytes"));
        (NodeId(node), bytes[4..].try_into().expect("a digest of 32 bytes"))
    };
    let mut all: Vec<NodeDigest> = parts.iter().flat_map(|part| part.chunks_exact(36).map(of)).collect();
    all.sort_unstable_by_key(|(node, _)| *node);
    all
}

/// Hash of parameters, optimizer and node state, in hexadecimal.
///
/// * `digests`: of all nodes, in node order.
pub fn of(parameters: &Parameters, optimizer: &Optimizer, digests: &[NodeDigest]) -> String {
    let mut hash = Sha256::new();
    digests.iter().for_each(|(_, digest)| hash.update(digest));
    for (name, value) in parameters.iter() {
        hash.update(name.as_bytes());
        hash.update(bytes_of(value));
    }
    optimizer.own_steps().iter().for_each(|steps| hash.update(steps.to_le_bytes()));
    hash.update(bytes_of(optimizer.moments().0));
    hash.update(bytes_of(optimizer.moments().1));
    hash.finalize().iter().map(|byte| format!("{byte:02x}")).collect()
}

/// One digest a node: memory bits, time of last update, pending mail.
pub fn node_digests(state: &NodeState) -> Vec<[u8; 32]> {
    let rows = Rows::of(&state.rows);
    let payload = Rows::of(&state.payload);
    let code = state.code.as_ref().map(Rows::of);
    let mut mail_at = 0;
    let digest = |(node, (&count, time)): (usize, (&u32, &tidemill_data::id::Timestamp))| {
        let mut hash = Sha256::new();
        hash.update(rows.get(node));
        hash.update(time.0.to_le_bytes());
        for at in mail_at..mail_at + count as usize {
            let mail = state.mails[at];
            hash.update(mail.peer.0.to_le_bytes());
            hash.update(mail.event.0.to_le_bytes());
            hash.update(mail.time.0.to_le_bytes());
            hash.update(mail.elapsed.to_le_bytes());
            hash.update(payload.get(at));
            code.iter().for_each(|code| hash.update(code.get(at)));
        }
        mail_at += count as usize;
        hash.finalize().into()
    };
    state.counts.iter().zip(&state.last_update).enumerate().map(digest).collect()
}

/// Rows of a matrix as bytes.
struct Rows {
    bytes: Vec<u8>,
    width: usize,
}

impl Rows {
    fn of(matrix: &Tensor) -> Rows {
        Rows { width: matrix.size()[1] as usize * matrix.kind().elt_size_in_bytes(), bytes: bytes_of(matrix) }
    }

    fn get(&self, row: usize) -> &[u8] {
        &self.bytes[row * self.width..(row + 1) * self.width]
    }
}
