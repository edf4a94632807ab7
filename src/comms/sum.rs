//! All-reduce in two steps: each rank adds up one share of every bucket in the order of the ranks (reduce-scatter), then
//! hands the sums to the others (all-gather).
//!
//! Invariants: every rank ends with identical bits, and they are those of adding rank 0, 1, 2, ... one after the other;
//! `2 (P - 1) / P` of the values cross each link. A started sum goes on in `progress` and `wait`, on the threads of the ranks
//! that call them: no other thread adds.

use super::communicator::Communicator;
use super::tag::{Key, Lane, Purpose, Tag};
use crate::error::Result;
use std::ops::{AddAssign, Range};

/// Numbers that can be summed over the ranks.
pub trait Summand: bytemuck::Pod + AddAssign + Send + private::Sealed {}

mod private {
    pub trait Sealed {}
    impl Sealed for f32 {}
    impl Sealed for f64 {}
}

impl Summand for f32 {}
impl Summand for f64 {}

/// A sum under way.
#[must_use = "the other ranks wait for this one's share of the sum"]
#[derive(Debug)]
pub struct Pending<T: Summand> {
    values: Vec<T>,
    sum: Sum,
}

impl<T: Summand> Pending<T> {
    /// Adds up what has arrived, without waiting; whether the sum is complete.
    ///
    /// # Errors
    /// A rank is lost.
    pub fn progress(&mut self) -> Result<bool> {
        self.sum.advance(&mut self.values, false)
    }

    /// The sums, once they are complete.
    ///
    /// # Errors
    /// A rank is lost.
    pub fn wait(mut self) -> Result<Vec<T>> {
        self.sum.advance(&mut self.values, true)?;
        Ok(self.values)
    }
}

/// How far a sum is.
#[derive(Debug)]
struct Sum {
    comm: Communicator,
    sequence: u64,
    length: usize,
    /// Values in a bucket.
    bucket: usize,
    /// Buckets whose own share is added up and sent.
    reduced: usize,
    /// Buckets that are complete.
    collected: usize,
}

impl Communicator {
    /// Replaces `values` by their sums over the ranks, the same bits on each. All ranks give as many, under one `sequence`.
    ///
    /// # Errors
    /// A rank is lost.
    ///
    /// # Panics
    /// If another rank gave another number of values.
    pub fn sum<T: Summand>(&self, sequence: u64, values: &mut [T]) -> Result<()> {
        let mut sum = Sum::start(self, sequence, values)?;
        sum.advance(values, true).map(|_| ())
    }

    /// Starts such a sum and returns at once; the values come back from [`Pending::wait`].
    ///
    /// # Errors
    /// A rank is lost.
    pub fn start_sum<T: Summand>(&self, sequence: u64, values: Vec<T>) -> Result<Pending<T>> {
        let sum = Sum::start(self, sequence, &values)?;
        Ok(Pending { values, sum })
    }
}

impl Sum {
    fn start<T: Summand>(comm: &Communicator, sequence: u64, values: &[T]) -> Result<Sum> {
        let bucket = match comm.member.bucket_bytes {
            0 => values.len(),
            bytes => bytes / size_of::<T>(),
        };
        let bucket = bucket.max(comm.world());
        let sum = Sum { comm: comm.clone(), sequence, length: values.len(), bucket, reduced: 0, collected: 0 };
        for bucket in 0..sum.buckets() {
            for peer in comm.peers() {
                let share = sum.share(bucket, peer);
                if !share.is_empty() {
                    comm.post(peer, sum.key(Lane::Scatter, bucket), bytemuck::cast_slice(&values[share]).to_vec())?;
                }
            }
        }
        Ok(sum)
    }

    /// Goes on as far as it can; whether it is done.
    fn advance<T: Summand>(&mut self, values: &mut [T], wait: bool) -> Result<bool> {
        while self.reduced < self.buckets() && (wait || self.is_there(Lane::Scatter, self.reduced)?) {
            self.reduce(self.reduced, values)?;
            self.reduced += 1;
        }
        while self.collected < self.reduced && (wait || self.is_there(Lane::Collect, self.collected)?) {
            self.collect(self.collected, values)?;
            self.collected += 1;
        }
        Ok(self.collected == self.buckets())
    }

    /// Adds up this rank's share of a bucket, in the order of the ranks, and sends it to the others.
    fn reduce<T: Summand>(&self, bucket: usize, values: &mut [T]) -> Result<()> {
        let own_rank = self.comm.rank();
        let share = self.share(bucket, own_rank);
        if share.is_empty() || self.comm.world() == 1 {
            return Ok(());
        }
        let own = values[share.clone()].to_vec();
        let sums = &mut values[share];
        for rank in 0..self.comm.world() {
            let theirs = if rank == own_rank { None } else { Some(self.take(Lane::Scatter, bucket, rank)?) };
            let bytes = theirs.as_deref().unwrap_or_else(|| bytemuck::cast_slice(&own));
            match rank {
                0 => combine(sums, bytes, |sum, value| *sum = value),
                _ => combine(sums, bytes, |sum, value| *sum += value),
            }
        }
        for peer in self.comm.peers() {
            self.comm.post(peer, self.key(Lane::Collect, bucket), bytemuck::cast_slice(sums).to_vec())?;
        }
        Ok(())
    }

    /// Puts the other ranks' shares of a bucket in their places.
    fn collect<T: Summand>(&self, bucket: usize, values: &mut [T]) -> Result<()> {
        for peer in self.comm.peers() {
            let share = self.share(bucket, peer);
            if !share.is_empty() {
                let bytes = self.take(Lane::Collect, bucket, peer)?;
                combine(&mut values[share], &bytes, |sum, value| *sum = value);
            }
        }
        Ok(())
    }

    fn is_there(&self, lane: Lane, bucket: usize) -> Result<bool> {
        for peer in self.comm.peers() {
            let owner = if lane == Lane::Scatter { self.comm.rank() } else { peer };
            let expected = !self.share(bucket, owner).is_empty();
            if expected && !self.comm.member.desk.holds(peer, self.key(lane, bucket))? {
                return Ok(false);
            }
        }
        Ok(true)
    }

    fn take(&self, lane: Lane, bucket: usize, from: usize) -> Result<Vec<u8>> {
        self.comm.take(from, self.key(lane, bucket))
    }

    fn key(&self, lane: Lane, bucket: usize) -> Key {
        let tag = Tag { purpose: Purpose::Gradient, sequence: self.sequence };
        Key { lane, part: u32::try_from(bucket).expect("fewer than 2^32 buckets"), tag }
    }

    fn buckets(&self) -> usize {
        self.length.div_ceil(self.bucket)
    }

    /// The values of a bucket that a rank adds up.
    fn share(&self, bucket: usize, rank: usize) -> Range<usize> {
        let start = bucket * self.bucket;
        let length = self.bucket.min(self.length - start);
        let border = |rank: usize| start + length * rank / self.comm.world();
        border(rank)..border(rank + 1)
    }
}

/// Combines each sum with the value at its place in a message.
fn combine<T: Summand>(sums: &mut [T], bytes: &[u8], with: impl Fn(&mut T, T)) {
    assert_eq!(bytes.len(), size_of_val(sums), "all ranks sum as many values");
    for (sum, value) in sums.iter_mut().zip(bytes.chunks_exact(size_of::<T>())) {
        with(sum, bytemuck::pod_read_unaligned(value));
    }
}
