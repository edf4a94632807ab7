//! The device that tensors live on, chosen at run time: one binary serves hosts with and without a GPU.
//!
//! `cpu.rs`: threads and how they wait. `cuda.rs`: finds the driver and loads libtorch's CUDA half only when asked for, so
//! that users of the CPU pay nothing; `gpu_sum.rs`: sums over the ranks' GPUs by NCCL, where it is installed.
//! `memory.rs`: how much memory is left. Invariant: a host with a GPU never silently trains on the CPU.

mod cpu;
mod cuda;
mod gpu_sum;
pub mod memory;
pub mod stream;

pub use cpu::{hint_at_cores, passive_wait, set_threads, thread_count, work_beside_the_model};
pub use cuda::{Range, range};
pub use gpu_sum::GpuSum;

use crate::comms::Launch;
use crate::error::Result;
use serde::de::{self, Deserializer, Visitor};
use serde::{Deserialize, Serialize, Serializer};
use std::fmt;

/// The `[device]` table.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields, default)]
pub struct DeviceConfig {
    /// CPU, GPU, or the GPU wherever there is one.
    pub kind: Kind,
    /// Which GPU of the host.
    pub index: Index,
}

/// Kinds of devices.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum Kind {
    /// The GPU if the host has one, else the CPU.
    #[default]
    Auto,
    /// The CPU.
    Cpu,
    /// A GPU by way of CUDA.
    Cuda,
}

/// Which GPU of the host.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum Index {
    /// That of the rank's place on its host.
    #[default]
    LocalRank,
    /// From 0.
    Number(u32),
}

impl Serialize for Index {
    fn serialize<S: Serializer>(&self, serializer: S) -> std::result::Result<S::Ok, S::Error> {
        match self {
            Index::LocalRank => serializer.serialize_str("local_rank"),
            Index::Number(number) => serializer.serialize_u32(*number),
        }
    }
}

impl<'de> Deserialize<'de> for Index {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> std::result::Result<Index, D::Error> {
        struct IndexVisitor;
        impl Visitor<'_> for IndexVisitor {
            type Value = Index;
            fn expecting(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
                f.write_str("\"local_rank\" or the number of a GPU, from 0")
            }
            fn visit_i64<E: de::Error>(self, value: i64) -> std::result::Result<Index, E> {
                let number = u32::try_from(value);
                number.map(Index::Number).map_err(|_| E::invalid_value(de::Unexpected::Signed(value), &self))
            }
            fn visit_str<E: de::Error>(self, text: &str) -> std::result::Result<Index, E> {
                match text {
                    "local_rank" => Ok(Index::LocalRank),
                    _ => Err(E::invalid_value(de::Unexpected::Str(text), &self)),
                }
            }
        }
        deserializer.deserialize_any(IndexVisitor)
    }
}

/// The device for this rank, with CUDA loaded if it is a GPU.
///
/// # Errors
/// CUDA was asked for, or the host has a GPU, and CUDA can not be used; the GPU of that number does not exist.
pub fn select(config: &DeviceConfig) -> Result<tch::Device> {
    let wanted = match config.kind {
        Kind::Cpu => false,
        Kind::Cuda => true,
        Kind::Auto => cuda::host_has_gpu(),
    };
    if !wanted {
        return Ok(tch::Device::Cpu);
    }
    let index = match config.index {
        Index::LocalRank => Launch::from_env()?.local_rank,
        Index::Number(number) => number as usize,
    };
    cuda::load(index)
}

/// The device's name in summaries: `cpu`, `cuda:0`.
pub fn name(device: tch::Device) -> String {
    match device {
        tch::Device::Cuda(index) => format!("cuda:{index}"),
        _ => "cpu".to_owned(),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_cpu_needs_no_driver() {
        let config = DeviceConfig { kind: Kind::Cpu, index: Index::LocalRank };
        assert_eq!(select(&config).unwrap(), tch::Device::Cpu);
        assert_eq!((name(tch::Device::Cpu), name(tch::Device::Cuda(2))), ("cpu".to_owned(), "cuda:2".to_owned()));
    }

    /// Whatever the host: CUDA asked for is CUDA, or an error that says what to do.
    #[test]
    fn cuda_is_never_silently_the_cpu() {
        match select(&DeviceConfig { kind: Kind::Cuda, index: Index::Number(0) }) {
            Ok(device) => assert_eq!(device, tch::Device::Cuda(0)),
            Err(error) => assert!(error.sentence().contains("device.kind"), "{error}"),
        }
        assert!(select(&DeviceConfig { kind: Kind::Cuda, index: Index::Number(4096) }).is_err());
    }
}
