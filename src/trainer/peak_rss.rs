//! The highest resident memory of this process, as the kernel counted it.

use std::fs;

/// Peak resident set size in bytes: `VmHWM` of `/proc/self/status`; `None` where the kernel does not tell.
pub fn peak_rss_bytes() -> Option<u64> {
    parse(&fs::read_to_string("/proc/self/status").ok()?)
}

/// The line reads `VmHWM:     1234 kB`, its kB being 1024 bytes.
fn parse(status: &str) -> Option<u64> {
    let line = status.lines().find_map(|line| line.strip_prefix("VmHWM:"))?;
    let kib: u64 = line.trim().strip_suffix("kB")?.trim().parse().ok()?;
    kib.checked_mul(1024)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn reads_the_high_water_mark() {
        let status = "Name:\ttidemill\nVmPeak:\t  900 kB\nVmHWM:\t     512 kB\nVmRSS:\t      44 kB\n";
        assert_eq!(parse(status), Some(512 * 1024));
        assert_eq!(parse("VmPeak:\t900 kB\n"), None);
        assert_eq!(parse("VmHWM:\tmany kB\n"), None);
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
