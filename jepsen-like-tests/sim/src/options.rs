//! What kind of run a seed stands for: sizes, speeds, and which classes of faults are on.

use std::time::Duration;

use flotilla_planted_bugs::Bug;
use serde::{Deserialize, Serialize};

use crate::net::LinkOptions;
use crate::rng::Rng;

/// Which state machine the replicas run.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default, Serialize, Deserialize)]
#[serde(rename_all = "lowercase")]
pub enum Machine {
    /// The real one.
    #[default]
    Store,
    /// A few lines that do the same for sends, to look at the log alone.
    Toy,
    /// The real one in whole brokers: services, proposer, forwarding, duties.
    Broker,
}

/// How long a run is.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default, Serialize, Deserialize)]
#[serde(rename_all = "lowercase")]
pub enum Size {
    /// Seconds of faults, hundreds of messages.
    #[default]
    Standard,
    /// The same faults closer together, fewer messages, shorter waits: many more seeds in the same time.
    Short,
}

/// A bug planted on purpose, to see it caught: the proof that a clean run means something.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Mutant {
    /// Disks say that they synced, and did not.
    SyncsLie,
    /// One replica leaves out one entry in forty.
    SkipsEntries,
    /// Links that were cut stay cut.
    NeverHeals,
}

/// The classes of faults, each on or off for a whole run.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub struct FaultClasses {
    /// Processes die and come back; their machines live on.
    pub kills: bool,
    /// Machines lose power, one or all at once.
    pub power_losses: bool,
    /// Machines are cut off in both directions, or from one another.
    pub partitions: bool,
    /// Links are cut in one direction.
    pub one_way: bool,
    /// Calls and answers get lost, streams break.
    pub losses: bool,
    /// A machine gets an empty disk in place of its own.
    pub wipes: bool,
    /// A machine loses power right after a sync.
    pub crash_points: bool,
    /// Leadership is handed over on request.
    pub transfers: bool,
    /// A sync fails once, and its pages are gone.
    pub sync_errors: bool,
    /// Namesrvs die and forget everything, or are cut off from brokers, from clients, or from both.
    pub namesrvs: bool,
}

/// One run's options; all of them follow from the seed.
#[derive(Debug, Clone)]
pub struct Options {
    /// What all the rest follows from.
    pub seed: u64,
    /// What the replicas run.
    pub machine: Machine,
    /// Normally none.
    pub mutant: Option<Mutant>,
    /// A bug that is switched on in the code under test. Normally none.
    pub bug: Option<Bug>,
    /// Another order of the same steps; 0 is the seed's own.
    pub schedule: u64,
    /// How long it is.
    pub size: Size,
    /// How many replicas the group has, numbered from 1.
    pub replica_count: u64,
    /// How long faults go on.
    pub fault_phase: Duration,
    /// Time between two faults, milliseconds.
    pub fault_interval_ms: (u64, u64),
    /// How long what was struck stays down: one of these, milliseconds.
    pub down_ms: Vec<u64>,
    /// How long what was cut stays cut: one of these, milliseconds.
    pub cut_ms: Vec<u64>,
    /// Whether a leader that is surely gone is replaced before the election timeout.
    pub elect_on_peer_gone: bool,
    /// What may happen.
    pub classes: FaultClasses,
    /// Producers, each with one send at a time.
    pub client_count: u64,
    /// All in one group; the toy has none.
    pub consumer_count: u64,
    /// Whether transactions, delays, dead letters and orders are tried beside it. Only against brokers.
    pub errands: bool,
    /// Whether replicas confirm what is in their page cache (durability `os`). Only as many machines as a minority lose power
    /// then, each only while all others have everything.
    pub confirms_early: bool,
    /// Whether the one group of plain consumers is an ordered one. Only of the store.
    pub is_ordered: bool,
    /// Namesrvs, for those who use the SDK. Only with brokers; 0: nobody does.
    pub namesrv_count: u64,
    /// How long what plain consumers take is their own.
    pub invisible: Duration,
    /// Longest delay of a delayed message, milliseconds.
    pub delay_ms_max: u64,
    /// A queue that gave nothing for so long gives nothing any more: longer than anything is invisible or delayed.
    pub drained_after: Duration,
    /// Queues of the one topic.
    pub queue_count: u32,
    /// Messages in a send.
    pub batch_max: u64,
    /// Largest body, bytes.
    pub body_bytes_max: u64,
    /// Pause of a client between two sends, milliseconds.
    pub think_ms: (u64, u64),
    /// Bytes of a log segment.
    pub segment_bytes: u64,
    /// The network while it is not cut.
    pub links: LinkOptions,
    /// How long a sync takes, microseconds.
    pub sync_us: (u64, u64),
    /// Of a thousand syncs so many stall.
    pub stall_permille: u64,
    /// How long those take, microseconds.
    pub stall_us: (u64, u64),
    /// Largest wall clock error, milliseconds.
    pub wall_offset_ms_max: u64,
    /// Of a thousand unsynced pages so many survive a power loss.
    pub kept_permille: u64,
}

/// Short enough to come back before anybody notices, or long enough for several elections.
const DOWN_MS: [u64; 5] = [1, 30, 200, 900, 2_500];
/// From what nobody notices to several elections.
const CUT_MS: [u64; 4] = [20, 300, 900, 2_500];

impl Options {
    /// The options of `seed`: each class of faults is on in about half of the seeds, sizes and
    /// speeds are drawn wide, so that every run is lopsided in its own way.
    pub fn of(seed: u64, machine: Machine) -> Options {
        let mut rng = Rng::stream(seed, "options");
        let mut classes = FaultClasses {
            kills: rng.chance(600),
            power_losses: rng.chance(600),
            partitions: rng.chance(500),
            one_way: rng.chance(300),
            losses: rng.chance(400),
            crash_points: rng.chance(400),
            transfers: rng.chance(200),
            sync_errors: false,
            namesrvs: machine == Machine::Broker && Rng::stream(seed, "namesrvs").chance(500),
            // Of its own stream: what seeds stood for before stays.
            wipes: Rng::stream(seed, "wipes").chance(250),
        };
        if classes == FaultClasses::default() {
            classes.power_losses = true;
        }
        let slow_net = rng.chance(250);
        let slow_disk = rng.chance(250);
        let mut links = LinkOptions {
            latency_us: if slow_net { (500, 20_000) } else { (50, 500) },
            spike_permille: rng.below(20),
            spike_us: (5_000, 200_000),
            ..LinkOptions::default()
        };
        if classes.losses {
            links.request_lost_permille = rng.below(60);
            links.response_lost_permille = rng.below(60);
            links.stream_break_permille = rng.below(10);
        }
        let hectic = rng.chance(400);
        let mut options = Options {
            seed,
            machine,
            mutant: None,
            bug: None,
            schedule: 0,
            down_ms: DOWN_MS.to_vec(),
            cut_ms: CUT_MS.to_vec(),
            elect_on_peer_gone: true,
            replica_count: 3,
            fault_phase: Duration::from_millis(rng.between(3_000, 10_000)),
            fault_interval_ms: if hectic { (50, 700) } else { (500, 2_500) },
            classes,
            client_count: rng.between(2, 6),
            consumer_count: rng.between(0, 3),
            errands: machine == Machine::Broker,
            namesrv_count: if machine == Machine::Broker { 2 } else { 0 },
            size: Size::Standard,
            confirms_early: false,
            is_ordered: machine == Machine::Store && Rng::stream(seed, "ordered").chance(250),
            invisible: Duration::from_millis(1_500),
            delay_ms_max: 2_500,
            drained_after: Duration::from_millis(4_000),
            queue_count: rng.between(1, 4) as u32,
            batch_max: rng.between(1, 4),
            body_bytes_max: *rng.pick(&[64, 600, 3_000]),
            think_ms: *rng.pick(&[(0, 5), (1, 40), (10, 150)]),
            segment_bytes: 64 * 1024,
            links,
            sync_us: if slow_disk { (1_000, 15_000) } else { (50, 1_000) },
            stall_permille: if rng.chance(300) { rng.below(15) } else { 0 },
            stall_us: (20_000, 400_000),
            wall_offset_ms_max: if rng.chance(300) { 60_000 } else { 0 },
            kept_permille: *rng.pick(&[0, 300, 700]),
        };
        // Drawn last, so that what a seed meant before stays for most.
        if rng.chance(150) {
            options.replica_count = 5;
        }
        if rng.chance(250) {
            options.links.false_refusal_permille = rng.below(500);
            options.links.stream_break_permille = options.links.stream_break_permille.max(rng.below(5));
        }
        options.classes.sync_errors = rng.chance(200);
        if options.is_ordered {
            // An ordered group takes a queue's messages one batch after the other: no more than it can work off.
            options.think_ms = (10, 150);
        }
        if machine == Machine::Store && Rng::stream(seed, "durability").chance(150) {
            options.confirm_early();
        }
        options
    }

    /// Replicas confirm what is in their page cache, and faults keep to what that must survive.
    pub(crate) fn confirm_early(&mut self) {
        self.confirms_early = true;
        // A machine may be gone at any time then, whatever the others lack; and a replica goes on after a failed sync.
        self.classes.crash_points = false;
        self.classes.sync_errors = false;
        self.classes.wipes = false;
    }

    /// The same seed in that size.
    #[must_use]
    pub fn sized(mut self, size: Size) -> Options {
        if size == Size::Standard {
            return self;
        }
        let mut rng = Rng::stream(self.seed, "short");
        self.size = size;
        self.fault_phase = Duration::from_millis(rng.between(1_000, 3_000));
        self.fault_interval_ms = if rng.chance(500) { (30, 300) } else { (150, 800) };
        self.down_ms = vec![1, 30, 200, 700];
        self.cut_ms = vec![20, 300, 900];
        self.client_count = rng.between(1, 3);
        self.consumer_count = rng.between(0, 2);
        self.queue_count = rng.between(1, 2) as u32;
        // A pace at which most time goes into faults, not into messages that are like those before.
        self.think_ms = *rng.pick(&[(1, 20), (10, 60), (20, 150)]);
        self.invisible = Duration::from_millis(400);
        self.delay_ms_max = 600;
        self.drained_after = Duration::from_millis(1_500);
        self
    }
}
