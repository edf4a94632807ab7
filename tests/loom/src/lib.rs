//! Loom models of the hand-over between stages.

#[path = "../../../src/queue.rs"]
pub mod queue;

#[cfg(all(test, loom))]
mod tests {
    use super::queue::{bounded, bounded_at};
    use loom::sync::Arc;
    use loom::thread;

    /// Explores all interleavings with at most three preemptions: enough for every known kind of lost wake-up.
    fn model(f: impl Fn() + Sync + Send + 'static) {
        let mut builder = loom::model::Builder::new();
        builder.preemption_bound = Some(3);
        builder.check(f);
    }

    /// Every item arrives once, in order, through a queue shorter than the stream, and the end is seen.
    #[test]
    fn hand_over() {
        for capacity in [1, 2] {
            model(move || {
                let (mut sender, mut receiver) = bounded(capacity);
                let producer = thread::spawn(move || {
                    for i in 0..3 {
                        sender.send(i).expect("open");
                    }
                });
                for i in 0..3 {
                    assert_eq!(receiver.recv(), Some(i));
                }
                assert_eq!(receiver.recv(), None);
                producer.join().unwrap();
            });
        }
    }

    /// A receiver that leaves at any moment never strands the sender, and nothing leaks.
    #[test]
    fn receiver_leaves() {
        model(|| {
            let item = Arc::new(());
            let (mut sender, mut receiver) = bounded(1);
            let sent = item.clone();
            let producer = thread::spawn(move || {
                let first = sender.send(sent.clone()).is_ok();
                let second = sender.send(sent).is_ok();
                (first, second)
            });
            drop(receiver.recv());
            drop(receiver);
            producer.join().unwrap();
            assert_eq!(Arc::strong_count(&item), 1);
        });
    }

    /// A bound that is raised wakes a sender that waits for room.
    #[test]
    fn bound_is_raised() {
        model(|| {
            let (mut sender, mut receiver) = bounded(2);
            let gauge = sender.gauge();
            gauge.set_limit(1);
            let producer = thread::spawn(move || {
                sender.send(0).expect("open");
                sender.send(1).expect("open");
            });
            gauge.set_limit(2);
            producer.join().unwrap();
            assert_eq!((receiver.recv(), receiver.recv()), (Some(0), Some(1)));
        });
    }

    /// A bound that goes down and up again at any moments loses nothing and strands nobody.
    #[test]
    fn bound_moves() {
        model(|| {
            let (mut sender, mut receiver) = bounded_at(2, 2);
            let gauge = sender.gauge();
            let producer = thread::spawn(move || {
                for i in 0..3 {
                    sender.send(i).expect("open");
                }
            });
            gauge.set_limit(1);
            assert_eq!(receiver.recv(), Some(0));
            gauge.set_limit(2);
            assert_eq!((receiver.recv(), receiver.recv(), receiver.recv()), (Some(1), Some(2), None));
            producer.join().unwrap();
        });
    }

    /// A lowered bound makes the sender wait for it: what follows is sent only once the queue is as short.
    #[test]
    fn bound_is_lowered() {
        model(|| {
            let (mut sender, mut receiver) = bounded_at(2, 2);
            let gauge = sender.gauge();
            sender.send(0).expect("room");
            sender.send(1).expect("room");
            gauge.set_limit(1);
            let watched = sender.gauge();
            let producer = thread::spawn(move || {
                sender.send(2).expect("open");
                assert!(watched.len() <= 1, "more in flight than the bound");
            });
            assert_eq!((receiver.recv(), receiver.recv(), receiver.recv()), (Some(0), Some(1), Some(2)));
            producer.join().unwrap();
        });
    }
}
