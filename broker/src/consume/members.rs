//! Who polls a topic for a group, and with which filter: members that want different messages miss each other's.

use std::collections::BTreeMap;
use std::time::Duration;

use flotilla_runtime::Instant;

/// Members remembered of one group in one topic; further ones are served and not remembered.
const MEMBERS_MAX: usize = 1_000;
/// One that has not asked for so long is gone.
const SILENCE_MAX: Duration = Duration::from_secs(120);

/// The members of one group in one topic, as the leader hears them.
#[derive(Debug, Default)]
pub struct Members {
    known: BTreeMap<String, Member>,
    joined: u64,
}

/// A consumer of the group.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Member {
    /// Its filter, as text.
    pub filter: String,
    /// When it asked last.
    pub seen_at: Instant,
    /// Its place among those that came, by this filter.
    order: u64,
}

/// A filter that is not that of the member that was there first.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Difference {
    /// Who was there first.
    pub first: String,
    /// Its filter.
    pub first_filter: String,
    /// It was not known before.
    pub is_news: bool,
}

impl Members {
    /// Notes that a member polls; tells if its filter is not that of the one that was there first.
    pub fn heard(&mut self, client_id: &str, filter: &str, now: Instant) -> Option<Difference> {
        let is_new = self.known.get(client_id).is_none_or(|known| known.filter != filter);
        if is_new {
            self.known.retain(|_, member| now - member.seen_at <= SILENCE_MAX);
            if self.known.len() < MEMBERS_MAX || self.known.contains_key(client_id) {
                self.joined += 1;
                let member = Member { filter: filter.to_owned(), seen_at: now, order: self.joined };
                self.known.insert(client_id.to_owned(), member);
            }
        } else if let Some(known) = self.known.get_mut(client_id) {
            known.seen_at = now;
        }
        let (first, member) = self.live(now).min_by_key(|(_, member)| member.order)?;
        (member.filter != filter).then(|| Difference {
            first: first.to_owned(),
            first_filter: member.filter.clone(),
            is_news: is_new,
        })
    }

    /// It has left.
    pub fn gone(&mut self, client_id: &str) {
        self.known.remove(client_id);
    }

    /// Those that have asked lately.
    pub fn live(&self, now: Instant) -> impl Iterator<Item = (&str, &Member)> {
        let known = self.known.iter().map(|(client_id, member)| (client_id.as_str(), member));
        known.filter(move |(_, member)| now - member.seen_at <= SILENCE_MAX)
    }

    /// Whether some of them want other messages than others.
    pub fn differ(&self, now: Instant) -> bool {
        let mut live = self.live(now);
        let Some((_, first)) = live.next() else { return false };
        live.any(|(_, member)| member.filter != first.filter)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn at(seconds: u64) -> Instant {
        Instant::from_nanos(seconds * 1_000_000_000)
    }

    #[test]
    fn the_one_that_comes_later_with_another_filter_is_told_once_as_news() {
        let mut members = Members::default();
        assert_eq!(members.heard("a", "x", at(0)), None);
        assert_eq!(members.heard("b", "x", at(1)), None);
        let difference = members.heard("c", "y", at(2)).expect("another filter");
        assert_eq!((difference.first.as_str(), difference.first_filter.as_str(), difference.is_news), ("a", "x", true));
        assert!(!members.heard("c", "y", at(3)).expect("still another").is_news);
        assert_eq!(members.heard("a", "x", at(4)), None, "the first one is right");
        assert!(members.differ(at(4)));
        assert_eq!(members.heard("c", "x", at(5)), None);
        assert!(!members.differ(at(5)));
    }

    #[test]
    fn who_has_gone_silent_binds_nobody() {
        let mut members = Members::default();
        members.heard("a", "x", at(0));
        assert_eq!(members.heard("b", "y", at(121)), None);
        assert_eq!(members.live(at(121)).map(|(id, _)| id).collect::<Vec<_>>(), ["b"]);
    }
}
