//! The sampled neighbors of a hop's roots as blocks `[neighbor row | edge features | time code]`, and weighted sums over them.
//!
//! Blocks stay apart: edge features are constants, time codes are constants under a fixed encoder, and neither must be copied
//! next to rows that carry gradient.

use tch::{Kind, Tensor};

/// K neighbors of each of R roots, one tensor a block; a slot without a neighbor holds anything finite.
pub struct Neighborhood {
    /// `[R, K, d_i]` float each, in the order of the weight blocks.
    pub blocks: Vec<Tensor>,
    /// `[R, K]` bool.
    pub valid: Tensor,
}

impl Neighborhood {
    /// Scores of every neighbor against H vectors of its root: `sum_i query_i . x_i`.
    ///
    /// * `queries`: `[R, H, d_i]` a block.
    /// * returns `[R, H, K]`.
    pub fn scores(&self, queries: &[Tensor]) -> Tensor {
        sum_of_products(queries.iter().zip(self.blocks.iter().map(|x| x.transpose(1, 2))))
    }

    /// Weighted sums over each root's neighbors.
    ///
    /// * `weights`: `[R, H, K]`, zero where absent.
    /// * returns `[R, H, d_i]` a block.
    pub fn sums(&self, weights: &Tensor) -> Vec<Tensor> {
        self.blocks.iter().map(|x| weights.bmm(x)).collect()
    }

    /// `[R, 1]` bool: roots without any neighbor.
    pub fn alone(&self) -> Tensor {
        self.valid.any_dim(1, true).logical_not()
    }

    /// `[R, 1, K]` float: 1 where there is a neighbor.
    pub fn indicator(&self, kind: Kind) -> Tensor {
        self.valid.unsqueeze(1).to_kind(kind)
    }
}

/// `sum_i a_i b_i` of batched matrices, accumulated in place.
pub(crate) fn sum_of_products<'a>(pairs: impl Iterator<Item = (&'a Tensor, Tensor)>) -> Tensor {
    let mut sum: Option<Tensor> = None;
    for (a, b) in pairs {
        sum = Some(match sum {
            None => a.bmm(&b),
            Some(mut sum) => sum.baddbmm_(a, &b),
        });
    }
    sum.expect("at least one block")
}
