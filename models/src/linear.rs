//! Linear maps of a concatenation `[x_1 | x_2 | ...]`, without building the concatenation.
//!
//! `W [x_1 | x_2] = W_1 x_1 + W_2 x_2`: each column block of W is a parameter of its own, so blocks that are constant in a
//! batch (edge features, mails) get no input gradient and no wide rows are copied.

use tch::Tensor;

use crate::parameters::{Declarations, Init, ParameterId, Parameters};

/// `[.., d_out] = sum_i x_i W_i^T + b`, one weight block for each input.
pub struct BlockLinear {
    blocks: Vec<ParameterId>,
    bias: ParameterId,
}

impl BlockLinear {
    /// Declares `{weight}.{block} [d_out, d_block]` for each block of non-zero width, and `{bias} [d_out]`.
    pub fn declare(
        declare: &mut Declarations,
        weight: &str,
        bias: &str,
        blocks: &[(&str, i64)],
        d_out: i64,
        weight_init: &Init,
        bias_init: Init,
    ) -> BlockLinear {
        let blocks = blocks
            .iter()
            .filter(|(_, width)| *width > 0)
            .map(|(block, width)| declare.add(format!("{weight}.{block}"), &[d_out, *width], weight_init.clone()))
            .collect();
        BlockLinear { blocks, bias: declare.add(bias, &[d_out], bias_init) }
    }

    /// The weight of block `i`, `[d_out, d_i]`.
    pub fn weight<'a>(&self, p: &'a Parameters, i: usize) -> &'a Tensor {
        &p[self.blocks[i]]
    }

    /// The parameter of block `i`.
    pub(crate) fn block(&self, i: usize) -> ParameterId {
        self.blocks[i]
    }

    /// The bias's parameter.
    pub(crate) fn bias_id(&self) -> ParameterId {
        self.bias
    }

    /// Adds the gradient of block `i`'s weight: `grad^T input`.
    ///
    /// * `grad`: `[R, d_out]`, `input`: `[R, d_i]`.
    pub(crate) fn add_weight_gradient(&self, p: &mut Parameters, i: usize, grad: &Tensor, input: &Tensor) {
        p.matmul().add(&mut p.grad_mut(self.blocks[i]), &grad.tr(), input);
    }

    /// Adds the gradient of the bias: the sum of `grad`'s rows.
    pub(crate) fn add_bias_gradient(&self, p: &mut Parameters, grad: &Tensor) {
        let _ = p.grad_mut(self.bias).g_add_(&grad.sum_dim_intlist(0, false, None));
    }

    /// The bias, `[d_out]`.
    pub fn bias<'a>(&self, p: &'a Parameters) -> &'a Tensor {
        &p[self.bias]
    }

    /// Applies the map; `None` for a block counts as zeros.
    ///
    /// * `inputs`: `[R, d_i]` each, in the order of the blocks.
    /// * returns `[R, d_out]`.
    pub fn forward(&self, p: &Parameters, inputs: &[Option<&Tensor>]) -> Tensor {
        let pairs = inputs.iter().zip(&self.blocks).filter_map(|(input, block)| Some(((*input)?, &p[*block])));
        let mut sum: Option<Tensor> = None;
        for (input, weight) in pairs {
            let weight = weight.tr();
            sum = Some(match sum {
                None => p[self.bias].addmm(input, &weight),
                Some(mut sum) => sum.addmm_(input, &weight),
            });
        }
        sum.expect("a linear map needs at least one input")
    }
}

/// `W2 relu(W1 [x_1 | x_2 | ..] + b1) + b2`: TGN's merge layer and its link decoder.
pub struct Mlp {
    /// The hidden layer.
    pub hidden: BlockLinear,
    pub(crate) w2: ParameterId,
    pub(crate) b2: ParameterId,
}

impl Mlp {
    /// Declares `{name}.w1.{block}`, `{name}.b1`, `{name}.w2 [d_out, d_hidden]`, `{name}.b2`, drawn as TGN's code does.
    pub fn declare(declare: &mut Declarations, name: &str, blocks: &[(&str, i64)], d_hidden: i64, d_out: i64) -> Mlp {
        let d_in: i64 = blocks.iter().map(|(_, width)| width).sum();
        let weights = [Init::xavier_normal(d_in, d_hidden), Init::xavier_normal(d_hidden, d_out)];
        let [w1, w2] = weights;
        Mlp::declare_drawn(declare, name, blocks, d_hidden, d_out, [w1, Init::inverse_root(d_in), w2])
    }

    /// As [`Mlp::declare`], with the distributions of `w1`, `b1` and `w2` given.
    pub(crate) fn declare_drawn(
        declare: &mut Declarations,
        name: &str,
        blocks: &[(&str, i64)],
        d_hidden: i64,
        d_out: i64,
        [w1_init, b1_init, w2_init]: [Init; 3],
    ) -> Mlp {
        let (w1, b1) = (format!("{name}.w1"), format!("{name}.b1"));
        let hidden = BlockLinear::declare(declare, &w1, &b1, blocks, d_hidden, &w1_init, b1_init);
        let w2 = declare.add(format!("{name}.w2"), &[d_out, d_hidden], w2_init);
        let b2 = declare.add(format!("{name}.b2"), &[d_out], Init::inverse_root(d_hidden));
        Mlp { hidden, w2, b2 }
    }

    /// Applies both layers.
    ///
    /// * `inputs`: `[R, d_i]` each.
    /// * returns `[R, d_out]`.
    pub fn forward(&self, p: &Parameters, inputs: &[Option<&Tensor>]) -> Tensor {
        self.output(p, self.hidden.forward(p, inputs))
    }

    /// Adds the second layer's gradients; returns that at the hidden pre-activation, `[R, d_hidden]`.
    ///
    /// * `grad`: `[R, d_out]`; `hidden`: `[R, d_hidden]`, after the relu.
    pub(crate) fn backward_output(&self, p: &mut Parameters, grad: &Tensor, hidden: &Tensor) -> Tensor {
        p.matmul().add(&mut p.grad_mut(self.w2), &grad.tr(), hidden);
        let _ = p.grad_mut(self.b2).g_add_(&grad.sum_dim_intlist(0, false, None));
        hidden.threshold_backward(&p.matmul().product(grad, &p[self.w2]), 0)
    }

    /// The second layer on a hidden pre-activation `[R, d_hidden]` that the caller gives up.
    pub fn output(&self, p: &Parameters, mut hidden: Tensor) -> Tensor {
        p.matmul().biased(&p[self.b2], &hidden.relu_(), &p[self.w2].tr())
    }
}
