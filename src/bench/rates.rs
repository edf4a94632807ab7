//! The machine's rates, measured with libtorch on all of this rank's threads.

use serde::Serialize;
use std::time::{Duration, Instant};
use tch::{Device, Kind, Tensor};

/// Rows and columns of the square matrices multiplied.
const SIDE: i64 = 1536;
/// Numbers in the array copied: 256 MiB, far more than any cache.
const COPIED: i64 = 1 << 26;
/// How long each is tried.
const TIME: Duration = Duration::from_millis(600);

/// What the machine can do.
#[derive(Clone, Copy, Debug, Serialize)]
pub struct MachineRates {
    /// f32 matrix product of large squares, 10^9 operations (a multiplication or an addition) a second.
    pub gemm_gflop_per_s: f64,
    /// Copy of a large array, 10^9 bytes read or written a second.
    pub copy_gb_per_s: f64,
}

impl MachineRates {
    /// Measures both: the fastest of as many tries as fit into about a second.
    pub fn measure() -> MachineRates {
        let square = || Tensor::ones([SIDE, SIDE], (Kind::Float, Device::Cpu));
        let (a, b, c) = (square(), square(), square());
        let product = fastest(|| drop(a.mm_out(&c, &b)));
        let from = Tensor::ones([COPIED], (Kind::Float, Device::Cpu));
        let mut to = Tensor::zeros([COPIED], (Kind::Float, Device::Cpu));
        let copy = fastest(|| to.copy_(&from));
        MachineRates {
            gemm_gflop_per_s: 2.0 * (SIDE as f64).powi(3) / product / 1e9,
            copy_gb_per_s: 8.0 * COPIED as f64 / copy / 1e9,
        }
    }
}

/// Seconds of the fastest try.
fn fastest(mut work: impl FnMut()) -> f64 {
    let (start, mut best) = (Instant::now(), f64::INFINITY);
    while start.elapsed() < TIME {
        let one = Instant::now();
        work();
        best = best.min(one.elapsed().as_secs_f64());
    }
    best
}
