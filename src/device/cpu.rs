//! Threads of a rank and how they wait.

use crate::comms::Launch;
use std::os::unix::process::CommandExt;
use std::process::Command;

/// Set in the environment of the second start, so that there is no third.
const GUARD: &str = "TIDEMILL_RESTARTED";

/// Threads for this rank: as configured, or the cores shared evenly by the ranks of this host.
pub fn thread_count(configured: usize, launch: Launch) -> usize {
    if configured > 0 {
        return configured;
    }
    let cores = std::thread::available_parallelism().map_or(1, usize::from);
    (cores / launch.local_world).max(1)
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

/// Starts the program anew with `OMP_WAIT_POLICY=PASSIVE`, unless the variable is set.
///
/// OpenMP's idle threads spin by default and take the cores that other stages need. The variable is read when the
/// library is loaded, which is before `main`, so it can only be set for a program that starts after. Returns where nothing
/// had to be done, or where the start failed: then the run is slower, not wrong.
pub fn passive_wait() {
    if std::env::var_os("OMP_WAIT_POLICY").is_some() || std::env::var_os(GUARD).is_some() {
        return;
    }
    let Ok(program) = std::env::current_exe() else { return };
    let mut arguments = std::env::args_os();
    let name = arguments.next().unwrap_or_else(|| program.clone().into_os_string());
    let error =
        Command::new(program).arg0(name).args(arguments).env("OMP_WAIT_POLICY", "PASSIVE").env(GUARD, "1").exec();
    tracing::warn!("idle threads will spin: the program could not be started anew ({error})");
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn ranks_of_a_host_share_its_cores() {
        let cores = std::thread::available_parallelism().unwrap().get();
        assert_eq!(thread_count(0, Launch::ALONE), cores);
        assert_eq!(thread_count(3, Launch { local_world: 64, ..Launch::ALONE }), 3);
        assert_eq!(thread_count(0, Launch { local_world: 4 * cores, ..Launch::ALONE }), 1);
    }
}
