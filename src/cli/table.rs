//! Results as a person reads them.

use crate::eval::SplitMetrics;
use crate::trainer::distance::Distance;
use crate::trainer::node_task::mean_and_sd;
use crate::trainer::{NodeClassification, Summary};
use std::fmt::Write;
use std::path::Path;

/// A run's results: what was trained on what, each epoch, both splits, and where the run's files are.
pub(super) fn of(summary: &Summary, folder: &Path) -> String {
    let mut text = String::new();
    let data = &summary.dataset;
    let synthetic = if data.synthetic { ", synthetic" } else { "" };
    let splits = &summary.splits;
    line(
        &mut text,
        "data",
        &format!("{}: {} events, {} nodes{synthetic}", data.name, thousands(data.events), thousands(data.nodes)),
    );
    line(
        &mut text,
        "split",
        &format!("{} / {} / {}", thousands(splits.train), thousands(splits.val), thousands(splits.test)),
    );
    line(&mut text, "preset", &format!("{}, seed {}", summary.preset, summary.seed));
    line(&mut text, "device", &format!("{}, {} threads", summary.device, summary.threads));
    text.push_str("\n epoch      loss    val AP   seconds   events/s\n");
    for (number, epoch) in (1..).zip(&summary.epochs) {
        let figure = |x: Option<f64>| x.map_or("-".to_owned(), |x| format!("{x:.4}"));
        let (loss, ap) = (figure(epoch.loss), figure(epoch.val_ap));
        let _ = writeln!(
            text,
            "{number:6} {loss:>9} {ap:>9} {:9.1} {:>10}",
            epoch.seconds,
            thousands(epoch.train_events_per_s as u64)
        );
    }
    text.push_str(&splits_table(&[("val", summary.val.as_ref()), ("test", summary.test.as_ref())]));
    if let Some(distance) = &summary.distance {
        text.push_str(&distance_table(distance));
    }
    let _ = writeln!(
        text,
        "\n{} training events/s, {} evaluation events/s, peak memory {:.0} MiB\nrun folder: {}",
        thousands(summary.train_events_per_s as u64),
        thousands(summary.eval_events_per_s as u64),
        summary.peak_rss_bytes as f64 / f64::from(1 << 20),
        folder.display()
    );
    text
}

/// How far the run is from its baseline.
fn distance_table(distance: &Distance) -> String {
    let mut text = format!("\n from {} ({})\n", distance.baseline, distance.preset);
    let differences = [("val AP", distance.val_ap), ("test AP", distance.test_ap), ("loss", distance.loss)];
    let ratios = [
        ("seconds an epoch", distance.seconds),
        ("bytes", distance.bytes_total),
        ("messages", distance.messages),
        ("rows fetched", distance.rows_fetched),
        ("waiting for others", distance.comm_seconds),
        ("peak memory", distance.peak_rss_bytes),
    ];
    for (name, difference) in differences.into_iter().filter_map(|(name, x)| x.map(|x| (name, x))) {
        let _ = writeln!(text, " {name:18} {difference:+9.4}");
    }
    for (name, ratio) in ratios.into_iter().filter_map(|(name, x)| x.map(|x| (name, x))) {
        let _ = writeln!(text, " {name:18} {ratio:9.3}x");
    }
    text
}

/// AP and AUC of splits, pooled and as the mean over batches, of all events and of those with a new node; or their MRR.
pub(super) fn splits_table(splits: &[(&str, Option<&SplitMetrics>)]) -> String {
    if splits.iter().any(|(_, metrics)| metrics.is_some_and(|metrics| metrics.mrr.is_some())) {
        return ranks_table(splits);
    }
    let mut text = String::from("\n split            AP       AUC  AP/batch  AUC/batch\n");
    for (name, metrics) in splits {
        let Some(metrics) = metrics else { continue };
        let rows =
            [(name.to_string(), Some(metrics.links)), (format!("{name} new"), metrics.new_node.map(|new| new.links))];
        for (name, link) in rows.into_iter().filter_map(|(name, link)| link.map(|link| (name, link))) {
            let _ = writeln!(
                text,
                " {name:8} {:9.4} {:9.4} {:9.4}  {:9.4}",
                link.ap, link.auc, link.ap_batch_mean, link.auc_batch_mean
            );
        }
    }
    text
}

/// Mean reciprocal ranks of splits.
fn ranks_table(splits: &[(&str, Option<&SplitMetrics>)]) -> String {
    let mut text = String::from("\n split           MRR  std. error    events\n");
    for (name, metrics) in splits {
        let Some(metrics) = metrics else { continue };
        let new = metrics.new_node.and_then(|new| new.mrr);
        for (name, mrr) in [(name.to_string(), metrics.mrr), (format!("{name} new"), new)] {
            let Some(mrr) = mrr else { continue };
            let events = thousands(mrr.mrr_events);
            let _ = writeln!(text, " {name:8} {:9.4} {:11.4} {events:>9}", mrr.mrr, mrr.mrr_standard_error);
        }
    }
    text
}

/// Areas under the ROC curve of node classification.
pub(super) fn node_classification(result: &NodeClassification) -> String {
    let (positives, events) = (thousands(result.test_positives), thousands(result.test_events));
    let mut text =
        format!("node classification, {positives} positives of {events} test events\n\n  seed   val AUC  test AUC\n");
    for (seed, (val, test)) in (result.first_seed..).zip(result.val_auc.iter().zip(&result.test_auc)) {
        let _ = writeln!(text, "{seed:6} {val:9.4} {test:9.4}");
    }
    let [(val, val_sd), (test, test_sd)] = [&result.val_auc, &result.test_auc].map(|auc| mean_and_sd(auc));
    let _ = writeln!(text, "  mean {val:9.4} {test:9.4}\n    sd {val_sd:9.4} {test_sd:9.4}");
    text
}

fn line(text: &mut String, name: &str, value: &str) {
    let _ = writeln!(text, "{name:8} {value}");
}

/// `1234567` as `1,234,567`.
pub(super) fn thousands(number: u64) -> String {
    let digits = number.to_string();
    let mut text = String::new();
    for (i, digit) in digits.chars().enumerate() {
        if i > 0 && (digits.len() - i).is_multiple_of(3) {
            text.push(',');
        }
        text.push(digit);
    }
    text
}

#[cfg(test)]
mod tests {
    use super::thousands;

    #[test]
    fn thousands_are_set_apart() {
        assert_eq!([0, 999, 1_000, 157_474, 1_234_567].map(thousands), ["0", "999", "1,000", "157,474", "1,234,567"]);
    }
}
