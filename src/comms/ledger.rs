//! What crossed between ranks and what was waited for it, by purpose.

use super::tag::Purpose;
use serde::{Deserialize, Serialize};
use std::time::Duration;

/// What one purpose cost.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct Account {
    /// Payload sent, in bytes.
    pub sent_bytes: u64,
    /// Messages sent.
    pub sent_messages: u64,
    /// Payload received, in bytes, counted when it is taken.
    pub received_bytes: u64,
    /// Messages received, counted when they are taken.
    pub received_messages: u64,
    /// Time waited for messages that were under way.
    pub waited: Duration,
    /// Time waited before the peer had even posted its send.
    pub imbalance: Duration,
}

impl Account {
    fn combine(self, other: Account, count: fn(u64, u64) -> u64, time: fn(Duration, Duration) -> Duration) -> Account {
        Account {
            sent_bytes: count(self.sent_bytes, other.sent_bytes),
            sent_messages: count(self.sent_messages, other.sent_messages),
            received_bytes: count(self.received_bytes, other.received_bytes),
            received_messages: count(self.received_messages, other.received_messages),
            waited: time(self.waited, other.waited),
            imbalance: time(self.imbalance, other.imbalance),
        }
    }

    fn plus(self, other: Account) -> Account {
        self.combine(other, |a, b| a + b, |a, b| a + b)
    }
}

/// The account of each purpose, as one rank sees it.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct Ledger {
    accounts: [Account; Purpose::ALL.len()],
}

impl Ledger {
    /// The account of one purpose.
    pub fn of(&self, purpose: Purpose) -> Account {
        self.accounts[purpose as usize]
    }

    /// All purposes together.
    pub fn total(&self) -> Account {
        self.accounts.iter().fold(Account::default(), |sum, &account| sum.plus(account))
    }

    /// What was added since an `earlier` look.
    pub fn since(&self, earlier: &Ledger) -> Ledger {
        let mut difference = *self;
        for (account, &before) in difference.accounts.iter_mut().zip(&earlier.accounts) {
            *account = account.combine(before, |a, b| a - b, |a, b| a - b);
        }
        difference
    }

    /// With another rank's, or another stretch's.
    pub fn plus(&self, other: &Ledger) -> Ledger {
        let mut sum = *self;
        for (account, &more) in sum.accounts.iter_mut().zip(&other.accounts) {
            *account = account.plus(more);
        }
        sum
    }

    pub(super) fn count_sent(&mut self, purpose: Purpose, bytes: usize) {
        let account = &mut self.accounts[purpose as usize];
        account.sent_bytes += bytes as u64;
        account.sent_messages += 1;
    }

    pub(super) fn count_received(&mut self, purpose: Purpose, bytes: usize) {
        let account = &mut self.accounts[purpose as usize];
        account.received_bytes += bytes as u64;
        account.received_messages += 1;
    }

    /// `waited` in all, of which the peer had posted nothing for `imbalance`.
    pub(super) fn count_wait(&mut self, purpose: Purpose, waited: Duration, imbalance: Duration) {
        let account = &mut self.accounts[purpose as usize];
        account.waited += waited - imbalance;
        account.imbalance += imbalance;
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn accounts_add_up_and_subtract() {
        let mut ledger = Ledger::default();
        ledger.count_sent(Purpose::Fetch, 10);
        let before = ledger;
        ledger.count_sent(Purpose::Fetch, 30);
        ledger.count_received(Purpose::Control, 2);
        ledger.count_wait(Purpose::Sync, Duration::from_millis(5), Duration::from_millis(2));
        let since = ledger.since(&before);
        assert_eq!((since.of(Purpose::Fetch).sent_bytes, since.of(Purpose::Fetch).sent_messages), (30, 1));
        assert_eq!((ledger.total().sent_bytes, ledger.total().received_messages), (40, 1));
        let sync = ledger.of(Purpose::Sync);
        assert_eq!((sync.waited, sync.imbalance), (Duration::from_millis(3), Duration::from_millis(2)));
        assert_eq!(before.plus(&since), ledger);
    }
}
