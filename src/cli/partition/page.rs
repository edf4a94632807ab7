//! The picture of a partition: one HTML page with its drawings inside, nothing loaded from elsewhere.

use super::POLICIES;
use super::curve::{Curve, CurvePoint};
use super::measure::{Report, StrategyReport};
use crate::setting::Auto;
use std::fmt::Write;

const STYLE: &str = "body{font:15px/1.45 system-ui,sans-serif;margin:2em auto;max-width:62em;padding:0 1em;color:#222}
h1{font-size:1.4em}h2{font-size:1.1em;margin-top:1.6em}svg text{font:11px system-ui,sans-serif;fill:#222}
table{border-collapse:collapse}td,th{padding:.2em .7em;text-align:right;border-bottom:1px solid #ddd}
td:first-child,th:first-child{text-align:left}rect{stroke:#ddd;stroke-width:.5}.note{color:#666}.chosen{font-weight:600}";

/// The page.
pub(super) fn of(report: &Report) -> String {
    let mut page = String::new();
    let name = escaped(&report.dataset);
    let _ = write!(
        page,
        "<!DOCTYPE html>\n<html lang=\"en\"><head><meta charset=\"utf-8\"><title>Partition of {name}</title>\n\
         <style>{STYLE}</style></head><body>\n<h1>{name} on {} ranks</h1>\n<p>{} training events, {} nodes; {} batches of {}; \
         windows of {} events; nodes move where a rank has more than {} times the mean.</p>\n",
        report.ranks,
        report.events,
        report.nodes,
        report.batches,
        report.batch_size,
        report.window_events,
        report.rebalance_above
    );
    page.push_str("<h2>The strategies beside each other</h2>\n");
    comparison(&mut page, report);
    cost_curve(&mut page, &report.curve);
    page.push_str("<h2>Events that each rank runs, window by window</h2>\n");
    legend(&mut page);
    let others = report.strategies.iter().filter(|s| s.strategy != report.strategy);
    for strategy in std::iter::once(report.chosen()).chain(others) {
        heat_map(&mut page, strategy);
    }
    page.push_str("</body></html>\n");
    page
}

/// Modelled seconds over thresholds: sending, replay, both; the cheapest threshold is marked.
fn cost_curve(page: &mut String, curve: &Curve) {
    let grid: Vec<(f64, &CurvePoint)> = curve
        .points
        .iter()
        .filter_map(|point| match point.tau {
            Auto::Value(tau) => Some((tau, point)),
            Auto::Auto => None,
        })
        .collect();
    let most = grid.iter().map(|(_, point)| point.cost()).fold(1e-12, f64::max);
    let place = |tau: f64, cost: f64| format!("{:.1},{:.1}", 50.0 + 500.0 * tau, 170.0 - 150.0 * cost / most);
    page.push_str(
        "<h2>What an epoch sends and replays, by threshold</h2>\n<p><svg width=\"620\" height=\"200\" role=\"img\">",
    );
    type Line = (&'static str, &'static str, fn(&CurvePoint) -> f64);
    let lines: [Line; 3] = [
        ("sending", "#4878a8", |point| point.communication_s),
        ("replay", "#b2182b", |point| point.replay_s),
        ("both", "#222222", CurvePoint::cost),
    ];
    for (at, (name, color, of)) in lines.into_iter().enumerate() {
        let mut sorted: Vec<(f64, f64)> = grid.iter().map(|(tau, point)| (*tau, of(point))).collect();
        sorted.sort_by(|a, b| a.0.total_cmp(&b.0));
        let path: Vec<String> = sorted.into_iter().map(|(tau, cost)| place(tau, cost)).collect();
        let _ = write!(page, "<polyline fill=\"none\" stroke=\"{color}\" points=\"{}\"/>", path.join(" "));
        let _ = write!(page, "<text x=\"560\" y=\"{}\" fill=\"{color}\">{name}</text>", 20 + 16 * at);
    }
    for (tau, point) in grid.iter().filter(|(tau, _)| *tau == curve.best) {
        let at = place(*tau, point.cost());
        let (x, y) = at.split_once(',').expect("two numbers");
        let (seconds, cached) = (point.cost(), 100.0 * point.cached_share);
        let _ = write!(
            page,
            "<circle cx=\"{x}\" cy=\"{y}\" r=\"4\"><title>tau {tau}: {seconds:.3} s, {cached:.1} % served by replicas</title></circle>"
        );
    }
    for tenth in 0..=10 {
        let _ = write!(page, "<text x=\"{}\" y=\"188\">{:.1}</text>", 44 + 50 * tenth, f64::from(tenth) / 10.0);
    }
    let _ = write!(
        page,
        "<text x=\"0\" y=\"24\">{most:.2} s</text></svg><br><span class=\"note\">tau_cache from left to right; seconds over all ranks, "
    );
    let rates = &curve.calibration;
    let _ = writeln!(
        page,
        "{} {:.0} us, {:.0} MB/s, {:.1} us a replayed update</span></p>",
        if curve.calibrated { "calibrated:" } else { "assumed:" },
        1e6 * rates.latency_s,
        1e-6 * rates.bytes_per_s,
        1e6 * rates.update_s
    );
}

/// A table with a bar in each cell of rows; bars of one column share a scale.
fn comparison(page: &mut String, report: &Report) {
    page.push_str("<table><tr><th>strategy</th><th>cut</th><th>balance</th><th>moved</th>");
    POLICIES.iter().for_each(|policy| {
        let _ = write!(page, "<th>{policy}</th>");
    });
    page.push_str("</tr>\n");
    let most = |column: usize| report.strategies.iter().map(|s| s.rows.columns()[column]).fold(0.0, f64::max);
    for s in &report.strategies {
        let class = if s.strategy == report.strategy { " class=\"chosen\"" } else { "" };
        let (name, cut, balance, moved) = (s.name(), s.cut_share, s.balance, s.nodes_moved);
        let _ = write!(page, "<tr{class}><td>{name}</td><td>{cut:.3}</td><td>{balance:.3}</td><td>{moved}</td>");
        for (column, rows) in s.rows.columns().into_iter().enumerate() {
            let width = 60.0 * rows / most(column).max(1e-9);
            let _ = write!(
                page,
                "<td>{rows:.1}<br><svg width=\"60\" height=\"6\"><rect x=\"{:.1}\" width=\"{width:.1}\" height=\"6\" \
                 fill=\"#4878a8\"/></svg></td>",
                60.0 - width
            );
        }
        page.push_str("</tr>\n");
    }
    page.push_str(
        "</table>\n<p class=\"note\">Cut: share of the events between two ranks. Balance: the busiest rank's events over the \
         mean. Moved: nodes whose state changes hands. Then rows that cross ranks, mean a batch, if every remote row is \
         fetched; only those written since; likewise with each root embedded by its owner, which sends the embeddings of the \
         last column and gets their gradients back.</p>\n",
    );
}

fn legend(page: &mut String) {
    page.push_str("<p><svg width=\"420\" height=\"30\">");
    for step in 0..=20 {
        let ratio = f64::from(step) / 10.0;
        let _ =
            write!(page, "<rect x=\"{}\" y=\"0\" width=\"20\" height=\"12\" fill=\"{}\"/>", step * 20, color(ratio));
        if step % 5 == 0 {
            let _ = write!(page, "<text x=\"{}\" y=\"25\">{ratio:.1}</text>", step * 20);
        }
    }
    page.push_str("</svg><br><span class=\"note\">times the mean of the window</span></p>\n");
}

/// Windows from left to right, ranks from top to bottom.
fn heat_map(page: &mut String, strategy: &StrategyReport) {
    let windows = strategy.windows.len();
    let ranks = strategy.windows.first().map_or(0, |w| w.load.len());
    let width = (900.0 / windows.max(1) as f64).clamp(1.0, 60.0);
    let height = (160.0 / ranks.max(1) as f64).clamp(1.0, 22.0);
    let (total, tall) = (60.0 + width * windows as f64, 18.0 + height * ranks as f64);
    let _ = write!(
        page,
        "<p><b>{}</b>: cut {:.3}, balance {:.3}<br><svg width=\"{total:.0}\" height=\"{tall:.0}\" role=\"img\">",
        strategy.name(),
        strategy.cut_share,
        strategy.balance
    );
    let every = (11.0 / height).ceil() as usize;
    for rank in (0..ranks).step_by(every) {
        let _ = write!(page, "<text x=\"0\" y=\"{:.1}\">rank {rank}</text>", height * rank as f64 + 11.0);
    }
    for (at, window) in strategy.windows.iter().enumerate() {
        let (x, mean) = (60.0 + width * at as f64, window.events as f64 / ranks as f64);
        for (rank, &load) in window.load.iter().enumerate() {
            let (y, ratio) = (height * rank as f64, load as f64 / mean);
            let _ = write!(
                page,
                "<rect x=\"{x:.1}\" y=\"{y:.1}\" width=\"{width:.1}\" height=\"{height:.1}\" fill=\"{}\">\
                 <title>window {at}, rank {rank}: {load} events, {ratio:.2} of the mean; {} nodes moved before</title></rect>",
                color(ratio),
                window.moved
            );
        }
    }
    let _ =
        writeln!(page, "<text x=\"60\" y=\"{:.1}\">{windows} windows, in order of time</text></svg></p>", tall - 4.0);
}

/// White at the mean, blue below it, red above; full at none and at twice the mean.
fn color(ratio: f64) -> String {
    let away = (ratio - 1.0).clamp(-1.0, 1.0);
    let full = if away < 0.0 { [33.0, 102.0, 172.0] } else { [178.0, 24.0, 43.0] };
    let [r, g, b] = full.map(|full: f64| (255.0 + (full - 255.0) * away.abs()).round() as u8);
    format!("#{r:02x}{g:02x}{b:02x}")
}

/// Text without the characters that mean something in HTML.
fn escaped(text: &str) -> String {
    text.replace('&', "&amp;").replace('<', "&lt;").replace('>', "&gt;").replace('"', "&quot;")
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn colors_run_from_blue_over_white_to_red() {
        let found = [0.0, 1.0, 2.0, 9.0].map(color);
        assert_eq!(found, ["#2166ac", "#ffffff", "#b2182b", "#b2182b"]);
    }

    #[test]
    fn names_can_not_write_html() {
        assert_eq!(escaped("a<b>&\"c\""), "a&lt;b&gt;&amp;&quot;c&quot;");
    }
}
