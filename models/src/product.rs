//! Matrix products of the kernels on a CPU, in full precision or in bfloat16.
//!
//! `model.matmul = "bf16"` rounds both operands of a product to bfloat16 (8 bits of mantissa). The processor sums in f32 (AMX or
//! AVX512-BF16 where it has them, much slower without), and the product is rounded once more. Sums of products, parameters,
//! gradients, rows and optimizer state stay f32, and so do products that are too small to gain, those of weights by weights among
//! them.

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
    fn for_size(self, a: &Tensor, b: &Tensor) -> Matmul {
        let (rows, inner) = a.size2().expect("a matrix");
        if rows * inner * b.size()[1] < WORTH_IT { Matmul::Full } else { self }
    }

    /// `a b`: `[R, C]`, of the kind of `a`.
    pub(crate) fn product(self, a: &Tensor, b: &Tensor) -> Tensor {
        match self.for_size(a, b) {
            Matmul::Full => a.mm(b),
            Matmul::Bf16 => rounded(a, b).to_kind(a.kind()),
        }
    }

    /// `bias + a b`: `[R, C]`; `bias` is `[C]`.
    pub(crate) fn biased(self, bias: &Tensor, a: &Tensor, b: &Tensor) -> Tensor {
        match self.for_size(a, b) {
            Matmul::Full => bias.addmm(a, b),
            Matmul::Bf16 => bias + rounded(a, b),
        }
    }

    /// `sum += a b`.
    pub(crate) fn add(self, sum: &mut Tensor, a: &Tensor, b: &Tensor) {
        let _ = match self.for_size(a, b) {
            Matmul::Full => sum.addmm_(a, b),
            Matmul::Bf16 => sum.g_add_(&rounded(a, b)),
        };
    }

    /// `out = a b`.
    pub(crate) fn write(self, out: &mut Tensor, a: &Tensor, b: &Tensor) {
        match self.for_size(a, b) {
            Matmul::Full => {
                let _ = a.mm_out(out, b);
            }
            Matmul::Bf16 => out.copy_(&rounded(a, b)),
        }
    }
}

/// With fewer multiplications than this, converting the operands takes longer than is saved.
const WORTH_IT: i64 = 1 << 24;
/// Rows of a batch are padded to a multiple of this: the library makes machine code for each new shape, and keeps it.
const ROWS: i64 = 64;

/// `a b` in bfloat16. A batch's rows are those of `a`, or, where `a` is a transpose, what is summed over.
fn rounded(a: &Tensor, b: &Tensor) -> Tensor {
    let transposed = a.stride()[0] == 1 && a.stride()[1] != 1;
    if transposed {
        return padded(&a.tr()).tr().mm(&padded(b));
    }
    padded(a).mm(&b.to_kind(Kind::BFloat16)).narrow(0, 0, a.size()[0])
}

/// `x` in bfloat16 with rows of zeros below.
fn padded(x: &Tensor) -> Tensor {
    let (rows, columns) = x.size2().expect("a matrix");
    let below = (rows + ROWS - 1) / ROWS * ROWS;
    let whole = Tensor::empty([below, columns], (Kind::BFloat16, x.device()));
    whole.narrow(0, 0, rows).copy_(x);
    let _ = whole.narrow(0, rows, below - rows).zero_();
    whole
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
        let (a, b, bias) = (values(250, 400), values(400, 180), values(1, 180).view([180]));
        let (across, down) = (values(700, 160), values(700, 170));
        let sums = Matmul::Bf16.product(&across.tr(), &down) - across.tr().mm(&down);
        assert!((1e-4..2.0).contains(&sums.abs().max().double_value(&[])), "{sums:?}");
        let exact = a.to_kind(Kind::Double).mm(&b.to_kind(Kind::Double));
        for (matmul, most, least) in [(Matmul::Full, 1e-3, 0.0), (Matmul::Bf16, 2.0, 2e-3)] {
            let (mut sum, mut out) =
                (exact.zeros_like().to_kind(Kind::Float), Tensor::zeros([250, 180], (Kind::Float, Device::Cpu)));
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
