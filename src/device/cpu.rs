//! Threads of a rank and how they wait.

use crate::comms::Launch;
use libloading::os::unix::Library;
use std::os::unix::process::CommandExt;
use std::process::Command;

/// Set in the environment of the second start, so that there is no third.
const GUARD: &str = "TIDEMILL_RESTARTED";

/// Threads for this rank: as configured, or the cores shared evenly by the ranks of this host.
pub fn thread_count(configured: usize, launch: Launch) -> usize {
    if configured > 0 { configured } else { Cores::of_this_process().share(launch.local_world) }
}

/// What this process may use of its host.
#[derive(Clone, Copy, Debug)]
struct Cores {
    /// All that the host has.
    host: usize,
    /// Those that this process may run on.
    available: usize,
    /// Whether the launcher chose them for this rank, so that other ranks have others.
    bound: bool,
}

impl Cores {
    fn of_this_process() -> Cores {
        // SAFETY: asks for a number.
        let host = usize::try_from(unsafe { libc::sysconf(libc::_SC_NPROCESSORS_ONLN) }).unwrap_or(1);
        let available = std::thread::available_parallelism().map_or(1, usize::from);
        let bound = std::env::var_os("OMPI_MCA_orte_bound_at_launch").is_some_and(|value| value == "1");
        Cores { host: host.max(available), available, bound }
    }

    /// One rank's share; a set that a launcher bound is the rank's own, unless it is a whole socket and others run on it too.
    fn share(self, ranks: usize) -> usize {
        let even = |cores: usize| (cores / ranks).max(1);
        if self.bound { self.available.min(even(self.host)) } else { even(self.available) }
    }

    /// What keeps the ranks of this host from using it well, with the mend.
    fn hint(self, ranks: usize) -> Option<String> {
        let cores = if self.bound { self.host } else { self.available };
        if ranks > cores {
            return Some(format!("{ranks} ranks share {cores} cores of this host: start fewer, or more hosts"));
        }
        let fair = (self.host / ranks).max(1);
        (self.bound && self.available < fair).then(|| {
            let cores = self.available;
            format!(
                "mpirun bound this rank to {cores} of the {fair} cores that are its share: start with mpirun --bind-to none, or --map-by slot:PE={fair}"
            )
        })
    }
}

/// Logs what keeps the ranks of this host from using it well; the host's first rank does so for all.
pub fn hint_at_cores(launch: Launch) {
    let hint = if launch.local_rank == 0 { Cores::of_this_process().hint(launch.local_world) } else { None };
    if let Some(hint) = hint {
        tracing::warn!("{hint}");
    }
}

/// Gives libtorch and rayon their threads: `configured` for the rank (0: its share of the host's cores), `intra_op` of them
/// inside one tensor operation (0: all). Returns the rank's threads.
pub fn set_threads(configured: usize, intra_op: usize) -> usize {
    let total = thread_count(configured, Launch::from_env().unwrap_or(Launch::ALONE));
    let inside = if intra_op == 0 { total } else { intra_op.min(total) };
    tch::set_num_threads(i32::try_from(inside).unwrap_or(i32::MAX));
    // Fails only if the pool exists already, as in a test that trains twice; results do not depend on its size.
    let _ = rayon::ThreadPoolBuilder::new().num_threads(total).build_global();
    total
}

/// How far the stages' workers step back behind the model's threads.
const STEP_BACK: i32 = 5;

/// Makes the calling thread a worker beside the model: its tensor operations, gathers of a few rows, take one thread and not a
/// team that the model's own would have to share cores with; if `behind`, the scheduler also prefers the model's threads, so
/// that a team of theirs does not wait for one of them to get its core back. No result depends on it, and where a part can not
/// be done it is left out.
pub fn work_beside_the_model(behind: bool) {
    tch::get_num_threads(); // libtorch sets a thread's team size at its first use, and never again
    // SAFETY: the symbol, where it is there, is OpenMP's `void omp_set_num_threads(int)`, which rules the calling thread alone.
    unsafe {
        if let Ok(set) = Library::this().get::<unsafe extern "C" fn(i32)>(b"omp_set_num_threads\0") {
            set(1);
        }
    }
    if behind {
        // SAFETY: takes numbers alone; to Linux, 0 is the calling thread. Failure leaves the priority as it was.
        unsafe { libc::setpriority(libc::PRIO_PROCESS, 0, STEP_BACK) };
    }
}

/// What libraries read from the environment when they are loaded: OpenMP's idle threads spin for some twenty microseconds, the
/// pause between two products, and then sleep; and the size above which freed memory goes back to the kernel, which would
/// have to clear it again for the next batch.
const SETTINGS: [(&str, &str); 3] = [
    ("OMP_WAIT_POLICY", "PASSIVE"),
    ("GOMP_SPINCOUNT", "30000"),
    ("GLIBC_TUNABLES", "glibc.malloc.mmap_threshold=33554432:glibc.malloc.trim_threshold=1073741824"),
];

/// Starts the program anew with the `SETTINGS` that are not set.
///
/// OpenMP's idle threads spin by default and take the cores that other stages need. The variables are read when the
/// libraries are loaded, which is before `main`, so they can only be set for a program that starts after. Returns where nothing
/// had to be done, or where the start failed: then the run is slower, not wrong.
pub fn passive_wait() {
    let mut missing = SETTINGS.iter().filter(|(name, _)| std::env::var_os(name).is_none()).peekable();
    if missing.peek().is_none() || std::env::var_os(GUARD).is_some() {
        return;
    }
    let Ok(program) = std::env::current_exe() else { return };
    let mut arguments = std::env::args_os();
    let name = arguments.next().unwrap_or_else(|| program.clone().into_os_string());
    let error = Command::new(program).arg0(name).args(arguments).envs(missing.copied()).env(GUARD, "1").exec();
    tracing::warn!("the program runs slower: it could not be started anew with its settings ({error})");
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn ranks_of_a_host_share_its_cores() {
        let cores = std::thread::available_parallelism().unwrap().get();
        assert_eq!(thread_count(0, Launch::ALONE), cores);
        let host = |host, available, bound| Cores { host, available, bound };
        for (cores, ranks, expected) in [
            (host(64, 64, false), 4, 16),
            (host(64, 4, false), 4, 1),  // a container's quota
            (host(64, 1, true), 2, 1),   // bound to a core each
            (host(64, 32, true), 4, 16), // bound to sockets
            (host(64, 8, true), 2, 8),   // bound to eight cores each
            (host(2, 2, false), 4, 1),
        ] {
            assert_eq!(cores.share(ranks), expected, "{cores:?} for {ranks} ranks");
        }
        assert_eq!(host(64, 32, true).hint(4), None);
        assert_eq!(host(2, 2, false).hint(1), None);
        assert!(host(2, 2, false).hint(4).is_some_and(|hint| hint.contains("4 ranks share 2 cores")));
        assert!(host(64, 1, true).hint(2).is_some_and(|hint| hint.contains("--bind-to none")));
        assert_eq!(thread_count(3, Launch { local_world: 64, ..Launch::ALONE }), 3);
        assert_eq!(thread_count(0, Launch { local_world: 4 * cores, ..Launch::ALONE }), 1);
    }
}
