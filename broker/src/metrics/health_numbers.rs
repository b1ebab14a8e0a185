//! The replica's health in numbers: alarms, fitness, damage, the scrub.

use std::time::Duration;

use flotilla_metrics::Exposition;
use flotilla_raft_log::{Fitness, Integrity};

use crate::duty::alarms::Alarm;
use crate::replica::Replica;

/// Writes them down.
pub fn write(replica: &Replica, out: &mut Exposition) {
    let raised = replica.alarms.raised();
    for alarm in Alarm::ALL {
        let help = "1 while the alarm is raised; the log and /ready say why.";
        let is_raised = u64::from(raised.contains_key(&alarm));
        out.gauge_whole("flotilla_alarm", help, &[("alarm", alarm.text())], is_raised);
    }
    let is_fit = replica.log.fitness() == Fitness::Fit;
    let help = "1 if this replica knows no reason why another one should lead.";
    out.gauge_whole("flotilla_fit_to_lead", help, &[], u64::from(is_fit));
    write_integrity(replica, &replica.log.integrity(), out);
}

fn write_integrity(replica: &Replica, known: &Integrity, out: &mut Exposition) {
    let gauges = [
        ("flotilla_log_damaged_entries", "Entries of the log that cannot be read here now.", known.damaged_entries),
        ("flotilla_log_damaged_segments", "Segments with damage, or under suspicion.", known.damaged_segments),
        (
            "flotilla_scrub_running",
            "1 while sealed segments are read against their checksums.",
            known.scrub.is_running.into(),
        ),
        (
            "flotilla_scrub_segments",
            "Segments of the scrub's pass under way, or of the last one.",
            known.scrub.segments,
        ),
        ("flotilla_scrub_segments_done", "Those of them that were looked at.", known.scrub.segments_done),
    ];
    for (name, help, value) in gauges {
        out.gauge_whole(name, help, &[], value);
    }
    let counters = [
        ("flotilla_log_damages_found_total", "Damaged segments found.", known.damages_found_total),
        ("flotilla_log_damages_mended_total", "Segments made whole again from a peer.", known.damages_mended_total),
        ("flotilla_scrub_passes_total", "Passes of the scrub over all sealed segments.", known.scrub.passes_total),
        ("flotilla_scrub_bytes_total", "Bytes that the scrub looked at.", known.scrub.bytes_total),
        ("flotilla_scrub_findings_total", "Damaged segments that the scrub found.", known.scrub.findings_total),
    ];
    for (name, help, value) in counters {
        out.counter(name, help, &[], value);
    }
    let ago = match known.scrub.last_ended_wall_ms {
        0 => f64::INFINITY,
        ended_ms => Duration::from_millis(replica.runtime.wall_ms().saturating_sub(ended_ms)).as_secs_f64(),
    };
    let help = "How long ago a pass of the scrub ended; +Inf if none has.";
    out.gauge("flotilla_scrub_last_pass_age_seconds", help, &[], ago);
}
