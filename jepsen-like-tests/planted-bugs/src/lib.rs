//! Bugs planted on purpose, to see the simulation and the chaos harness catch them. Without the feature there are none.
//!
//! Code that is to go wrong on demand asks [`is_planted`]. Without the feature `switches` that is the constant `false`,
//! and what it guards is not in the binary. With it, one bug at a time is switched on: by [`plant`], or in a process by
//! the variable [`VARIABLE`]. A build for users cannot have the feature: it is refused where debug assertions are off.
//!
//! ```
//! use flotilla_planted_bugs::{Bug, is_planted};
//!
//! let is_synced = !is_planted(Bug::AckBeforeSync);
//! # assert!(is_synced);
//! ```

#[cfg(all(feature = "switches", not(debug_assertions)))]
compile_error!("planted bugs are for builds with debug assertions only: this one looks like a build for users");

mod bug;

pub use bug::Bug;

/// Names the planted bug to processes of a build that has them.
pub const VARIABLE: &str = "FLOTILLA_PLANTED_BUG";

/// Whether this build can have bugs planted.
pub const ARE_BUILT_IN: bool = cfg!(feature = "switches");

/// Stands in every binary that can have bugs planted, and in no other: to be searched for in what is shipped.
#[cfg(feature = "switches")]
#[used]
static MARK: [u8; 36] = *b"flotilla: planted bugs are built in.";

/// Whether that bug is switched on in this process.
#[cfg(not(feature = "switches"))]
#[inline(always)]
#[must_use]
pub const fn is_planted(_bug: Bug) -> bool {
    false
}

/// Whether that bug is switched on in this process.
#[cfg(feature = "switches")]
#[must_use]
pub fn is_planted(bug: Bug) -> bool {
    switch::planted() == Some(bug)
}

/// Switches one bug on, or all off, in this process. Without the feature it does nothing.
pub fn plant(bug: Option<Bug>) {
    #[cfg(feature = "switches")]
    switch::set(bug);
    let _ = bug;
}

#[cfg(feature = "switches")]
mod switch {
    use std::sync::atomic::{AtomicU32, Ordering};

    use crate::{Bug, VARIABLE};

    /// Nobody has asked yet.
    const UNREAD: u32 = u32::MAX;
    /// 0: none; else the bug's number.
    static PLANTED: AtomicU32 = AtomicU32::new(UNREAD);

    pub(super) fn set(bug: Option<Bug>) {
        PLANTED.store(bug.map_or(0, Bug::number), Ordering::Relaxed);
    }

    pub(super) fn planted() -> Option<Bug> {
        match PLANTED.load(Ordering::Relaxed) {
            0 => None,
            UNREAD => {
                let named = std::env::var(VARIABLE).ok().and_then(|name| Bug::of_name(&name));
                set(named);
                named
            }
            number => Bug::every().find(|bug| bug.number() == number),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn without_the_feature_nothing_can_be_planted() {
        plant(Some(Bug::Canary));
        assert_eq!(is_planted(Bug::Canary), ARE_BUILT_IN);
        plant(None);
        assert!(Bug::every().all(|bug| !is_planted(bug)));
    }
}
