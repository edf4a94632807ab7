//! Attention with a skip connection (Shi et al., arXiv:2009.03509, eq. 3 and 4, without the gate), as many temporal graph
//! codes use it in the place of TGAT's attention.
//!
//! `z = W_s root + b_s + concat_h sum_j a_hj (W_v x_j + b_v + W_e e_j)_h`, where `a_h` is the softmax over the neighbors j of
//! `(W_q root + b_q)_h . (W_k x_j + W_e e_j)_h / sqrt(D_emb / H)`, `x_j` is the neighbor's row and `e_j` its time code and edge
//! features. One `W_e` serves keys and values. A key bias would shift all scores of a root alike: there is none. No query time
//! and no output map; a root without neighbors is `W_s root + b_s`. Linear maps are moved from neighbors to roots as in
//! [`crate::attention`].

use tch::{Kind, Tensor};

use crate::linear::BlockLinear;
use crate::neighborhood::{Neighborhood, sum_of_products};
use crate::parameters::{Declarations, Init, ParameterId, Parameters};

/// Widths and choices of one layer.
#[derive(Clone, Copy, Debug)]
pub struct TransformerDims {
    /// d: width of root and neighbor rows.
    pub row: i64,
    /// D_e
    pub edge: i64,
    /// D_t
    pub time: i64,
    /// D_emb, a multiple of H.
    pub out: i64,
    /// H
    pub heads: i64,
    /// Probability with which a weight was dropped in the mask.
    pub dropout: f64,
}

/// One layer.
pub struct Transformer {
    dims: TransformerDims,
    query: BlockLinear,
    /// `[D_emb, d]`
    key: ParameterId,
    value: BlockLinear,
    /// `[D_emb, D_e]` if there are edge features, then `[D_emb, D_t]`.
    edge: Vec<ParameterId>,
    skip: BlockLinear,
}

impl Transformer {
    /// Declares `{name}.{wq,wk,wv,ws}.memory [D_emb, d]`, `{name}.{bq,bv,bs} [D_emb]`, `{name}.we.{edge,time} [D_emb, .]`.
    pub fn declare(declare: &mut Declarations, name: &str, dims: TransformerDims) -> Transformer {
        let init = Init::inverse_root(dims.row);
        let mut linear = |part: &str| {
            let (w, b) = (format!("{name}.w{part}"), format!("{name}.b{part}"));
            BlockLinear::declare(declare, &w, &b, &[("memory", dims.row)], dims.out, &init, init.clone())
        };
        let (query, value, skip) = (linear("q"), linear("v"), linear("s"));
        let key = declare.add(format!("{name}.wk.memory"), &[dims.out, dims.row], init);
        let init = Init::inverse_root(dims.edge + dims.time);
        let edge = [("edge", dims.edge), ("time", dims.time)].into_iter().filter(|(_, width)| *width > 0);
        let edge =
            edge.map(|(block, width)| declare.add(format!("{name}.we.{block}"), &[dims.out, width], init.clone()));
        let edge = edge.collect();
        Transformer { dims, query, key, value, edge, skip }
    }

    /// Embeds roots.
    ///
    /// * `root`: `[R, d]` float.
    /// * `neighbors`: blocks in the order memory, edge (if the layer has weights for it), time; `present[i]` says which of the
    ///   weight blocks the i-th one belongs to.
    /// * `keep`: `[R, H, K]` float 0 or 1.
    /// * returns `[R, D_emb]`.
    pub fn forward(
        &self,
        p: &Parameters,
        root: &Tensor,
        neighbors: &Neighborhood,
        present: &[usize],
        keep: Option<&Tensor>,
    ) -> Tensor {
        let (h, width) = (self.dims.heads, self.dims.out / self.dims.heads);
        let query = self.query.forward(p, &[Some(root)]) * (width as f64).powf(-0.5);
        let query = query.view([-1, h, width]).transpose(0, 1); // [H, R, D_emb/H]
        let by_head = |weight: &Tensor| weight.view([h, width, -1]); // [H, D_emb/H, d_i]
        let keys = |&i: &usize| query.bmm(&by_head(self.block(p, self.key, i))).transpose(0, 1); // [R, H, d_i]
        let keys: Vec<Tensor> = present.iter().map(keys).collect();
        let weights = self.weights(&neighbors.scores(&keys), neighbors, keep); // [R, H, K]
        let sums: Vec<Tensor> = neighbors.sums(&weights).iter().map(|x| x.transpose(0, 1)).collect(); // [H, R, d_i]
        let values = present.iter().map(|&i| by_head(self.value_block(p, i)).transpose(1, 2)); // [H, d_i, D_emb/H]
        let value = sum_of_products(sums.iter().zip(values)).transpose(0, 1); // [R, H, D_emb/H]
        let bias = self.value.bias(p).view([1, h, width]);
        let value = value.addcmul(&weights.sum_dim_intlist(-1, true, None), &bias).reshape([-1, self.dims.out]);
        self.skip.forward(p, &[Some(root)]) + value
    }

    /// The weight that keys have for block `i`: `row` for the rows, then those of the edge.
    fn block<'a>(&self, p: &'a Parameters, row: ParameterId, i: usize) -> &'a Tensor {
        match i {
            0 => &p[row],
            _ => &p[self.edge[i - 1]],
        }
    }

    fn value_block<'a>(&self, p: &'a Parameters, i: usize) -> &'a Tensor {
        match i {
            0 => self.value.weight(p, 0),
            _ => &p[self.edge[i - 1]],
        }
    }

    /// Softmax over the neighbors that are there, then dropout; zeros for a root without any.
    fn weights(&self, scores: &Tensor, neighbors: &Neighborhood, keep: Option<&Tensor>) -> Tensor {
        let lowest = if scores.kind() == Kind::Double { f64::MIN } else { f64::from(f32::MIN) };
        let masked = scores.masked_fill(&neighbors.valid.logical_not().unsqueeze(1), lowest);
        let weights = masked.softmax(-1, None).masked_fill(&neighbors.alone().unsqueeze(1), 0.0);
        match keep {
            Some(keep) => weights * (keep / (1.0 - self.dims.dropout)),
            None => weights,
        }
    }
}
