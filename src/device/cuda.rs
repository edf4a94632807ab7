//! CUDA, found and loaded at run time. The only file that names cudarc.

use super::memory::{Place, Space};
use crate::error::{Error, Result};
use cudarc::driver::result;
use cudarc::{nccl, nvtx};
use libloading::os::unix::{Library, RTLD_GLOBAL, RTLD_NOW};
use std::ffi::c_int;
use std::path::Path;
use std::ptr;
use std::sync::OnceLock;
use std::sync::atomic::{AtomicBool, Ordering};

/// Libtorch's CUDA half, beside the libraries that the binary is linked with.
const LIBTORCH_CUDA: &str = "libtorch_cuda.so";

/// Whether a profiler's library is there to be told what stages do.
static MARKS: AtomicBool = AtomicBool::new(false);

/// A stretch of a stage's work, as a profiler of the GPU shows it; ends when dropped.
#[derive(Debug)]
pub struct Range {
    _open: Option<nvtx::safe::Range>,
}

/// Opens a range, on hosts that train on a GPU and have NVIDIA's library for it; elsewhere it is nothing.
pub fn range(stage: &str, batch: usize) -> Range {
    let shown = MARKS.load(Ordering::Relaxed);
    Range { _open: shown.then(|| nvtx::safe::scoped_range(format!("{stage} {batch}"))) }
}

fn unusable(problem: impl Into<String>) -> Error {
    Error::Device {
        problem: problem.into(),
        mend: "set device.kind = \"cpu\" to train on the CPU, or run make setup GPU=auto on this host to install libtorch's CUDA libraries"
            .to_owned(),
    }
}

/// Whether NVIDIA's driver is installed. Asks the loader, never the driver.
fn driver_is_installed() -> bool {
    // SAFETY: loads and closes the driver's library, whose initialisers have no preconditions.
    unsafe { cudarc::driver::sys::is_culib_present() }
}

/// Whether this host has a GPU that it could use, or should be able to.
pub(super) fn host_has_gpu() -> bool {
    if !driver_is_installed() {
        return Path::new("/dev/nvidiactl").exists();
    }
    match result::init() {
        // An installed driver without a device, or with all of them hidden, is a host without a GPU.
        Ok(()) => result::device::get_count().map_or(true, |count| count > 0),
        Err(error) => error.0 != cudarc::driver::sys::CUresult::CUDA_ERROR_NO_DEVICE,
    }
}

/// Loads libtorch's CUDA half and returns GPU `index`.
pub(super) fn load(index: usize) -> Result<tch::Device> {
    if !driver_is_installed() {
        return Err(unusable("CUDA can not be used: NVIDIA's driver (libcuda.so.1) is not installed"));
    }
    result::init().map_err(|error| unusable(format!("CUDA can not be used: the driver says {error}")))?;
    let count = result::device::get_count().map_err(|error| unusable(format!("the driver counts no GPUs: {error}")))?;
    let count = usize::try_from(count).unwrap_or(0);
    if index >= count {
        return Err(Error::Device {
            problem: format!("device.index asks for GPU {index}, but this process sees {count}"),
            mend: "set device.index to a smaller number, start fewer ranks, or set device.kind = \"cpu\"".to_owned(),
        });
    }
    load_libtorch_cuda()?;
    // SAFETY: loads and closes the library, whose initialisers have no preconditions.
    MARKS.store(unsafe { nvtx::sys::is_culib_present() }, Ordering::Relaxed);
    if !tch::Cuda::is_available() {
        return Err(unusable("libtorch's CUDA libraries are loaded but find no usable GPU"));
    }
    Ok(tch::Device::Cuda(index))
}

/// Memory of a GPU; `None` for another device, or if the driver does not tell. What libtorch keeps for reuse counts as used.
pub(super) fn space(device: tch::Device) -> Option<Space> {
    let tch::Device::Cuda(gpu) = device else { return None };
    make_current(gpu).ok()?;
    let (free, total) = result::mem_get_info().ok()?;
    Some(Space { place: Place::Gpu, limit_bytes: total as u64, free_bytes: free as u64 })
}

/// Loads the library once and for the life of the process: libtorch registers its kernels from it.
fn load_libtorch_cuda() -> Result<()> {
    static LOADED: OnceLock<std::result::Result<Library, String>> = OnceLock::new();
    let loaded = LOADED.get_or_init(|| {
        // SAFETY: libtorch's own library, of the version that the binary is linked with; its initialisers register kernels.
        unsafe { Library::open(Some(LIBTORCH_CUDA), RTLD_NOW | RTLD_GLOBAL) }.map_err(|error| error.to_string())
    });
    match loaded {
        Ok(_) => Ok(()),
        Err(error) => {
            Err(unusable(format!("this host has a GPU, but libtorch's CUDA half can not be loaded ({error})")))
        }
    }
}

/// This rank's part of the GPUs that NCCL has connected.
pub(super) struct Ring {
    comm: nccl::sys::ncclComm_t,
    gpu: usize,
}

// SAFETY: NCCL's communicators are used by one thread at a time, whichever it is; `Ring` is not `Sync`.
unsafe impl Send for Ring {}

impl Ring {
    /// Whether NCCL is installed.
    pub(super) fn is_possible() -> bool {
        // SAFETY: loads and closes NVIDIA's library, whose initialisers have no preconditions.
        driver_is_installed() && unsafe { nccl::sys::is_culib_present() }
    }

    /// What the ranks find each other by; made on one of them. `None` if NCCL fails.
    pub(super) fn new_id() -> Option<Vec<u8>> {
        let id = nccl::result::get_uniqueid().ok()?;
        Some(id.internal.iter().map(|&byte| byte.cast_unsigned()).collect())
    }

    /// Connects GPU `gpu` of this rank with the others'; all ranks do so at once.
    ///
    /// # Errors
    /// NCCL's or the driver's words.
    pub(super) fn connect(id: &[u8], rank: usize, world: usize, gpu: usize) -> std::result::Result<Ring, String> {
        let mut unique = nccl::sys::ncclUniqueId { internal: [0; 128] };
        if id.len() != unique.internal.len() {
            return Err("rank 0 could not make an id".to_owned());
        }
        for (to, &from) in unique.internal.iter_mut().zip(id) {
            *to = from.cast_signed();
        }
        make_current(gpu).map_err(|error| error.to_string())?;
        let number = |number: usize| c_int::try_from(number).map_err(|error| error.to_string());
        let (rank, world, mut comm) = (number(rank)?, number(world)?, ptr::null_mut());
        // SAFETY: the pointer is to a local; the id came from NCCL on one of the ranks; this thread's GPU is current.
        let connected = unsafe { nccl::result::comm_init_rank(&raw mut comm, world, unique, rank) };
        connected.map(|_| Ring { comm, gpu }).map_err(|error| format!("{:?}", error.0))
    }

    /// See [`super::GpuSum::sum`].
    pub(super) fn sum(&self, values: &mut tch::Tensor) -> Result<()> {
        let kind = match values.kind() {
            tch::Kind::Float => nccl::sys::ncclDataType_t::ncclFloat32,
            tch::Kind::Double => nccl::sys::ncclDataType_t::ncclFloat64,
            other => panic!("{other:?} is not summed over GPUs"),
        };
        assert_eq!(values.device(), tch::Device::Cuda(self.gpu), "the tensor is on this rank's GPU");
        assert!(values.is_contiguous(), "the tensor is contiguous");
        make_current(self.gpu).map_err(|error| unusable(format!("the driver says {error}")))?;
        let place = values.data_ptr();
        // libtorch works on the default stream, and so does the sum: it comes after what was asked before.
        let (stream, add) = (ptr::null_mut(), nccl::sys::ncclRedOp_t::ncclSum);
        // SAFETY: `place` holds `numel` values of that kind on the current GPU, for as long as the tensor is borrowed and, since
        // libtorch frees memory in the order of the stream, for as long as the sum takes.
        let asked = unsafe { nccl::result::all_reduce(place, place, values.numel(), kind, add, self.comm, stream) };
        asked.map(|_| ()).map_err(|error| unusable(format!("NCCL can not sum over the ranks' GPUs: {:?}", error.0)))
    }
}

impl Drop for Ring {
    fn drop(&mut self) {
        // SAFETY: made by NCCL and given back once. Abort, since a lost rank would hold up an orderly end.
        let _ = unsafe { nccl::result::comm_abort(self.comm) };
    }
}

/// Makes a GPU the one that this thread's calls are for; its context is the one that libtorch uses.
fn make_current(gpu: usize) -> std::result::Result<(), result::DriverError> {
    result::init()?;
    let device = result::device::get(c_int::try_from(gpu).unwrap_or(c_int::MAX))?;
    // SAFETY: the device exists; its primary context is kept for the life of the process, as libtorch keeps it.
    unsafe { result::ctx::set_current(result::primary_ctx::retain(device)?) }
}
