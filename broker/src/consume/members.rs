//! Who polls a topic for a group, and with which filter: members that want different messages miss each other's.

use std::collections::BTreeMap;
use std::time::Duration;

use flotilla_runtime::Instant;

/// Members remembered of one group in one topic; further ones are served and not remembered.
const MEMBERS_MAX: usize = 1_000;
/// One that has not asked for so long is gone.
const SILENCE_MAX: Duration = Duration::from_secs(120);

/// The members of one group in one topic, as the leader hears them.
///
/// A client that comes with another filter has changed its mind, and counts by the new one alone. If the old one is heard
/// again, there are two members under one client id.
#[derive(Debug, Default)]
pub struct Members {
    /// By client id and filter.
    known: BTreeMap<(String, String), Member>,
    joined: u64,
}

/// A consumer of the group.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Member {
    /// When it asked last.
    pub seen_at: Instant,
    /// Its place among those that came, by this filter.
    order: u64,
    /// Its client id was heard with another filter since.
    is_replaced: bool,
}

/// A filter that is not that of the member that was there first.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Difference {
    /// Who was there first; the same client id if two members have it.
    pub first: String,
    /// Its filter.
    pub first_filter: String,
    /// It was not known before.
    pub is_news: bool,
}

impl Members {
    /// Notes that a member polls; tells if its filter is not that of the one that was there first.
    pub fn heard(&mut self, client_id: &str, filter: &str, now: Instant) -> Option<Difference> {
        let key = (client_id.to_owned(), filter.to_owned());
        let is_silent = |member: &Member| now - member.seen_at > SILENCE_MAX;
        let is_news = self.known.get(&key).is_none_or(|known| known.is_replaced || is_silent(known));
        if is_news {
            self.known.retain(|_, member| !is_silent(member));
        }
        if let Some(known) = self.known.get_mut(&key) {
            (known.seen_at, known.is_replaced) = (now, false);
        } else {
            for (_, earlier) in self.known.iter_mut().filter(|((known, _), _)| known == client_id) {
                earlier.is_replaced = true;
            }
            if self.known.len() >= MEMBERS_MAX {
                self.known.retain(|_, member| !member.is_replaced);
            }
            if self.known.len() < MEMBERS_MAX {
                self.joined += 1;
                self.known.insert(key, Member { seen_at: now, order: self.joined, is_replaced: false });
            }
        }
        let (first, first_filter, _) = self.live(now).min_by_key(|(_, _, member)| member.order)?;
        let (first, first_filter) = (first.to_owned(), first_filter.to_owned());
        (first_filter != filter).then_some(Difference { first, first_filter, is_news })
    }

    /// It has left.
    pub fn gone(&mut self, client_id: &str) {
        self.known.retain(|(known, _), _| known != client_id);
    }

    /// Those that have asked lately: client id, filter as text.
    pub fn live(&self, now: Instant) -> impl Iterator<Item = (&str, &str, &Member)> {
        let known =
            self.known.iter().map(|((client_id, filter), member)| (client_id.as_str(), filter.as_str(), member));
        known.filter(move |(_, _, member)| !member.is_replaced && now - member.seen_at <= SILENCE_MAX)
    }

    /// Whether some of them want other messages than others.
    pub fn differ(&self, now: Instant) -> bool {
        let mut live = self.live(now);
        let Some((_, first, _)) = live.next() else { return false };
        live.any(|(_, filter, _)| filter != first)
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
        assert_eq!(members.live(at(121)).map(|(id, _, _)| id).collect::<Vec<_>>(), ["b"]);
    }

    #[test]
    fn two_members_under_one_client_id_are_told_from_one_that_changed_its_filter() {
        let mut members = Members::default();
        assert_eq!(members.heard("a", "x", at(0)), None);
        assert_eq!(members.heard("a", "y", at(1)), None, "it may have changed its mind");
        assert!(!members.differ(at(1)));
        assert_eq!(members.heard("a", "x", at(2)), None, "it was there first");
        assert!(members.differ(at(2)), "but the other one is still there");
        let difference = members.heard("a", "y", at(3)).expect("another filter");
        assert_eq!((difference.first.as_str(), difference.first_filter.as_str()), ("a", "x"));
        assert_eq!(
            members.live(at(3)).map(|(id, filter, _)| (id, filter)).collect::<Vec<_>>(),
            [("a", "x"), ("a", "y")]
        );
        assert!(!members.differ(at(123)), "the first has gone silent");
        members.gone("a");
        assert_eq!(members.live(at(3)).count(), 0);
    }

    #[test]
    fn who_says_other_filters_all_the_time_is_remembered_no_more_often_than_allowed() {
        let mut members = Members::default();
        for number in 0..2 * MEMBERS_MAX {
            members.heard("a", &number.to_string(), at(0));
        }
        assert!(members.known.len() <= MEMBERS_MAX, "{}", members.known.len());
        assert_eq!(members.live(at(0)).count(), 1);
        let difference = members.heard("b", "z", at(0)).expect("there is room for another one, and it is compared");
        assert_eq!(difference.first, "a");
    }
}
