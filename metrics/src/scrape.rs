//! Reads Prometheus' text format: what a test or a tool needs of it.

use std::collections::{BTreeMap, BTreeSet};

/// One number.
#[derive(Debug, Clone, PartialEq)]
pub struct Sample {
    /// Its name; of a histogram with `_bucket`, `_sum` or `_count`.
    pub name: String,
    /// Its labels.
    pub labels: BTreeMap<String, String>,
    /// The number.
    pub value: f64,
}

/// All numbers of one scrape.
#[derive(Debug, Clone, Default, PartialEq)]
pub struct Scrape {
    /// In their order.
    pub samples: Vec<Sample>,
    /// The kind of each family: `counter`, `gauge`, `histogram`.
    pub kinds: BTreeMap<String, String>,
}

/// What is wrong with a text.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
#[error("line {line}: {problem}")]
pub struct ScrapeError {
    /// Counted from 1.
    pub line: usize,
    /// What is wrong with it.
    pub problem: &'static str,
}

impl Sample {
    /// Whether it has all these labels, and perhaps others.
    pub fn has(&self, labels: &[(&str, &str)]) -> bool {
        labels.iter().all(|(name, value)| self.labels.get(*name).is_some_and(|own| own == value))
    }
}

impl Scrape {
    /// Reads a text, strictly: every sample must have a family that was declared before it, and no sample stands twice.
    ///
    /// # Errors
    /// The first line that does not belong to the format.
    pub fn parse(text: &str) -> Result<Scrape, ScrapeError> {
        let mut scrape = Scrape::default();
        let mut seen = BTreeSet::new();
        for (at, line) in text.lines().enumerate() {
            let error = |problem| ScrapeError { line: at + 1, problem };
            if let Some(declared) = line.strip_prefix("# TYPE ") {
                let (name, kind) = declared.split_once(' ').ok_or(error("a type without a kind"))?;
                if scrape.kinds.insert(name.to_owned(), kind.to_owned()).is_some() {
                    return Err(error("a family is declared twice"));
                }
            } else if !line.starts_with('#') && !line.is_empty() {
                let sample = parse_sample(line).map_err(error)?;
                let suffixes = ["", "_bucket", "_sum", "_count"];
                let mut families = suffixes.iter().filter_map(|suffix| sample.name.strip_suffix(suffix));
                if !families.any(|family| scrape.kinds.contains_key(family)) {
                    return Err(error("a sample of no declared family"));
                }
                if !seen.insert((sample.name.clone(), sample.labels.clone())) {
                    return Err(error("the same sample twice"));
                }
                scrape.samples.push(sample);
            }
        }
        Ok(scrape)
    }

    /// The samples of that name with all these labels.
    pub fn find<'a>(&'a self, name: &'a str, labels: &'a [(&'a str, &'a str)]) -> impl Iterator<Item = &'a Sample> {
        self.samples.iter().filter(move |sample| sample.name == name && sample.has(labels))
    }

    /// The only such sample; `None` if there is none or more than one.
    pub fn value(&self, name: &str, labels: &[(&str, &str)]) -> Option<f64> {
        let mut found = self.find(name, labels);
        let first = found.next()?;
        found.next().is_none().then_some(first.value)
    }

    /// The sum of all such samples; 0 if there is none.
    pub fn sum(&self, name: &str, labels: &[(&str, &str)]) -> f64 {
        self.find(name, labels).map(|sample| sample.value).sum()
    }
}

fn parse_sample(line: &str) -> Result<Sample, &'static str> {
    let name_end = line.find(['{', ' ']).ok_or("a name without a value")?;
    let (name, mut rest) = line.split_at(name_end);
    let mut labels = BTreeMap::new();
    if let Some(inside) = rest.strip_prefix('{') {
        rest = parse_labels(inside, &mut labels)?;
    }
    let value = match rest.trim() {
        "+Inf" => f64::INFINITY,
        "-Inf" => f64::NEG_INFINITY,
        text => text.parse().map_err(|_| "a value that is no number")?,
    };
    Ok(Sample { name: name.to_owned(), labels, value })
}

/// Reads up to and with the closing brace; what comes after it.
fn parse_labels<'a>(mut rest: &'a str, labels: &mut BTreeMap<String, String>) -> Result<&'a str, &'static str> {
    loop {
        if let Some(after) = rest.strip_prefix('}') {
            return Ok(after);
        }
        let (name, quoted) = rest.split_once("=\"").ok_or("a label without a value")?;
        let mut value = String::new();
        let mut letters = quoted.char_indices();
        let end = loop {
            match letters.next().ok_or("a value without its end")? {
                (at, '"') => break at,
                (_, '\\') => value.push(match letters.next() {
                    Some((_, 'n')) => '\n',
                    Some((_, letter @ ('\\' | '"'))) => letter,
                    _ => return Err("an escape that is none"),
                }),
                (_, letter) => value.push(letter),
            }
        };
        if labels.insert(name.to_owned(), value).is_some() {
            return Err("the same label twice");
        }
        rest = &quoted[end + 1..];
        rest = rest.strip_prefix(',').unwrap_or(rest);
    }
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;
    use crate::{Exposition, Histogram};

    #[test]
    fn what_is_not_of_the_format_is_told_with_its_line() {
        for (text, line, problem) in [
            ("a 1", 1, "a sample of no declared family"),
            ("# TYPE a gauge\na x", 2, "a value that is no number"),
            ("# TYPE a gauge\na{b=\"c} 1", 2, "a value without its end"),
            ("# TYPE a gauge\na 1\na 2", 3, "the same sample twice"),
            ("# TYPE a gauge\n# TYPE a gauge", 2, "a family is declared twice"),
        ] {
            assert_eq!(Scrape::parse(text), Err(ScrapeError { line, problem }), "{text}");
        }
    }

    #[test]
    fn a_histogram_is_read_back() {
        let histogram = Histogram::new(&[1, 10]);
        [1, 2, 20].iter().for_each(|value| histogram.note(*value));
        let mut out = Exposition::new();
        out.histogram("size_bytes", "Size.", &[], &histogram.buckets(1.0));
        let scrape = Scrape::parse(&out.finish()).expect("of the format");
        assert_eq!(scrape.kinds["size_bytes"], "histogram");
        assert_eq!(scrape.value("size_bytes_bucket", &[("le", "10")]), Some(2.0));
        assert_eq!(scrape.value("size_bytes_bucket", &[("le", "+Inf")]), Some(3.0));
        assert_eq!(scrape.value("size_bytes_sum", &[]), Some(23.0));
        assert_eq!(scrape.value("size_bytes_bucket", &[]), None, "more than one");
    }

    proptest! {
        #[test]
        fn any_label_and_number_is_read_back(topic in any::<String>(), group in any::<String>(), value in any::<u32>()) {
            // Lines end where the format says; a carriage return is no end of one for others, but `lines` takes it.
            prop_assume!(!topic.contains('\r') && !group.contains('\r'));
            let mut out = Exposition::new();
            out.set_base(&[("replica", "1")]);
            out.gauge("lag", "Lag.", &[("topic", &topic), ("group", &group)], f64::from(value));
            let scrape = Scrape::parse(&out.finish()).expect("of the format");
            prop_assert_eq!(scrape.value("lag", &[("topic", &topic), ("group", &group)]), Some(f64::from(value)));
        }

        #[test]
        fn no_text_makes_the_reader_panic(text in any::<String>()) {
            let _ = Scrape::parse(&text);
            let _ = Scrape::parse(&format!("# TYPE a gauge\na{{{text}}} 1"));
        }
    }
}
