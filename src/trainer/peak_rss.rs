//! The resident memory of this process, as the kernel counts it.

use serde::Serialize;
use std::fs;

/// Peak resident set size in bytes: `VmHWM` of `/proc/self/status`; `None` where the kernel does not tell.
pub fn peak_rss_bytes() -> Option<u64> {
    parse(&fs::read_to_string("/proc/self/status").ok()?, "VmHWM:")
}

/// Resident memory at a moment.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize)]
pub struct Resident {
    /// Heap and stacks: `RssAnon`.
    pub heap_bytes: u64,
    /// Mapped files, programs and libraries included: `RssFile`. The kernel may drop it.
    pub mapped_bytes: u64,
}

/// Resident memory now; `None` where the kernel does not tell.
pub fn resident() -> Option<Resident> {
    let status = fs::read_to_string("/proc/self/status").ok()?;
    Some(Resident { heap_bytes: parse(&status, "RssAnon:")?, mapped_bytes: parse(&status, "RssFile:")? })
}

/// The line reads `VmHWM:     1234 kB`, its kB being 1024 bytes.
fn parse(status: &str, key: &str) -> Option<u64> {
    let line = status.lines().find_map(|line| line.strip_prefix(key))?;
    let kib: u64 = line.trim().strip_suffix("kB")?.trim().parse().ok()?;
    kib.checked_mul(1024)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn reads_the_high_water_mark() {
        let status = "Name:\ttidemill\nVmPeak:\t  900 kB\nVmHWM:\t     512 kB\nVmRSS:\t      44 kB\n";
        assert_eq!(parse(status, "VmHWM:"), Some(512 * 1024));
        assert_eq!(parse("VmPeak:\t900 kB\n", "VmHWM:"), None);
        assert_eq!(parse("VmHWM:\tmany kB\n", "VmHWM:"), None);
    }

    #[test]
    fn heap_and_mapped_files_are_told_apart() {
        let before = resident().expect("linux");
        let block = std::hint::black_box(vec![1u8; 64 << 20]);
        let after = resident().expect("linux");
        assert!(after.heap_bytes >= before.heap_bytes + (48 << 20), "{before:?} {after:?}");
        assert!(before.mapped_bytes > 0 && after.mapped_bytes < before.mapped_bytes + (48 << 20));
        drop(block);
    }

    #[test]
    fn grows_with_memory_in_use_and_stays() {
        let before = peak_rss_bytes().expect("linux");
        let block = std::hint::black_box(vec![1u8; 64 << 20]);
        drop(block);
        let after = peak_rss_bytes().expect("linux");
        assert!(after >= 64 << 20 && after >= before, "{before} {after}");
    }
}
