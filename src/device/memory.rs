//! Memory that is left: of the host, of the control group that confines this process, of a GPU.
//!
//! A control group (version 1 or 2) is found by way of `/proc/self/mountinfo` and `/proc/self/cgroup`, as the kernel describes
//! both; of it and the groups above it the tightest counts. Pages of files count as free: the kernel drops them when memory
//! is short, and a mapped stream fills a group with them. Invariant: what can not be read is left out, never taken for zero.

use std::fs;
use std::path::{Path, PathBuf};
use tch::Device;

/// Whose memory.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Place {
    /// All of the host.
    Host,
    /// The control group that this process is in, or one above it.
    ControlGroup,
    /// A GPU.
    Gpu,
}

impl Place {
    /// In a sentence.
    pub fn name(self) -> &'static str {
        ["the host", "the control group", "the GPU"][self as usize]
    }
}

/// Memory of one place at a moment, in bytes.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Space {
    /// Whose.
    pub place: Place,
    /// Most that can be in use.
    pub limit_bytes: u64,
    /// Of it, not in use.
    pub free_bytes: u64,
}

/// Reads how much is left in every place that tensors of one device take memory from.
#[derive(Clone, Debug)]
pub struct MemoryProbe {
    meminfo: &'static str,
    statm: &'static str,
    group: Option<Group>,
    device: Device,
}

impl MemoryProbe {
    /// Finds this process's control group.
    pub fn new(device: Device) -> MemoryProbe {
        let read = |path| fs::read_to_string(path).unwrap_or_default();
        let group = Group::find(&read("/proc/self/mountinfo"), &read("/proc/self/cgroup"));
        MemoryProbe { meminfo: "/proc/meminfo", statm: "/proc/self/statm", group, device }
    }

    /// Reads nothing but the control group (version 2) whose files are in `folder`.
    #[cfg(test)]
    pub(crate) fn of_group(folder: &Path) -> MemoryProbe {
        let group = Group { folder: folder.into(), mount: folder.into(), files: &VERSION_2 };
        MemoryProbe { meminfo: "/dev/null", statm: "/dev/null", group: Some(group), device: Device::Cpu }
    }

    /// The host and the control group now.
    pub fn host(&self) -> Vec<Space> {
        let host = host_space(&fs::read_to_string(self.meminfo).unwrap_or_default());
        host.into_iter().chain(self.group.as_ref().and_then(Group::space)).collect()
    }

    /// Memory of this process that the kernel can not drop, in bytes; cheap enough for every batch. 0 where it does not tell.
    pub fn anonymous_bytes(&self) -> u64 {
        let statm = fs::read_to_string(self.statm).unwrap_or_default();
        let mut pages = statm.split(' ').skip(1).map(|pages| pages.parse::<u64>().unwrap_or(0));
        let (resident, of_files) = (pages.next().unwrap_or(0), pages.next().unwrap_or(0));
        // SAFETY: asks for a number.
        let page_bytes = u64::try_from(unsafe { libc::sysconf(libc::_SC_PAGESIZE) }).unwrap_or(0);
        resident.saturating_sub(of_files) * page_bytes
    }

    /// The host, the control group and the GPU now.
    pub fn all(&self) -> Vec<Space> {
        let mut spaces = self.host();
        spaces.extend(super::cuda::space(self.device));
        spaces
    }
}

/// Resident memory of this process now, in bytes; `None` where the kernel does not tell.
pub fn resident_bytes() -> Option<u64> {
    kib(&fs::read_to_string("/proc/self/status").ok()?, "VmRSS:")
}

/// Has the allocator give pages that hold nothing back to the kernel: until then memory that was freed counts as in use.
pub fn give_back() {
    #[cfg(target_env = "gnu")]
    // SAFETY: may be called at any time; takes a number.
    unsafe {
        libc::malloc_trim(0);
    }
}

/// From `/proc/meminfo`.
fn host_space(meminfo: &str) -> Option<Space> {
    let (limit_bytes, free_bytes) = (kib(meminfo, "MemTotal:")?, kib(meminfo, "MemAvailable:")?);
    Some(Space { place: Place::Host, limit_bytes, free_bytes })
}

/// The value of a line such as `MemTotal:  1234 kB`, its kB being 1024 bytes.
fn kib(text: &str, key: &str) -> Option<u64> {
    let line = text.lines().find_map(|line| line.strip_prefix(key))?;
    line.trim().strip_suffix("kB")?.trim().parse::<u64>().ok().map(|kib| kib << 10)
}

/// A control group's folder and where its hierarchy is mounted.
#[derive(Clone, Debug, PartialEq, Eq)]
struct Group {
    folder: PathBuf,
    mount: PathBuf,
    files: &'static Files,
}

/// Names in one version of control groups.
#[derive(Debug, PartialEq, Eq)]
struct Files {
    limits: &'static [&'static str],
    usage: &'static str,
    /// Lines of `memory.stat` about pages of files, groups below included.
    reclaimable: [&'static str; 2],
}

const VERSION_1: Files = Files {
    limits: &["memory.limit_in_bytes"],
    usage: "memory.usage_in_bytes",
    reclaimable: ["total_inactive_file ", "total_active_file "],
};

const VERSION_2: Files = Files {
    limits: &["memory.max", "memory.high"],
    usage: "memory.current",
    reclaimable: ["inactive_file ", "active_file "],
};

/// A limit from here on is none.
const UNLIMITED: u64 = 1 << 60;

impl Group {
    /// The group that rules this process's memory, by the kernel's own tables: version 1 where its memory controller is
    /// mounted, else version 2.
    fn find(mountinfo: &str, membership: &str) -> Option<Group> {
        let own = |wanted: &str| {
            membership.lines().find_map(|line| {
                let mut fields = line.splitn(3, ':').skip(1);
                let (controllers, path) = (fields.next()?, fields.next()?);
                controllers.split(',').any(|controller| controller == wanted).then_some(path)
            })
        };
        let mounted = |kind: &str, option: &str| {
            mountinfo.lines().find_map(|line| {
                let (place, filesystem) = line.split_once(" - ")?;
                let mut filesystem = filesystem.split(' ');
                let is_it = filesystem.next() == Some(kind)
                    && (option.is_empty() || filesystem.nth(1)?.split(',').any(|given| given == option));
                let mut place = place.split(' ').skip(3);
                is_it.then_some((place.next()?, place.next()?))
            })
        };
        let (root, mount, path, files) = match (mounted("cgroup", "memory"), own("memory")) {
            (Some((root, mount)), Some(path)) => (root, mount, path, &VERSION_1),
            _ => {
                let (root, mount) = mounted("cgroup2", "")?;
                (root, mount, own("")?, &VERSION_2)
            }
        };
        // In a container the mount may begin below the hierarchy's root; a path outside of it is that of the mount itself.
        let below = Path::new(path).strip_prefix(root).unwrap_or(Path::new(""));
        Some(Group { folder: Path::new(mount).join(below), mount: mount.into(), files })
    }

    /// What is left of the tightest limit of this group and those above it; `None` without one.
    fn space(&self) -> Option<Space> {
        let levels = self.folder.ancestors().take_while(|folder| folder.starts_with(&self.mount));
        levels.filter_map(|folder| self.level(folder)).min_by_key(|space| space.free_bytes)
    }

    fn level(&self, folder: &Path) -> Option<Space> {
        let number = |name: &str| fs::read_to_string(folder.join(name)).ok()?.trim().parse::<u64>().ok();
        let limits = self.files.limits.iter().filter_map(|name| number(name)); // "max" is no number
        let limit_bytes = limits.filter(|&limit| limit < UNLIMITED).min()?;
        let stat = fs::read_to_string(folder.join("memory.stat")).ok()?;
        let line = |key: &&str| stat.lines().find_map(|line| line.strip_prefix(*key)?.trim().parse::<u64>().ok());
        let reclaimable: u64 = self.files.reclaimable.iter().filter_map(line).sum();
        let used = number(self.files.usage)?.saturating_sub(reclaimable);
        Some(Space { place: Place::ControlGroup, limit_bytes, free_bytes: limit_bytes.saturating_sub(used) })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const MOUNTS: &str = "31 23 0:28 / /sys/fs/cgroup rw,relatime - tmpfs tmpfs rw,mode=755\n\
        34 31 0:31 / /sys/fs/cgroup/cpuset rw,relatime - cgroup cgroup rw,cpuset\n\
        35 31 0:32 / /sys/fs/cgroup/memory rw,relatime shared:9 - cgroup cgroup rw,memory\n\
        41 31 0:38 / /sys/fs/cgroup/unified rw,relatime - cgroup2 cgroup2 rw\n";

    #[test]
    fn the_group_is_found_in_the_kernels_tables() {
        let find = |mounts: &str, membership| Group::find(mounts, membership).map(|group| (group.folder, group.files));
        let first = "9:name=systemd:/x\n4:cpu,memory:/jobs/7\n0::/\n";
        assert_eq!(find(MOUNTS, first), Some(("/sys/fs/cgroup/memory/jobs/7".into(), &VERSION_1)));
        let second = "29 22 0:26 / /sys/fs/cgroup rw,nosuid shared:4 - cgroup2 cgroup2 rw,nsdelegate\n";
        assert_eq!(find(second, "0::/user.slice/a:b\n"), Some(("/sys/fs/cgroup/user.slice/a:b".into(), &VERSION_2)));
        let container = "35 31 0:32 /docker/ab /sys/fs/cgroup/memory ro - cgroup cgroup ro,memory\n";
        assert_eq!(find(container, "4:memory:/docker/ab\n"), Some(("/sys/fs/cgroup/memory".into(), &VERSION_1)));
        assert_eq!(find(container, "4:memory:/elsewhere\n"), Some(("/sys/fs/cgroup/memory".into(), &VERSION_1)));
        assert_eq!((find("", first), find(second, "")), (None, None));
    }

    #[test]
    fn the_tightest_level_counts_and_pages_of_files_are_free() {
        let folder = tempfile::tempdir().expect("a folder");
        let (top, own) = (folder.path().to_owned(), folder.path().join("jobs/7"));
        fs::create_dir_all(&own).expect("made");
        let group = Group { folder: own.clone(), mount: top.clone(), files: &VERSION_2 };
        assert_eq!(group.space(), None);
        let write = |folder: &Path, name: &str, text: &str| fs::write(folder.join(name), text).expect("written");
        for (folder, max, current, stat) in [
            (&own, "max\n", "700\n", "anon 1\n"),
            (&top.join("jobs"), "1000\n", "900\n", "anon 300\ninactive_file 400\nactive_file 100\nunevictable 5\n"),
            (&top, "5000\n", "950\n", ""),
        ] {
            write(folder, "memory.max", max);
            write(folder, "memory.current", current);
            write(folder, "memory.stat", stat);
        }
        let space = Space { place: Place::ControlGroup, limit_bytes: 1000, free_bytes: 600 };
        assert_eq!(group.space(), Some(space));
        write(&own, "memory.high", "800\n");
        assert_eq!(group.space(), Some(Space { limit_bytes: 800, free_bytes: 100, ..space }));

        let group = Group { folder: own.clone(), mount: own.clone(), files: &VERSION_1 };
        write(&own, "memory.limit_in_bytes", "9223372036854771712\n");
        assert_eq!(group.space(), None, "no limit");
        write(&own, "memory.limit_in_bytes", "4096\n");
        write(&own, "memory.usage_in_bytes", "5000\n");
        write(&own, "memory.stat", "inactive_file 9\ntotal_inactive_file 300\ntotal_active_file 0\n");
        assert_eq!(group.space(), Some(Space { place: Place::ControlGroup, limit_bytes: 4096, free_bytes: 0 }));
    }

    #[test]
    fn this_process_has_a_host() {
        let meminfo = "MemTotal:       24683520 kB\nMemFree:  1 kB\nMemAvailable:   21811200 kB\n";
        let host = Space { place: Place::Host, limit_bytes: 24_683_520 << 10, free_bytes: 21_811_200 << 10 };
        assert_eq!(host_space(meminfo), Some(host));
        assert_eq!(host_space("MemTotal: 7 kB\n"), None, "an old kernel");
        let probe = MemoryProbe::new(Device::Cpu);
        let anonymous = probe.anonymous_bytes();
        assert!(anonymous > 1 << 20 && Some(anonymous) < resident_bytes().map(|bytes| 2 * bytes), "{anonymous}");
        let spaces = probe.all();
        assert!(spaces.iter().any(|space| space.place == Place::Host && space.free_bytes > 0), "{spaces:?}");
        assert!(spaces.iter().all(|space| space.place != Place::Gpu && space.free_bytes <= space.limit_bytes));
        assert!(resident_bytes().is_some_and(|bytes| bytes > 1 << 20));
    }

    #[test]
    fn what_was_freed_is_given_back() {
        let blocks: Vec<Vec<u8>> = (0..2000).map(|_| std::hint::black_box(vec![1; 64 << 10])).collect();
        let above_them = std::hint::black_box(vec![1u8; 64]); // nothing goes back by itself
        let full = resident_bytes().expect("linux");
        drop(blocks);
        give_back();
        let after = resident_bytes().expect("linux");
        assert!(after + (64 << 20) < full, "{full} bytes, then {after}");
        drop(above_them);
    }
}
