//! A page that shows what happened: throughput and latency over time with the faults behind them. One file, no network.

use std::fmt::Write;

use flotilla_checkers::{Event, History, HistoryError, SendOutcome};

use crate::nemesis::Class;
use crate::report::{Conclusion, Report};

const WIDTH: f64 = 1_120.0;
const HEIGHT: f64 = 240.0;
const LEFT: f64 = 64.0;
const TOP: f64 = 26.0;
const BOTTOM: f64 = 24.0;
/// Points along the time axis at most, and the shortest piece of time that one stands for.
const POINTS_MAX: u64 = 400;
const BUCKET_NS_MIN: u64 = 250_000_000;

const STYLE: &str = "\
body{font:14px/1.5 system-ui,sans-serif;max-width:1180px;margin:2em auto;padding:0 1em;color:#1c2330;background:#fff}\
h1{font-size:1.5em}h2{font-size:1.1em;margin-top:2em}table{border-collapse:collapse;width:100%}\
td,th{text-align:left;padding:.25em .8em .25em 0;border-bottom:1px solid #e3e6ec;vertical-align:top}\
th{font-weight:600}td.n,th.n{text-align:right}pre{white-space:pre-wrap;background:#f5f6f9;padding:.8em;border-radius:4px}\
.verdict{display:inline-block;padding:.1em .7em;border-radius:1em;color:#fff}.good{background:#217a3c}\
.broken{background:#b3261e}.void{background:#8a6d00}svg{width:100%;height:auto;display:block}svg text{font-size:11px;fill:#4a5364}\
.note{color:#5a6375;font-size:.9em;white-space:pre-wrap}.key span{margin-right:1.4em}.key i{display:inline-block;width:1.1em;height:.7em;margin-right:.4em}";

/// A line of a picture.
struct Line {
    name: &'static str,
    colour: &'static str,
    points: Vec<f64>,
}

/// Everything over time, in equal pieces.
struct Pieces {
    start_ns: u64,
    bucket_ns: u64,
    acked: Vec<u64>,
    other: Vec<u64>,
    received: Vec<u64>,
    latencies_us: Vec<Vec<u64>>,
}

impl Pieces {
    fn of(history: &History, events: &[Event], report: &Report) -> Pieces {
        let start_ns = report.load_started_ns;
        let end_ns = report.faults.iter().map(|fault| fault.healed_ns).max().unwrap_or(0);
        let end_ns = end_ns.max(start_ns + report.load_ms * 1_000_000);
        let bucket_ns = ((end_ns - start_ns) / POINTS_MAX).max(BUCKET_NS_MIN);
        let count = usize::try_from((end_ns - start_ns) / bucket_ns + 1).expect("there are few pieces");
        let mut pieces = Pieces {
            start_ns,
            bucket_ns,
            acked: vec![0; count],
            other: vec![0; count],
            received: vec![0; count],
            latencies_us: vec![Vec::new(); count],
        };
        for send in &history.sends {
            let Some(at) = pieces.at(send.completed_ns) else { continue };
            if let SendOutcome::Acked(_) = send.outcome {
                pieces.acked[at] += 1;
                pieces.latencies_us[at].push((send.completed_ns - send.invoked_ns) / 1_000);
            } else {
                pieces.other[at] += 1;
            }
        }
        for event in events {
            if let flotilla_checkers::Operation::Receive { deliveries } = &event.operation
                && !event.process.starts_with(crate::drain::DRAIN_PROCESS)
                && let Some(at) = pieces.at(event.time_ns)
            {
                pieces.received[at] += deliveries.len() as u64;
            }
        }
        pieces.latencies_us.iter_mut().for_each(|piece| piece.sort_unstable());
        pieces
    }

    fn at(&self, time_ns: u64) -> Option<usize> {
        let at = usize::try_from(time_ns.checked_sub(self.start_ns)? / self.bucket_ns).ok()?;
        (at < self.acked.len()).then_some(at)
    }

    fn per_second(&self, counts: &[u64]) -> Vec<f64> {
        counts.iter().map(|count| *count as f64 * 1e9 / self.bucket_ns as f64).collect()
    }

    /// Milliseconds below which so many of a hundred stayed; not a number where nothing was acknowledged.
    fn quantile(&self, percent: usize) -> Vec<f64> {
        let of = |piece: &Vec<u64>| match piece.len() {
            0 => f64::NAN,
            count => piece[(count * percent / 100).min(count - 1)] as f64 / 1e3,
        };
        self.latencies_us.iter().map(of).collect()
    }
}

/// The page of a judged run.
///
/// # Errors
/// [`HistoryError`] if the history contradicts itself.
pub fn page(events: &[Event], report: &Report) -> Result<String, HistoryError> {
    let history = History::from_events(events)?;
    let pieces = Pieces::of(&history, events, report);
    let leaders: Vec<(u64, u64)> = events
        .iter()
        .filter_map(|event| match &event.operation {
            flotilla_checkers::Operation::Leader(seen) => Some((event.time_ns, seen.leader)),
            _ => None,
        })
        .collect();
    let throughput = [
        Line { name: "acknowledged/s", colour: "#217a3c", points: pieces.per_second(&pieces.acked) },
        Line { name: "received/s", colour: "#3567c4", points: pieces.per_second(&pieces.received) },
        Line { name: "unknown or refused/s", colour: "#b3261e", points: pieces.per_second(&pieces.other) },
    ];
    let latency = [
        Line { name: "p50", colour: "#217a3c", points: pieces.quantile(50) },
        Line { name: "p99", colour: "#c77700", points: pieces.quantile(99) },
        Line { name: "worst", colour: "#b3261e", points: pieces.quantile(100) },
    ];
    let (verdict, class) = match report.conclusion {
        Conclusion::Good => ("every promise was kept", "good"),
        Conclusion::Broken => ("a promise was broken", "broken"),
        Conclusion::Void => ("this run proves nothing", "void"),
    };
    let mut html = format!(
        "<!doctype html><html lang=en><meta charset=utf-8><title>chaos run {seed}</title><style>{STYLE}</style>\
         <h1>Chaos run, seed {seed} <span class='verdict {class}'>{verdict}</span></h1>",
        seed = report.settings.seed
    );
    html.push_str("<h2>Messages a second</h2>");
    picture(&mut html, &pieces, &throughput, &leaders, report, false);
    html.push_str("<h2>Latency of acknowledged sends, ms</h2>");
    picture(&mut html, &pieces, &latency, &leaders, report, true);
    html.push_str(
        "<p class=note>Shaded: a fault, from its strike to its healing; its number stands above. Dashes: a replica was \
         first seen to lead. No line where nothing was acknowledged.</p>",
    );
    fault_table(&mut html, report);
    html.push_str("<h2>Account</h2><pre>");
    escape(&mut html, &report.to_string());
    html.push_str("</pre></html>\n");
    Ok(html)
}

fn picture(
    html: &mut String,
    pieces: &Pieces,
    lines: &[Line],
    leaders: &[(u64, u64)],
    report: &Report,
    is_logarithmic: bool,
) {
    let span_ns = (pieces.acked.len() as u64 * pieces.bucket_ns) as f64;
    let x_of = |ns: u64| LEFT + ns.saturating_sub(pieces.start_ns) as f64 / span_ns * (WIDTH - LEFT);
    let values = || lines.iter().flat_map(|line| line.points.iter().copied()).filter(|value| value.is_finite());
    let top = values().fold(1.0_f64, f64::max);
    let (low, high) = if is_logarithmic { (0.1_f64.log10(), top.max(10.0).log10()) } else { (0.0, top * 1.05) };
    let y_of = |value: f64| {
        let value = if is_logarithmic { value.max(0.1).log10() } else { value };
        HEIGHT - BOTTOM - (value - low) / (high - low) * (HEIGHT - BOTTOM - TOP)
    };
    let _ = write!(html, "<svg viewBox='0 0 {WIDTH} {HEIGHT}' role=img>");
    for fault in report.faults.iter().filter(|fault| fault.problem.is_none()) {
        let (from, to) = (x_of(fault.started_ns), x_of(fault.healed_ns));
        let width = (to - from).max(1.5);
        let colour = colour_of(fault.kind.card().class);
        let _ = write!(
            html,
            "<rect x='{from:.1}' y='{TOP}' width='{width:.1}' height='{:.1}' fill='{colour}' opacity='.22'><title>{} {}</title></rect>\
             <text x='{from:.1}' y='{:.1}'>{}</text>",
            HEIGHT - BOTTOM - TOP,
            fault.number,
            fault.kind,
            TOP - 6.0,
            fault.number
        );
    }
    for (time_ns, leader) in leaders.iter().filter(|(time_ns, _)| *time_ns >= pieces.start_ns) {
        let x = x_of(*time_ns);
        let _ = write!(
            html,
            "<line x1='{x:.1}' x2='{x:.1}' y1='{TOP}' y2='{:.1}' stroke='#777' stroke-dasharray='2 3'><title>replica {leader} leads</title></line>",
            HEIGHT - BOTTOM
        );
    }
    let marks: Vec<f64> = match is_logarithmic {
        true => (-1..=4).map(|power| 10_f64.powi(power)).filter(|mark| mark.log10() <= high).collect(),
        false => (0..=4).map(|part| top * f64::from(part) / 4.0).collect(),
    };
    for mark in marks {
        let y = y_of(mark);
        let label = if mark >= 10.0 || mark == 0.0 { format!("{mark:.0}") } else { format!("{mark:.1}") };
        let _ = write!(
            html,
            "<line x1='{LEFT}' x2='{WIDTH}' y1='{y:.1}' y2='{y:.1}' stroke='#e3e6ec'/><text x='{:.1}' y='{:.1}' text-anchor='end'>{label}</text>",
            LEFT - 6.0,
            y + 4.0
        );
    }
    for part in 0..=10_u64 {
        let ns = pieces.start_ns + (span_ns / 10.0 * part as f64) as u64;
        let (x, seconds) = (x_of(ns), (ns - pieces.start_ns) as f64 / 1e9);
        let anchor = if part == 10 { "end" } else { "middle" };
        let _ = write!(html, "<text x='{x:.1}' y='{:.1}' text-anchor='{anchor}'>{seconds:.0} s</text>", HEIGHT - 6.0);
    }
    for Line { colour, points, .. } in lines {
        let mut path = String::new();
        let mut is_drawing = false;
        for (at, value) in points.iter().enumerate() {
            if !value.is_finite() {
                is_drawing = false;
                continue;
            }
            let ns = pieces.start_ns + at as u64 * pieces.bucket_ns + pieces.bucket_ns / 2;
            let _ = write!(path, "{}{:.1} {:.1}", if is_drawing { 'L' } else { 'M' }, x_of(ns), y_of(*value));
            is_drawing = true;
        }
        let _ =
            write!(html, "<path d='{path}' fill='none' stroke='{colour}' stroke-width='1.4' stroke-linecap='round'/>");
    }
    html.push_str("</svg><p class=key>");
    for Line { name, colour, .. } in lines {
        let _ = write!(html, "<span><i style='background:{colour}'></i>{name}</span>");
    }
    html.push_str("</p>");
}

fn colour_of(class: Class) -> &'static str {
    match class {
        Class::Process => "#b3261e",
        Class::Network => "#3567c4",
        Class::Disk => "#c77700",
        Class::Clock => "#7b3fb5",
        Class::Edge => "#217a7a",
        Class::Control | Class::Drill => "#000000",
    }
}

fn fault_table(html: &mut String, report: &Report) {
    if report.faults.is_empty() {
        return;
    }
    html.push_str(
        "<h2>Faults</h2><table><tr><th class=n>no.<th>fault<th>replicas<th class=n>from<th class=n>for<th class=n>longest time \
         without ack<th class=n>after healing<th>seen",
    );
    for fault in &report.faults {
        let outage = report.outages.iter().find(|outage| outage.number == fault.number);
        let ms = |value: Option<u64>| value.map_or_else(|| "-".to_owned(), |ms| format!("{ms} ms"));
        let seconds = |ns: u64| format!("{:.1} s", ns as f64 / 1e9);
        let _ = write!(
            html,
            "<tr><td class=n>{}<td>{}<td>{:?}<td class=n>{}<td class=n>{}<td class=n>{}<td class=n>{}<td class=note>",
            fault.number,
            fault.kind,
            fault.targets,
            seconds(fault.started_ns.saturating_sub(report.load_started_ns)),
            seconds(fault.healed_ns.saturating_sub(fault.started_ns)),
            ms(outage.map(|outage| outage.gap_ms)),
            ms(outage.and_then(|outage| outage.after_heal_ms)),
        );
        let problem = fault.problem.iter().map(|problem| format!("not done: {problem}"));
        escape(html, &problem.chain(fault.notes.iter().cloned()).collect::<Vec<_>>().join("\n"));
    }
    html.push_str("</table>");
}

fn escape(html: &mut String, text: &str) {
    for letter in text.chars() {
        match letter {
            '<' => html.push_str("&lt;"),
            '>' => html.push_str("&gt;"),
            '&' => html.push_str("&amp;"),
            '\'' => html.push_str("&#39;"),
            '"' => html.push_str("&quot;"),
            other => html.push(other),
        }
    }
}
