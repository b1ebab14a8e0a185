//! Every semantic on a cluster of real processes whose leader is killed in the middle: what was promised before holds after.
#![allow(
    clippy::disallowed_methods,
    reason = "tests wait for real processes, with the machine's clock and threads of their own"
)]

#[allow(dead_code, reason = "other tests use the rest")]
#[path = "../../../tls/tests/support/authority.rs"]
mod authority;
mod broadcasting;
#[path = "../../../broker/tests/support/mod.rs"]
mod calls;
mod cluster;
mod consuming;
mod edges;
mod figures;
mod filtering;
mod finding;
mod holding;
mod many_topics;
mod operating;
mod ordering;
mod sending;
#[allow(dead_code, reason = "shared with the tests of the commands")]
#[path = "../command/support.rs"]
mod servers;
mod taking_over;
mod tls;
mod two_groups;
