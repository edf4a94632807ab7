//! Matrix products of the kernels on a CPU, in full precision or in bfloat16.
//!
//! `model.matmul = "bf16"` rounds both operands of a product to bfloat16 (8 bits of mantissa). The processor sums in f32 (AMX or
//! AVX512-BF16 where it has them, much slower without), and the product is rounded once more. Sums of products, parameters,
//! gradients, rows and optimizer state stay f32. Products of weights by weights, which are few, stay as they are.

use serde::{Deserialize, Serialize};
use tch::{Kind, Tensor};

/// How matrix products are taken.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum Matmul {
    /// In the model's own kind.
    #[default]
    Full,
    /// In bfloat16.
    Bf16,
}

impl Matmul {
    /// `a b`: `[R, C]`, of the kind of `a`.
    pub(crate) fn product(self, a: &Tensor, b: &Tensor) -> Tensor {
        match self {
            Matmul::Full => a.mm(b),
            Matmul::Bf16 => rounded(a, b).to_kind(a.kind()),
        }
    }

    /// `bias + a b`: `[R, C]`; `bias` is `[C]`.
    pub(crate) fn biased(self, bias: &Tensor, a: &Tensor, b: &Tensor) -> Tensor {
        match self {
            Matmul::Full => bias.addmm(a, b),
            Matmul::Bf16 => bias + rounded(a, b),
        }
    }

    /// `sum += a b`.
    pub(crate) fn add(self, sum: &mut Tensor, a: &Tensor, b: &Tensor) {
        let _ = match self {
            Matmul::Full => sum.addmm_(a, b),
            Matmul::Bf16 => sum.g_add_(&rounded(a, b)),
        };
    }

    /// `out = a b`.
    pub(crate) fn write(self, out: &mut Tensor, a: &Tensor, b: &Tensor) {
        match self {
            Matmul::Full => {
                let _ = a.mm_out(out, b);
            }
            Matmul::Bf16 => out.copy_(&rounded(a, b)),
        }
    }
}

/// `a b` in bfloat16.
fn rounded(a: &Tensor, b: &Tensor) -> Tensor {
    a.to_kind(Kind::BFloat16).mm(&b.to_kind(Kind::BFloat16))
}

#[cfg(test)]
mod tests {
    use super::*;
    use tch::Device;

    /// Every form is the product up to the rounding of its kind, and bfloat16 does round.
    #[test]
    fn forms_agree() {
        let values = |rows: i64, columns: i64| {
            let x = Tensor::arange(rows * columns, (Kind::Float, Device::Cpu)) * 0.37;
            x.sin().view([rows, columns])
        };
        let (a, b, bias) = (values(5, 40), values(40, 7), values(1, 7).view([7]));
        let exact = a.to_kind(Kind::Double).mm(&b.to_kind(Kind::Double));
        for (matmul, most, least) in [(Matmul::Full, 1e-5, 0.0), (Matmul::Bf16, 0.1, 1e-4)] {
            let (mut sum, mut out) =
                (exact.zeros_like().to_kind(Kind::Float), Tensor::zeros([5, 7], (Kind::Float, Device::Cpu)));
            matmul.add(&mut sum, &a, &b);
            matmul.add(&mut sum, &a, &b);
            matmul.write(&mut out, &a, &b);
            let product = matmul.product(&a, &b);
            let biased = matmul.biased(&bias, &a, &b) - &bias;
            for (name, found) in [("product", &product), ("biased", &biased), ("add", &(sum / 2)), ("write", &out)] {
                assert_eq!(found.kind(), Kind::Float, "{name}");
                let distance = (found.to_kind(Kind::Double) - &exact).abs().max().double_value(&[]);
                assert!((least..most).contains(&distance), "{matmul:?}, {name}: {distance}");
            }
        }
    }
}
