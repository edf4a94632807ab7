//! Synthetic streams with the shape of published ones, so that everything runs without a download.
//!
//! Kept of the shape: the counts (events, users, items, features, days, positive labels), heavy-tailed activity of users
//! (log-normal) and popularity of items (a power law), returns (a user mostly acts on the item it acted on last, seldom
//! on an older one, seldom on a new one; rates as in the wikipedia stream) and bursts (sessions with short gaps, a daily
//! rhythm). A model with memory can learn it. Everything is drawn by Philox: a seed names a stream. Metadata say that it
//! is synthetic.
//!
//! Absent on purpose: any claim that a score on such a stream says something about the real one.

use crate::error::{Error, Result};
use crate::philox::{Key, Purpose};
use crate::stream::{EventColumns, EventStream, IdMap, SpaceIds, StreamMeta, Tick};
use rayon::prelude::*;
use serde::{Deserialize, Serialize};

/// The published stream whose shape is copied.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum Preset {
    /// A month of edits of pages by users: 157,474 events, 8,227 users, 1,000 items, 217 positive labels.
    #[default]
    Wikipedia,
    /// A month of posts in communities: 672,447 events, 10,000 users, 984 items.
    Reddit,
}

/// What to generate.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct GenerateConfig {
    /// The shape.
    pub preset: Preset,
    /// Events; absent: the preset's.
    pub events: Option<usize>,
    /// Nodes, users and items in the preset's proportion; absent: the preset's, fewer if there are fewer events.
    pub nodes: Option<usize>,
    /// Width D_e of the features; 0 for none (the published streams have 172).
    pub features: usize,
    /// Seed.
    pub seed: u64,
}

/// Standard deviations above the median at which the log-normal activity of users is cut.
const BUSIEST: f64 = 2.9;
/// Width of the features of the published streams.
pub const PUBLISHED_FEATURES: usize = 172;

struct Shape {
    name: &'static str,
    events: usize,
    users: usize,
    items: usize,
    positives: usize,
    /// Seconds from the first to the last event.
    span: i64,
    /// Standard deviation of the logarithm of users' activity.
    user_spread: f64,
    /// Exponent of items' popularity over their rank.
    item_exponent: f64,
    /// Chance that an event repeats the user's latest item, and that it returns to an older one; else a new one.
    same: f64,
    older: f64,
}

impl Preset {
    /// Name on the command line.
    pub fn name(self) -> &'static str {
        match self {
            Preset::Wikipedia => "wikipedia",
            Preset::Reddit => "reddit",
        }
    }

    fn shape(self) -> Shape {
        match self {
            Preset::Wikipedia => Shape {
                name: "synthetic-wikipedia",
                events: 157_474,
                users: 8_227,
                items: 1_000,
                positives: 217,
                span: 2_678_373,
                user_spread: 2.12,
                item_exponent: 0.47,
                same: 0.835,
                older: 0.098,
            },
            Preset::Reddit => Shape {
                name: "synthetic-reddit",
                events: 672_447,
                users: 10_000,
                items: 984,
                positives: 366,
                span: 2_678_390,
                user_spread: 1.2,
                item_exponent: 0.8,
                same: 0.60,
                older: 0.285,
            },
        }
    }
}

/// Words of one user are keyed by what they are for.
#[derive(Clone, Copy)]
enum Draw {
    Activity = 1,
    Session = 2,
    Gap = 3,
    Choice = 4,
    Item = 5,
    Older = 6,
    Label = 7,
    ItemVector = 8,
    EventVector = 9,
}

fn draws(seed: u64, what: Draw, of: u32) -> Key {
    Key::new(seed, Purpose::Generate).narrow([what as u32, of, 0, 0])
}

/// Generates a stream.
///
/// # Errors
/// If there are too few events for the nodes, or too few nodes.
pub fn generate(config: &GenerateConfig) -> Result<EventStream> {
    let shape = config.sized()?;
    let activity = activity(&shape, config.seed);
    let popularity = Popularity::new(&shape);
    let users: Vec<Vec<(i64, u32)>> = activity
        .into_par_iter()
        .enumerate()
        .map(|(user, events)| user_events(&shape, &popularity, config.seed, user, events))
        .collect();
    let columns = columns(&shape, config, &users);
    let ids = IdMap {
        source: SpaceIds::Integers((0..shape.users as i64).collect()),
        destination: Some(SpaceIds::Integers((0..shape.items as i64).collect())),
    };
    let meta = StreamMeta {
        name: shape.name.to_owned(),
        synthetic: true,
        tick: Tick::SECOND,
        bipartite: true,
        nodes: ids.nodes(),
        first_destination: ids.first_destination(),
        events: shape.events as u64,
        label_column: Some("state_label".to_owned()),
        feature_columns: Vec::new(),
    };
    EventStream::from_columns(meta, ids, columns)
}

impl GenerateConfig {
    /// The preset's shape at the wanted size.
    fn sized(&self) -> Result<Shape> {
        let mut shape = self.preset.shape();
        let published = (shape.events, shape.users + shape.items);
        let events = self.events.unwrap_or(published.0);
        let fitting = (published.1 as f64 * (events as f64 / published.0 as f64).min(1.0)) as usize;
        let nodes = self.nodes.unwrap_or(fitting.max(8));
        if nodes < 4 {
            return Err(Error::setting("nodes", nodes, "at least 4 nodes are needed"));
        }
        let items = (nodes as f64 * shape.items as f64 / published.1 as f64).round().max(2.0) as usize;
        if events < nodes - items {
            let mend = format!("every user has an event: give at least {} events or fewer nodes", nodes - items);
            return Err(Error::setting("events", events, mend));
        }
        if events as u64 >= u64::from(u32::MAX) {
            return Err(Error::TooMany { what: "events", found: events as u64 });
        }
        let share = events as f64 / published.0 as f64;
        shape.positives = ((shape.positives as f64 * share).round() as usize).min(nodes - items);
        (shape.events, shape.items, shape.users) = (events, items, nodes - items);
        Ok(shape)
    }
}

/// Events of each user: one, and a log-normal share of the rest.
fn activity(shape: &Shape, seed: u64) -> Vec<usize> {
    let key = draws(seed, Draw::Activity, 0);
    let weights: Vec<f64> =
        (0..shape.users as u64).map(|u| (shape.user_spread * key.normal(u).min(BUSIEST)).exp()).collect();
    let (rest, sum) = ((shape.events - shape.users) as f64, weights.iter().sum::<f64>());
    let (mut seen, mut given) = (0.0, 0usize);
    let last = weights.len() - 1;
    weights
        .iter()
        .enumerate()
        .map(|(user, weight)| {
            seen += weight;
            let until = if user == last { rest as usize } else { (rest * seen / sum) as usize };
            let more = until - given;
            given = until;
            1 + more
        })
        .collect()
}

/// Draws items by popularity.
struct Popularity {
    cumulative: Vec<f64>,
}

impl Popularity {
    fn new(shape: &Shape) -> Popularity {
        let mut sum = 0.0;
        let cumulative = (0..shape.items).map(|rank| {
            sum += ((rank + 1) as f64).powf(-shape.item_exponent);
            sum
        });
        Popularity { cumulative: cumulative.collect() }
    }

    fn item(&self, uniform: f64) -> u32 {
        let wanted = uniform * self.cumulative.last().copied().unwrap_or(0.0);
        self.cumulative.partition_point(|&c| c <= wanted).min(self.cumulative.len() - 1) as u32
    }
}

/// Times and items of one user, in time order.
fn user_events(shape: &Shape, popularity: &Popularity, seed: u64, user: usize, events: usize) -> Vec<(i64, u32)> {
    let times = times(shape, seed, user as u32, events);
    let [choice, fresh, older] = [Draw::Choice, Draw::Item, Draw::Older].map(|what| draws(seed, what, user as u32));
    // items in order of latest use; the first users introduce each item once
    let first = if user < shape.items { user as u32 } else { popularity.item(fresh.uniform(0)) };
    let mut history = vec![first];
    let step = |(k, time): (usize, i64)| {
        let turn = choice.uniform(k as u64);
        let place = if k == 0 || turn < shape.same {
            0
        } else if turn < shape.same + shape.older {
            older_place(older.uniform(k as u64), history.len())
        } else {
            let item = popularity.item(fresh.uniform(k as u64));
            history.iter().position(|&known| known == item).unwrap_or_else(|| {
                history.push(item);
                history.len() - 1
            })
        };
        history[..=place].rotate_right(1);
        (time, history[0])
    };
    times.into_iter().enumerate().map(step).collect()
}

/// A place in the history behind the latest, near ones likelier: the chance falls as place^-1.5. The latest if it is alone.
fn older_place(uniform: f64, known: usize) -> usize {
    if known == 1 {
        return 0;
    }
    let farthest = (known as f64).powf(-0.5);
    let place = (1.0 - uniform * (1.0 - farthest)).powi(-2);
    (place as usize).clamp(1, known - 1)
}

/// Sessions at random hours of random days, with short gaps inside.
fn times(shape: &Shape, seed: u64, user: u32, events: usize) -> Vec<i64> {
    const CONTINUE: f64 = 0.75;
    let (session, gap) = (draws(seed, Draw::Session, user), draws(seed, Draw::Gap, user));
    let mut now = 0.0;
    let mut times: Vec<i64> = (0..events as u64)
        .map(|k| {
            let ends = now >= shape.span as f64;
            if k == 0 || ends || gap.uniform(2 * k) > CONTINUE {
                now = session_start(shape.span as f64, session.uniform(2 * k), session.uniform(2 * k + 1));
            } else {
                now += (150.0 * (1.2 * gap.normal(2 * k + 1)).exp()).min(1800.0);
            }
            (now as i64).clamp(0, shape.span)
        })
        .collect();
    times.sort_unstable();
    times
}

/// A moment of a day with more going on at some hours than at others.
fn session_start(span: f64, day: f64, hour: f64) -> f64 {
    const DAY: f64 = 86_400.0;
    let days = (span / DAY).ceil();
    let hour = hour + 0.6 * (std::f64::consts::TAU * hour).sin() / std::f64::consts::TAU;
    (((day * days).floor() + hour) * DAY).min(span * (1.0 - hour * 1e-3))
}

/// Joins the users' events in time order.
fn columns(shape: &Shape, config: &GenerateConfig, users: &[Vec<(i64, u32)>]) -> EventColumns {
    let mut events: Vec<(i64, u32, u32, bool)> = Vec::with_capacity(shape.events);
    for (user, own) in users.iter().enumerate() {
        let last = own.len() - 1;
        events.extend(own.iter().enumerate().map(|(k, &(time, item))| (time, user as u32, item, k == last)));
    }
    events.par_sort_by_key(|&(time, user, ..)| (time, user));
    let first = events.first().map_or(0, |e| e.0);
    let positive = positives(shape, config.seed);
    let label = |&(_, user, _, last): &(i64, u32, u32, bool)| Some(i8::from(last && positive[user as usize]));
    EventColumns {
        source: events.iter().map(|e| e.1).collect(),
        destination: events.iter().map(|e| shape.users as u32 + e.2).collect(),
        time: events.iter().map(|e| e.0 - first).collect(),
        row: (0..events.len() as u64).collect(),
        labels: Some(events.iter().map(label).collect()),
        features: (config.features > 0).then(|| features(shape, config, &events)),
        feature_dim: config.features,
    }
}

/// The users whose last event is labelled 1, as when they are banned after it.
fn positives(shape: &Shape, seed: u64) -> Vec<bool> {
    let key = draws(seed, Draw::Label, 0);
    let mut order: Vec<usize> = (0..shape.users).collect();
    order.sort_by_key(|&user| (key.word(user as u64), user));
    let mut positive = vec![false; shape.users];
    order[..shape.positives].iter().for_each(|&user| positive[user] = true);
    positive
}

/// `[E, D_e]`: half the item's own vector, half noise, of unit variance.
fn features(shape: &Shape, config: &GenerateConfig, events: &[(i64, u32, u32, bool)]) -> Vec<f32> {
    let dim = config.features;
    let vector = |what: Draw, of: u32| {
        let key = draws(config.seed, what, of);
        (0..dim as u64).map(move |i| key.normal(i) as f32 * std::f32::consts::FRAC_1_SQRT_2)
    };
    let items: Vec<f32> = (0..shape.items as u32).flat_map(|item| vector(Draw::ItemVector, item)).collect();
    let mut rows = vec![0f32; events.len() * dim];
    rows.par_chunks_exact_mut(dim).enumerate().for_each(|(event, row)| {
        let item = events[event].2 as usize;
        let noise = vector(Draw::EventVector, event as u32);
        for ((x, own), noise) in row.iter_mut().zip(&items[item * dim..]).zip(noise) {
            *x = own + noise;
        }
    });
    rows
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::statistics::Statistics;

    #[test]
    fn wikipedia_has_the_published_counts_and_shape() {
        let stream = generate(&GenerateConfig::default()).unwrap();
        let s = Statistics::of(&stream);
        assert_eq!((s.events, s.sources, s.destinations), (157_474, 8_227, 1_000));
        assert!(s.synthetic && s.bipartite);
        assert_eq!(s.labels.iter().find(|l| l.value == 1).unwrap().events, 217);
        // the real file: 88.4 % returns, the busiest 1 % of users have 25.6 % of the events, 152,757 distinct times
        assert!((0.86..0.91).contains(&s.repeat_share), "{}", s.repeat_share);
        assert!((0.18..0.40).contains(&s.source_degree.top_1_percent_share), "{:?}", s.source_degree);
        assert!((0.04..0.16).contains(&s.destination_degree.top_1_percent_share), "{:?}", s.destination_degree);
        assert!((2_600_000.0..2_678_374.0).contains(&s.span_seconds), "{}", s.span_seconds);
        assert!((140_000..157_474).contains(&s.distinct_times), "{}", s.distinct_times);
    }

    #[test]
    fn reddit_has_the_published_counts() {
        let s = Statistics::of(&generate(&GenerateConfig { preset: Preset::Reddit, ..Default::default() }).unwrap());
        assert_eq!((s.events, s.sources, s.destinations), (672_447, 10_000, 984));
        assert!((0.85..0.92).contains(&s.repeat_share), "{}", s.repeat_share);
    }

    #[test]
    fn a_seed_names_a_stream() {
        let config = GenerateConfig { events: Some(3_000), features: 4, seed: 5, ..Default::default() };
        let stream = generate(&config).unwrap();
        assert_eq!(stream.hash(), generate(&config).unwrap().hash());
        assert_ne!(stream.hash(), generate(&GenerateConfig { seed: 6, ..config }).unwrap().hash());
        assert_eq!((stream.len(), stream.feature_dim()), (3_000, 4));
        let mut used = vec![false; stream.nodes() as usize];
        stream.chunks().for_each(|c| {
            c.source.iter().chain(c.destination).for_each(|n| used[n.index()] = true);
        });
        assert!(used.iter().all(|&u| u));
    }

    #[test]
    fn impossible_sizes_are_refused() {
        let config = GenerateConfig { events: Some(10), nodes: Some(1_000), ..Default::default() };
        assert!(generate(&config).unwrap_err().to_string().contains("events = 10"));
        assert!(generate(&GenerateConfig { nodes: Some(2), ..Default::default() }).is_err());
        assert_eq!(generate(&GenerateConfig { events: Some(20), ..Default::default() }).unwrap().len(), 20);
    }
}
