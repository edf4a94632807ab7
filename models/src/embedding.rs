//! Embedding modules (TGN, arXiv:2006.10637, section 3.3): from rows of the layer below to embeddings of a hop's roots.
//!
//! * attention: `z = MLP([attention(root, neighbors) | root])`, eq. 9 to 13;
//! * transformer: `z = W_s root + attention(root, neighbors)`, see [`crate::transformer`];
//! * sum: `z = W2 [root | relu(sum_j W1 [neighbor | edge | code])]`, eq. 14, 15; W1 is applied after summing;
//! * identity: `z = row`;
//! * time: `z = (1 + dt w) * row` with the seconds since the row's last update, as JODIE projects (arXiv:1908.01207, eq. 2).
//!   `w` starts at zero.

use serde::{Deserialize, Serialize};
use tch::Tensor;

use crate::attention::{Attention, AttentionDims};
use crate::input::LayerInput;
use crate::linear::{BlockLinear, Mlp};
use crate::neighborhood::Neighborhood;
use crate::parameters::{Declarations, Init, ParameterId, Parameters};
use crate::transformer::{Transformer, TransformerDims};

/// Which embedding module.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum Embedding {
    /// Temporal graph attention.
    #[default]
    Attention,
    /// Attention with a skip connection in the place of the merging layer.
    Transformer,
    /// Temporal graph sum.
    Sum,
    /// The memory row itself.
    Identity,
    /// The memory row, projected in time.
    Time,
}

/// Widths and choices of one embedding layer.
#[derive(Clone, Copy, Debug)]
pub struct EmbeddingDims {
    /// What attention needs to know.
    pub attention: AttentionDims,
    /// D_emb
    pub out: i64,
}

/// Time codes that a layer reads.
pub struct Codes {
    /// `[D_t]`: the code of zero.
    pub zero: Tensor,
    /// `[R, K, D_t]`: the codes of the neighbors' `dt`.
    pub neighbor: Tensor,
}

/// One embedding layer.
pub enum EmbeddingLayer {
    /// See the module's list.
    Attention {
        /// Root over neighbors.
        attention: Attention,
        /// Merges attention and root.
        merge: Mlp,
        /// D_e > 0
        edge: bool,
    },
    /// See the module's list.
    Transformer {
        /// Root over neighbors, and the skip.
        transformer: Transformer,
        /// D_e > 0
        edge: bool,
    },
    /// See the module's list.
    Sum {
        /// W1, applied to the sum of the neighbors.
        neighbor: BlockLinear,
        /// W2
        merge: BlockLinear,
        /// D_e > 0
        edge: bool,
    },
    /// See the module's list.
    Identity,
    /// See the module's list.
    Time {
        /// `w`, as wide as the row.
        rate: ParameterId,
    },
}

impl EmbeddingLayer {
    /// Declares `{name}.attn.*` and `{name}.merge.*`, `{name}.trans.*`, `{name}.sum.*`, nothing, or `{name}.time.w`.
    pub fn declare(
        declare: &mut Declarations,
        name: &str,
        embedding: Embedding,
        dims: EmbeddingDims,
    ) -> EmbeddingLayer {
        let a = dims.attention;
        let edge = a.edge > 0;
        match embedding {
            Embedding::Attention => {
                let attention = Attention::declare(declare, &format!("{name}.attn"), a);
                let blocks = [("attn", a.row + a.time), ("memory", a.row)];
                let merge = Mlp::declare(declare, &format!("{name}.merge"), &blocks, dims.out, dims.out);
                EmbeddingLayer::Attention { attention, merge, edge }
            }
            Embedding::Transformer => {
                let AttentionDims { row, edge: d_e, time, heads, dropout, .. } = a;
                let dims = TransformerDims { row, edge: d_e, time, out: dims.out, heads, dropout };
                let transformer = Transformer::declare(declare, &format!("{name}.trans"), dims);
                EmbeddingLayer::Transformer { transformer, edge }
            }
            Embedding::Sum => {
                let mut linear = |i: u32, blocks: &[(&str, i64)]| {
                    let init = Init::inverse_root(blocks.iter().map(|(_, width)| width).sum());
                    let (w, b) = (format!("{name}.sum.w{i}"), format!("{name}.sum.b{i}"));
                    BlockLinear::declare(declare, &w, &b, blocks, dims.out, &init, init.clone())
                };
                let neighbor = linear(1, &[("memory", a.row), ("edge", a.edge), ("time", a.time)]);
                let merge = linear(2, &[("memory", a.row), ("sum", dims.out)]);
                EmbeddingLayer::Sum { neighbor, merge, edge }
            }
            Embedding::Identity => EmbeddingLayer::Identity,
            Embedding::Time => {
                EmbeddingLayer::Time { rate: declare.add(format!("{name}.time.w"), &[a.row], Init::Constant(0.0)) }
            }
        }
    }

    /// Whether the layer reads neighbors, and with them time codes.
    pub fn reads_neighbors(&self) -> bool {
        use EmbeddingLayer::{Attention, Sum, Transformer};
        matches!(self, Attention { .. } | Transformer { .. } | Sum { .. })
    }

    /// Embeds the roots of one hop.
    ///
    /// * `below`: `[N, d]` float, rows that `layer`'s indices point into.
    /// * `codes`: needed iff [`EmbeddingLayer::reads_neighbors`].
    /// * returns `[R, D_emb]`.
    pub fn forward(&self, p: &Parameters, below: &Tensor, layer: &LayerInput, codes: Option<Codes>) -> Tensor {
        let root = below.index_select(0, &layer.root); // [R, d]
        match self {
            EmbeddingLayer::Attention { attention, merge, edge } => {
                let Codes { zero, neighbor } = codes.expect("time codes of the neighbors");
                let (neighbors, present) = neighborhood(below, layer, neighbor, *edge);
                let (keep, projection) = (layer.keep.as_ref(), merge.hidden.weight(p, 0));
                let mut hidden = attention.forward(p, &root, &zero, &neighbors, &present, keep, projection); // [R, D_emb]
                hidden = hidden.addmm_(&root, &merge.hidden.weight(p, 1).tr()).g_add_(merge.hidden.bias(p));
                merge.output(p, hidden)
            }
            EmbeddingLayer::Transformer { transformer, edge } => {
                let codes = codes.expect("time codes of the neighbors");
                let (neighbors, present) = neighborhood(below, layer, codes.neighbor, *edge);
                transformer.forward(p, &root, &neighbors, &present, layer.keep.as_ref())
            }
            EmbeddingLayer::Sum { neighbor, merge, edge } => {
                let codes = codes.expect("time codes of the neighbors");
                let (neighbors, present) = neighborhood(below, layer, codes.neighbor, *edge);
                let sum = neighbor_sum(p, neighbor, &neighbors, &present);
                merge.forward(p, &[Some(&root), Some(&sum)])
            }
            EmbeddingLayer::Identity => root,
            EmbeddingLayer::Time { rate } => {
                let dt = layer.root_dt.unsqueeze(1); // [R, 1]
                root.addcmul(&(dt * &p[*rate]), &root)
            }
        }
    }
}

/// Gathers the neighbors' blocks; the second result says which weight block each belongs to.
fn neighborhood(below: &Tensor, layer: &LayerInput, codes: Tensor, edge: bool) -> (Neighborhood, Vec<usize>) {
    let (r, k) = layer.neighbor.size2().expect("neighbor: [R, K]");
    let rows = below.index_select(0, &layer.neighbor.view([r * k])).view([r, k, below.size()[1]]);
    let (mut blocks, mut present) = (vec![rows], vec![0]);
    if let (true, Some(features)) = (edge, &layer.edge_features) {
        blocks.push(features.shallow_clone());
        present.push(1);
    }
    blocks.push(codes);
    present.push(if edge { 2 } else { 1 });
    (Neighborhood { blocks, valid: layer.valid.shallow_clone() }, present)
}

/// `relu(W1 sum_j x_j + n b1)` over a root's n neighbors.
fn neighbor_sum(p: &Parameters, linear: &BlockLinear, neighbors: &Neighborhood, present: &[usize]) -> Tensor {
    let indicator = neighbors.indicator(neighbors.blocks[0].kind()); // [R, 1, K]
    let sums: Vec<Tensor> = neighbors.sums(&indicator).iter().map(|x| x.squeeze_dim(1)).collect();
    let mut hidden = indicator.sum_dim_intlist(-1, false, None).matmul(&linear.bias(p).unsqueeze(0)); // [R, D_emb]
    for (sum, &i) in sums.iter().zip(present) {
        hidden = hidden.addmm_(sum, &linear.weight(p, i).tr());
    }
    hidden.relu_()
}
