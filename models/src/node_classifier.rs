//! Classifier of frozen embeddings (TGN, arXiv:2006.10637, section 5, node classification): `w3 . relu(W2 relu(W1 z))`, 80 and 10
//! wide, with dropout after each `relu`, trained by binary cross-entropy.

use tch::{Device, Kind, Reduction, Tensor, no_grad};

use crate::linear::BlockLinear;
use crate::parameters::{Declarations, Draw, Init, ParameterId, Parameters};

/// Widths of the two hidden layers.
pub const HIDDEN: [i64; 2] = [80, 10];

/// A multi-layer perceptron from an embedding to one logit.
pub struct NodeClassifier {
    parameters: Parameters,
    layers: [BlockLinear; 3],
    ids: Vec<ParameterId>,
}

impl NodeClassifier {
    /// Declares and draws `class.w{1,2,3}.in` and `class.b{1,2,3}`, as PyTorch draws linear layers.
    pub fn new(embedding_dim: i64, kind: Kind, draw: &dyn Draw, device: Device) -> NodeClassifier {
        let mut declare = Declarations::default();
        let mut layer = |i: u32, d_in: i64, d_out: i64| {
            let (w, b, init) = (format!("class.w{i}"), format!("class.b{i}"), Init::inverse_root(d_in));
            BlockLinear::declare(&mut declare, &w, &b, &[("in", d_in)], d_out, &init, init.clone())
        };
        let layers = [layer(1, embedding_dim, HIDDEN[0]), layer(2, HIDDEN[0], HIDDEN[1]), layer(3, HIDDEN[1], 1)];
        let ids = declare.since(0);
        NodeClassifier { parameters: declare.build(kind, device, draw), layers, ids }
    }

    /// Values and gradients.
    pub fn parameters(&self) -> &Parameters {
        &self.parameters
    }

    /// Values and gradients, for the optimizer.
    pub fn parameters_mut(&mut self) -> &mut Parameters {
        &mut self.parameters
    }

    /// Logits `[B]` of embeddings `[B, D_emb]`, without any gradient.
    pub fn logits(&self, z: &Tensor) -> Tensor {
        no_grad(|| self.forward(z, None))
    }

    /// Mean cross-entropy of a batch; *adds* its gradient to `parameters().grads()`.
    ///
    /// * `z`: `[B, D_emb]` float. * `labels`: `[B]` float, 0 or 1.
    /// * `keep`: `[B, 80]` and `[B, 10]` float: 0 where dropout takes a number away, else what it is scaled by.
    pub fn train(&mut self, z: &Tensor, labels: &Tensor, keep: [&Tensor; 2]) -> f64 {
        let logits = self.forward(z, Some(keep));
        let loss = logits.binary_cross_entropy_with_logits::<Tensor>(labels, None, None, Reduction::Mean);
        let value = loss.double_value(&[]);
        self.parameters.differentiate(&loss, &self.ids, &[]);
        value
    }

    fn forward(&self, z: &Tensor, keep: Option<[&Tensor; 2]>) -> Tensor {
        let p = &self.parameters;
        let mut x = z.shallow_clone();
        for (i, layer) in self.layers[..2].iter().enumerate() {
            x = layer.forward(p, &[Some(&x)]).relu();
            x = match keep {
                Some(keep) => x * keep[i],
                None => x,
            };
        }
        self.layers[2].forward(p, &[Some(&x)]).squeeze_dim(1)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::optimizer::{Optimizer, OptimizerConfig};

    /// Numbers that differ from each other.
    struct Spread;

    impl Draw for Spread {
        fn uniform(&self, name: &str, index: u64) -> f64 {
            ((index as f64 + name.len() as f64) * 0.618_034).fract()
        }

        fn normal(&self, _: &str, _: u64) -> f64 {
            unreachable!("linear layers are drawn uniformly")
        }
    }

    /// Embeddings whose first number tells the class are told apart after some steps, and the gradient is that of the loss.
    #[test]
    fn learns_what_can_be_told_apart() {
        let mut model = NodeClassifier::new(4, Kind::Double, &Spread, Device::Cpu);
        let values: Vec<f64> = (0..160).map(|i| f64::from(i * 37 % 101) / 50.0 - 1.0).collect();
        let z = Tensor::from_slice(&values).view([40, 4]);
        let labels = z.select(1, 0).gt(0.0).to_kind(Kind::Double);
        let all = HIDDEN.map(|width| Tensor::ones([40, width], (Kind::Double, Device::Cpu)));
        let keep = [&all[0], &all[1]];
        let first = model.train(&z, &labels, keep);
        let gradient = model.parameters().grad("class.w2.in").expect("a layer").double_value(&[3, 7]);
        let moved = |model: &mut NodeClassifier, by: f64| {
            let w = model.parameters().get("class.w2.in").expect("a layer").detach().copy();
            let _ = w.get(3).get(7).g_add_scalar_(by);
            model.parameters_mut().set("class.w2.in", &w).expect("its shape");
            let logits = model.logits(&z);
            logits.binary_cross_entropy_with_logits::<Tensor>(&labels, None, None, Reduction::Mean).double_value(&[])
        };
        let step = 1e-5;
        let (above, below) = (moved(&mut model, step), moved(&mut model, -2.0 * step));
        assert!(((above - below) / (2.0 * step) - gradient).abs() < 1e-8, "{gradient}");
        let mut optimizer = Optimizer::new(OptimizerConfig::default(), model.parameters());
        let mut last = first;
        for _ in 0..200 {
            model.parameters_mut().zero_grads();
            last = model.train(&z, &labels, keep);
            optimizer.step(model.parameters_mut(), 1e-2);
        }
        assert!(last < 0.1 * first, "{first} to {last}");
    }
}
