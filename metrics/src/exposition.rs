//! Prometheus' text format (version 0.0.4), built family by family from any number of sources.

use std::collections::BTreeMap;
use std::fmt::Write as _;

use crate::histogram::Buckets;

/// A label's name and value.
pub type Label<'a> = (&'a str, &'a str);

/// The numbers of one scrape. Sources that write the same family share it: its samples stand together, as the format wants.
#[derive(Debug, Default)]
pub struct Exposition {
    families: BTreeMap<&'static str, Family>,
    /// Labels of every sample written from here on.
    base: String,
}

#[derive(Debug)]
struct Family {
    kind: Kind,
    help: &'static str,
    samples: String,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Kind {
    Counter,
    Gauge,
    Histogram,
}

impl Kind {
    fn text(self) -> &'static str {
        match self {
            Kind::Counter => "counter",
            Kind::Gauge => "gauge",
            Kind::Histogram => "histogram",
        }
    }
}

impl Exposition {
    /// Nothing yet.
    pub fn new() -> Exposition {
        Exposition::default()
    }

    /// Labels that every sample gets from here on; who writes next says its own.
    pub fn set_base(&mut self, labels: &[Label<'_>]) {
        self.base = joined(labels);
    }

    /// A number that only grows while its process lives.
    pub fn counter(&mut self, name: &'static str, help: &'static str, labels: &[Label<'_>], value: u64) {
        debug_assert!(name.ends_with("_total"), "{name}: a counter says so");
        let labels = self.labels(labels, None);
        self.family(name, help, Kind::Counter).line(name, "", &labels, value);
    }

    /// A number that goes up and down.
    pub fn gauge(&mut self, name: &'static str, help: &'static str, labels: &[Label<'_>], value: f64) {
        let labels = self.labels(labels, None);
        self.family(name, help, Kind::Gauge).line(name, "", &labels, number(value));
    }

    /// As [`Exposition::gauge`], for whole numbers.
    pub fn gauge_whole(&mut self, name: &'static str, help: &'static str, labels: &[Label<'_>], value: u64) {
        let labels = self.labels(labels, None);
        self.family(name, help, Kind::Gauge).line(name, "", &labels, value);
    }

    /// Counts by size.
    pub fn histogram(&mut self, name: &'static str, help: &'static str, labels: &[Label<'_>], buckets: &Buckets) {
        let mut below = 0;
        for (bound, count) in &buckets.within {
            below += count;
            let labels = self.labels(labels, Some(&number(*bound)));
            self.family(name, help, Kind::Histogram).line(name, "_bucket", &labels, below);
        }
        let all = below + buckets.above;
        let last = self.labels(labels, Some("+Inf"));
        let labels = self.labels(labels, None);
        let family = self.family(name, help, Kind::Histogram);
        family.line(name, "_bucket", &last, all);
        if let Some(sum) = buckets.sum {
            family.line(name, "_sum", &labels, number(sum));
        }
        family.line(name, "_count", &labels, all);
    }

    /// The text.
    pub fn finish(self) -> String {
        let mut text = String::new();
        for (name, family) in self.families {
            let (kind, help) = (family.kind.text(), escaped(family.help, false));
            let _ = write!(text, "# HELP {name} {help}\n# TYPE {name} {kind}\n{}", family.samples);
        }
        text
    }

    fn family(&mut self, name: &'static str, help: &'static str, kind: Kind) -> &mut Family {
        debug_assert!(is_name(name), "{name:?} is no name of a metric");
        let family = self.families.entry(name).or_insert_with(|| Family { kind, help, samples: String::new() });
        assert_eq!(family.kind, kind, "{name} is always of one kind");
        family
    }

    fn labels(&self, labels: &[Label<'_>], bound: Option<&str>) -> String {
        let mut all = self.base.clone();
        let mut add = |text: &str| {
            if !all.is_empty() && !text.is_empty() {
                all.push(',');
            }
            all.push_str(text);
        };
        add(&joined(labels));
        if let Some(bound) = bound {
            add(&joined(&[("le", bound)]));
        }
        all
    }
}

impl Family {
    fn line(&mut self, name: &str, suffix: &str, labels: &str, value: impl std::fmt::Display) {
        // Writing to a String cannot fail.
        let _ = match labels.is_empty() {
            true => writeln!(self.samples, "{name}{suffix} {value}"),
            false => writeln!(self.samples, "{name}{suffix}{{{labels}}} {value}"),
        };
    }
}

fn joined(labels: &[Label<'_>]) -> String {
    let mut text = String::new();
    for (name, value) in labels {
        debug_assert!(is_name(name), "{name:?} is no name of a label");
        let comma = if text.is_empty() { "" } else { "," };
        let _ = write!(text, "{comma}{name}=\"{}\"", escaped(value, true));
    }
    text
}

fn is_name(name: &str) -> bool {
    let starts = name.bytes().next().is_some_and(|first| first.is_ascii_alphabetic() || first == b'_');
    starts && name.bytes().all(|byte| byte.is_ascii_alphanumeric() || byte == b'_')
}

fn escaped(text: &str, in_quotes: bool) -> String {
    let mut out = String::with_capacity(text.len());
    for letter in text.chars() {
        match letter {
            '\\' => out.push_str("\\\\"),
            '\n' => out.push_str("\\n"),
            '"' if in_quotes => out.push_str("\\\""),
            other => out.push(other),
        }
    }
    out
}

/// As the format has numbers: `+Inf`, `-Inf` and `NaN` for what is none.
fn number(value: f64) -> String {
    match value {
        f64::INFINITY => "+Inf".to_owned(),
        f64::NEG_INFINITY => "-Inf".to_owned(),
        value => value.to_string(),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn sources_share_families_and_keep_their_labels() {
        let mut out = Exposition::new();
        for replica in ["1", "2"] {
            out.set_base(&[("replica", replica)]);
            out.gauge("lag_seconds", "Behind the leader,\nseconds.", &[], 0.5);
            out.counter("sent_total", "Sent.", &[("topic", "a\"b\\c")], 3);
        }
        assert_eq!(
            out.finish(),
            "# HELP lag_seconds Behind the leader,\\nseconds.\n# TYPE lag_seconds gauge\n\
             lag_seconds{replica=\"1\"} 0.5\nlag_seconds{replica=\"2\"} 0.5\n\
             # HELP sent_total Sent.\n# TYPE sent_total counter\n\
             sent_total{replica=\"1\",topic=\"a\\\"b\\\\c\"} 3\nsent_total{replica=\"2\",topic=\"a\\\"b\\\\c\"} 3\n"
        );
    }

    #[test]
    fn a_histogram_is_cumulative_and_ends_with_all() {
        let mut out = Exposition::new();
        let buckets = Buckets { within: vec![(0.001, 2), (1.0, 3)], above: 1, sum: Some(9.5) };
        out.histogram("took_seconds", "Time.", &[("kind", "x")], &buckets);
        let text = out.finish();
        let samples: Vec<&str> = text.lines().filter(|line| !line.starts_with('#')).collect();
        assert_eq!(
            samples,
            [
                "took_seconds_bucket{kind=\"x\",le=\"0.001\"} 2",
                "took_seconds_bucket{kind=\"x\",le=\"1\"} 5",
                "took_seconds_bucket{kind=\"x\",le=\"+Inf\"} 6",
                "took_seconds_sum{kind=\"x\"} 9.5",
                "took_seconds_count{kind=\"x\"} 6",
            ]
        );
    }

    #[test]
    fn what_is_no_number_is_written_as_the_format_has_it() {
        assert_eq!(
            [f64::INFINITY, f64::NEG_INFINITY, f64::NAN, 2.0, 0.25].map(number),
            ["+Inf", "-Inf", "NaN", "2", "0.25"]
        );
    }
}
