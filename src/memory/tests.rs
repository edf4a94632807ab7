use super::*;

const SHAPE: StateShape =
    StateShape { nodes: 4, memory_dim: 2, payload_dim: 2, code_dim: None, kind: Kind::Double, device: Device::Cpu };

fn memory() -> NodeMemory {
    NodeMemory::new(SHAPE, Timestamp(100))
}

/// Commits event `event` at `time` between nodes 0 and 1, whose rows become `(value, value)` and `(-value, -value)`.
fn commit(memory: &mut NodeMemory, event: u32, time: i64, value: f64) {
    let rows = Tensor::from_slice(&[value, value, -value, -value]).view([2, 2]);
    let payload = Tensor::from_slice(&[-value, -value, value, value]).view([2, 2]);
    let mail = |peer| unsent(NodeId(peer), EventId(event), Timestamp(time));
    let mails = [(NodeId(0), mail(1)), (NodeId(1), mail(0))];
    let nodes = [NodeId(0), NodeId(1)];
    memory.commit(&StateCommit { nodes: &nodes, rows: &rows, mails: &mails, payload: &payload }, |_| None);
}

fn floats(tensor: &Tensor) -> Vec<f64> {
    Vec::try_from(tensor.contiguous().view([-1])).unwrap()
}

fn pending(memory: &NodeMemory, node: u32) -> Vec<Mail> {
    memory.pending(NodeId(node)).iter().map(|&row| memory.mailbox().mail(row)).collect()
}

/// The time of last update is that of the mail that was applied, never the time of the event being committed.
#[test]
fn last_update_is_the_applied_mails_time() {
    let mut memory = memory();
    commit(&mut memory, 0, 150, 1.0);
    assert_eq!((memory.last_update(NodeId(0)), memory.next_update(NodeId(0))), (Timestamp(100), Timestamp(150)));
    assert_eq!(pending(&memory, 0)[0].elapsed, 50);
    commit(&mut memory, 1, 170, 2.0);
    assert_eq!((memory.last_update(NodeId(0)), memory.next_update(NodeId(0))), (Timestamp(150), Timestamp(170)));
    assert_eq!(pending(&memory, 1), [Mail { peer: NodeId(0), event: EventId(1), time: Timestamp(170), elapsed: 20 }]);
    assert_eq!(memory.last_update(NodeId(2)), Timestamp(100));
    assert!(pending(&memory, 3).is_empty());
}

/// A commit of a node without mail leaves its time of last update alone.
#[test]
fn without_mail_there_is_no_update() {
    let mut memory = memory();
    let (rows, payload) =
        (Tensor::ones([1, 2], (Kind::Double, Device::Cpu)), Tensor::zeros([0, 2], (Kind::Double, Device::Cpu)));
    let commit = StateCommit { nodes: &[NodeId(2)], rows: &rows, mails: &[], payload: &payload };
    memory.commit(&commit, |elapsed| {
        assert!(elapsed.is_empty());
        None
    });
    assert_eq!(memory.last_update(NodeId(2)), Timestamp(100));
    assert_eq!(floats(&memory.read(&[NodeId(2)]).rows), [1.0, 1.0]);
}

#[test]
fn several_mails_keep_their_order() {
    let mut memory = memory();
    let rows = Tensor::zeros([1, 2], (Kind::Double, Device::Cpu));
    let payload = Tensor::from_slice(&[1.0, 1.0, 2.0, 2.0, 3.0, 3.0]).view([3, 2]);
    let mail = |event, time| (NodeId(1), unsent(NodeId(0), EventId(event), Timestamp(time)));
    let mails = [mail(4, 110), mail(5, 110), mail(6, 120)];
    memory.commit(&StateCommit { nodes: &[NodeId(1)], rows: &rows, mails: &mails, payload: &payload }, |_| None);
    let state = memory.read(&[NodeId(0), NodeId(1)]);
    assert_eq!(state.counts, [0, 3]);
    assert_eq!(state.mails.iter().map(|mail| mail.event.0).collect::<Vec<_>>(), [4, 5, 6]);
    assert_eq!(floats(&state.payload), [1.0, 1.0, 2.0, 2.0, 3.0, 3.0]);
    assert_eq!(memory.next_update(NodeId(1)), Timestamp(120));
}

/// Batches without a parameter commit are taken back, settled ones stay.
#[test]
fn roll_back_undoes_what_is_not_settled() {
    let mut memory = memory();
    commit(&mut memory, 0, 150, 1.0);
    memory.settle();
    let before = memory.read_all();
    commit(&mut memory, 1, 160, 2.0);
    commit(&mut memory, 2, 170, 3.0);
    assert_ne!(floats(&memory.read_all().rows), floats(&before.rows));
    memory.roll_back();
    let after = memory.read_all();
    assert_eq!(floats(&after.rows), floats(&before.rows));
    assert_eq!(floats(&after.payload), floats(&before.payload));
    assert_eq!((after.last_update, after.counts, after.mails), (before.last_update, before.counts, before.mails));
}

#[test]
fn restore_is_the_inverse_of_read_all() {
    let mut memory = memory();
    commit(&mut memory, 0, 150, 1.0);
    commit(&mut memory, 1, 160, 2.0);
    let state = memory.read_all();
    let mut other = NodeMemory::new(SHAPE, Timestamp(0));
    other.restore(&state);
    let again = other.read_all();
    assert_eq!(floats(&again.rows), floats(&state.rows));
    assert_eq!(floats(&again.payload), floats(&state.payload));
    assert_eq!((again.last_update, again.counts, again.mails), (state.last_update, state.counts, state.mails));
}

/// The pool grows past its first size and gives rows back.
#[test]
fn the_pool_is_reused() {
    let mut memory = memory();
    for event in 0..5000 {
        commit(&mut memory, event, 200 + i64::from(event), f64::from(event));
        memory.settle();
    }
    assert_eq!(memory.mailbox().bytes(), 1024 * 2 * 8, "two mails are pending, the pool never had to grow");
    assert_eq!(floats(&memory.read(&[NodeId(0)]).payload), [-4999.0, -4999.0]);
}

/// Mails in slots: the latest two are kept, reading clears none, and taking a batch back restores those it pushed out.
#[test]
fn slots_keep_the_latest_mails() {
    let mut memory = memory();
    let payload = Tensor::zeros([2, 2], (Kind::Double, Device::Cpu));
    let rows = Tensor::ones([1, 2], (Kind::Double, Device::Cpu));
    let commit = |memory: &mut NodeMemory, event: u32| {
        let time = Timestamp(200 + i64::from(event));
        let mail = unsent(NodeId(0), EventId(event), time);
        let mails = [(NodeId(0), mail), (NodeId(3), mail)];
        let commit = StateCommit { nodes: &[NodeId(0)], rows: &rows, mails: &mails, payload: &payload };
        memory.commit_slots(&commit, &[time], 2);
    };
    let events = |memory: &NodeMemory, node| pending(memory, node).iter().map(|mail| mail.event.0).collect::<Vec<_>>();
    for event in 0..3 {
        commit(&mut memory, event);
        memory.settle();
    }
    for node in [0, 3] {
        assert_eq!(events(&memory, node), [1, 2], "node {node}");
    }
    assert_eq!((memory.last_update(NodeId(0)), memory.last_update(NodeId(3))), (Timestamp(202), Timestamp(100)));
    commit(&mut memory, 3);
    assert_eq!(events(&memory, 3), [2, 3]);
    memory.roll_back();
    assert_eq!((events(&memory, 0), events(&memory, 3)), (vec![1, 2], vec![1, 2]));
    assert_eq!(memory.last_update(NodeId(0)), Timestamp(202));
}

/// The mean of 100, 101 and 101 is 100 and two thirds, to a part of a tick.
#[test]
fn a_mean_mail_keeps_parts_of_a_tick() {
    let mail = |time, event| unsent(NodeId(1), EventId(event), Timestamp(time));
    let mean = Mail::mean(&[mail(100, 4), mail(101, 5), mail(101, 6)]);
    assert_eq!((mean.event, mean.time), (EventId(6), Timestamp(100)));
    assert!((mean.ticks_until(Timestamp(110)) - (10.0 - 2.0 / 3.0)).abs() < 1e-12);
    let negative = Mail::mean(&[mail(-3, 0), mail(-4, 1)]);
    assert!((negative.ticks_until(Timestamp(0)) - 3.5).abs() < 1e-12);
    assert_eq!(Mail::mean(&[mail(7, 0)]), mail(7, 0));
}
