//! The state frontier: how many batches of a pass have had their state commit, and who waits for it.
//!
//! The hazard of a memory model is that batch k+1 reads what batch k writes. A stage that is about to read the state for a
//! batch waits here until the commit that it must see has happened.

use std::sync::{Condvar, Mutex};

/// A count that only grows, and can be closed.
#[derive(Debug, Default)]
pub struct Frontier {
    at: Mutex<At>,
    moved: Condvar,
}

#[derive(Debug, Default)]
struct At {
    commits: usize,
    closed: bool,
}

impl Frontier {
    /// One more batch has had its state commit.
    pub fn advance(&self) {
        self.at.lock().expect("no one panics while holding it").commits += 1;
        self.moved.notify_all();
    }

    /// No more commits will come: whoever waits is let go.
    pub fn close(&self) {
        self.at.lock().expect("no one panics while holding it").closed = true;
        self.moved.notify_all();
    }

    /// Waits until `commits` batches have had their state commit; false if the frontier was closed before.
    pub fn wait_for(&self, commits: usize) -> bool {
        let at = self.at.lock().expect("no one panics while holding it");
        let at = self.moved.wait_while(at, |at| at.commits < commits && !at.closed).expect("as above");
        at.commits >= commits
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::sync::Arc;
    use std::thread;

    #[test]
    fn a_reader_waits_for_the_commit_it_must_see() {
        let frontier = Arc::new(Frontier::default());
        let (reader, seen) = (frontier.clone(), Arc::new(Mutex::new(Vec::new())));
        let log = seen.clone();
        let waiting = thread::spawn(move || {
            for commits in 0..4 {
                assert!(reader.wait_for(commits));
                log.lock().unwrap().push(commits);
            }
        });
        for done in 0..3 {
            while seen.lock().unwrap().len() <= done {
                thread::yield_now();
            }
            assert_eq!(seen.lock().unwrap().len(), done + 1, "no one reads past the frontier");
            frontier.advance();
        }
        waiting.join().unwrap();
    }

    #[test]
    fn closing_lets_waiters_go() {
        let frontier = Arc::new(Frontier::default());
        let waiting = frontier.clone();
        let reader = thread::spawn(move || waiting.wait_for(1));
        frontier.close();
        assert!(!reader.join().unwrap());
    }
}
