//! The namesrvs of a simulated cluster: real services on a network of their own, which forget everything when they die.

use std::collections::BTreeMap;
use std::sync::Arc;
use std::time::Duration;

use flotilla_checkers::{EventKind, Leadership, Operation};
use flotilla_namesrv::{Freshness, NamesrvConfig, NamesrvService, RowKey, RowRole};
use flotilla_runtime::{Instant, Runtime};

use crate::executor::{Executor, Life, LifeOptions};
use crate::net::{Address, SimNet};
use crate::witness::Witness;
use crate::workload::Journal;

/// Addresses of namesrvs begin above this.
pub(crate) const NAMESRV_ADDRESS_MIN: Address = 400;
/// How often a broker repeats its row, milliseconds.
pub(crate) const NAMESRV_HEARTBEAT_MS: u64 = 500;
/// How long a silent row stays, milliseconds: so that rows do expire within a run.
const EXPIRY_MS: u64 = 2_000;
const SCAN_INTERVAL_MS: u64 = 200;

/// The `host:port` of a namesrv, by its number from 1.
pub(crate) fn namesrv_address(number: u64) -> String {
    format!("namesrv-{}:9876", NAMESRV_ADDRESS_MIN + number)
}

/// All namesrvs.
pub(crate) struct Namesrvs {
    nodes: Vec<Node>,
    net: SimNet<NamesrvService>,
    witness: Witness,
    journal: Journal,
}

struct Node {
    address: Address,
    running: Option<Running>,
}

struct Running {
    life: Life,
    runtime: Runtime,
    service: NamesrvService,
    /// The rows at the last look.
    rows: BTreeMap<RowKey, (Freshness, Instant)>,
    leaders: Vec<Leadership>,
}

impl Namesrvs {
    pub(crate) fn new(count: u64, net: SimNet<NamesrvService>, witness: Witness, journal: Journal) -> Namesrvs {
        let nodes = (1..=count).map(|number| Node { address: NAMESRV_ADDRESS_MIN + number, running: None });
        Namesrvs { nodes: nodes.collect(), net, witness, journal }
    }

    pub(crate) fn net(&self) -> &SimNet<NamesrvService> {
        &self.net
    }

    /// Numbers of all, from 1.
    pub(crate) fn numbers(&self) -> impl Iterator<Item = u64> + use<> {
        1..=self.nodes.len() as u64
    }

    /// Starts one that is down, with an empty table.
    pub(crate) fn start(&mut self, executor: &Executor, number: u64) {
        let node = &mut self.nodes[number as usize - 1];
        if node.running.is_some() {
            return;
        }
        let (life, runtime) = executor.begin_life(LifeOptions::named(format!("namesrv {number}")));
        let config = NamesrvConfig {
            heartbeat_interval_ms: NAMESRV_HEARTBEAT_MS,
            scan_interval_ms: SCAN_INTERVAL_MS,
            expiry_ms: EXPIRY_MS,
            ..NamesrvConfig::default()
        };
        let service = NamesrvService::new(config, runtime.clone());
        let scanned = service.clone();
        runtime.spawn("namesrv scans", async move { scanned.run_scans().await }).detach();
        self.net.listen(node.address, runtime.clone(), Arc::new(service.clone()));
        executor.trace().tell(executor.now_ns(), &format!("namesrv {number} starts"));
        node.running = Some(Running { life, runtime, service, rows: BTreeMap::new(), leaders: Vec::new() });
    }

    /// Ends one that is up, and all that it knows.
    pub(crate) fn end(&mut self, executor: &Executor, number: u64) {
        let node = &mut self.nodes[number as usize - 1];
        let Some(running) = node.running.take() else { return };
        executor.trace().tell(executor.now_ns(), &format!("namesrv {number} is killed"));
        executor.end_life(running.life);
        let (net, address, runtime) = (self.net.clone(), node.address, running.runtime.clone());
        runtime.enter(|| {
            net.vanish(address, false);
            drop(running);
        });
    }

    /// What each knows never gets older, as long as it lives; and who leads by its word did lead.
    pub(crate) fn look(&mut self, executor: &Executor) {
        for (node, number) in self.nodes.iter_mut().zip(1_u64..) {
            let Some(running) = &mut node.running else { continue };
            let routes = running.service.routes();
            let mut rows = BTreeMap::new();
            for (row, seen) in routes.rows(None) {
                if let Some((known, last_seen)) = running.rows.get(&row.key)
                    && row.freshness < *known
                    // Else it may have gone meanwhile, and be of an earlier life of its replica now.
                    && seen.saturating_since(*last_seen) < Duration::from_millis(EXPIRY_MS)
                {
                    let Freshness { term, version, .. } = &row.freshness;
                    self.witness.object(format!(
                        "namesrv {number} went back for replica {}: from term {}, version {} to term {term}, version {version}",
                        row.key.replica, known.term, known.version
                    ));
                }
                if row.role == RowRole::Leader {
                    let leadership = Leadership { term: row.freshness.term, leader: row.key.replica };
                    if !running.leaders.contains(&leadership) {
                        running.leaders.push(leadership.clone());
                        let process = format!("namesrv {number}");
                        self.journal.record(executor.now_ns(), process, EventKind::Ok, Operation::Leader(leadership));
                    }
                }
                rows.insert(row.key.clone(), (row.freshness.clone(), seen));
            }
            let is_gone = |key: &RowKey| !rows.contains_key(key);
            if running.rows.keys().any(is_gone) {
                self.witness.mark("a row expired at a namesrv");
            }
            running.rows = rows;
        }
    }
}
