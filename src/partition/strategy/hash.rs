//! By a hash of the node id: knows nothing of events, and is the yardstick of those that do.

/// The owner of each node.
pub(super) fn table(nodes: u32, ranks: usize) -> Vec<u16> {
    (0..nodes).map(|node| ((u64::from(mix(node)) * ranks as u64) >> 32) as u16).collect()
}

/// A bijection of the 32-bit words whose output looks random (Wellons' `lowbias32`).
fn mix(mut word: u32) -> u32 {
    word ^= word >> 16;
    word = word.wrapping_mul(0x7feb_352d);
    word ^= word >> 15;
    word = word.wrapping_mul(0x846c_a68b);
    word ^ word >> 16
}
