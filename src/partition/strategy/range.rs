//! By contiguous ranges of node ids, equal in number: what ids that carry meaning (time of joining, place) give for nothing.

/// The owner of each node.
pub(super) fn table(nodes: u32, ranks: usize) -> Vec<u16> {
    (0..u64::from(nodes)).map(|node| (node * ranks as u64 / u64::from(nodes)) as u16).collect()
}
