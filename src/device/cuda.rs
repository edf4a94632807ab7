//! CUDA, found and loaded at run time. The only file that names cudarc.

use crate::error::{Error, Result};
use cudarc::driver::result;
use cudarc::nvtx;
use libloading::os::unix::{Library, RTLD_GLOBAL, RTLD_NOW};
use std::path::Path;
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
