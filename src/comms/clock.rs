//! A rank's clock: monotonic, in nanoseconds since the Unix epoch.

use std::time::{Duration, Instant, SystemTime, UNIX_EPOCH};

/// The wall clock as it was at the start, moved on by the monotonic clock.
#[derive(Clone, Copy, Debug)]
pub(super) struct Clock {
    epoch_ns: u64,
    start: Instant,
}

impl Clock {
    pub(super) fn start() -> Clock {
        let since_epoch = SystemTime::now().duration_since(UNIX_EPOCH).unwrap_or_default();
        Clock { epoch_ns: nanoseconds(since_epoch), start: Instant::now() }
    }

    pub(super) fn now_ns(&self) -> u64 {
        self.epoch_ns + nanoseconds(self.start.elapsed())
    }
}

fn nanoseconds(time: Duration) -> u64 {
    u64::try_from(time.as_nanos()).unwrap_or(u64::MAX)
}

/// A time of [`Clock::now_ns`] for users.
pub(super) fn system_time(ns: u64) -> SystemTime {
    UNIX_EPOCH + Duration::from_nanos(ns)
}
