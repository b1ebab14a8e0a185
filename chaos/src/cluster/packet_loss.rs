//! Packets that get lost by chance on their way into a namespace, as the kernel's traffic control does it: a filter where packets
//! arrive draws a number for each one from a sender, and drops those below the share. No system calls here.

use std::collections::BTreeMap;
use std::net::Ipv4Addr;

/// Of a hundred packets from each of these senders so many are dropped.
pub(super) type Losses = BTreeMap<Ipv4Addr, u8>;

/// Shows what the filters have dropped, since the first of them.
pub(crate) const COUNT: [&str; 6] = ["tc", "-s", "qdisc", "show", "dev", "eth0"];

/// What is read of a packet, as classic BPF has it (linux/filter.h): the sender's address, behind an Ethernet header, and a random
/// number of 32 bits.
const SENDER_OFFSET: u32 = 14 + 12;
const RANDOM_OFFSET: u32 = 0xffff_f000 + 56;
/// What becomes of it (linux/pkt_cls.h).
const SHOT: u32 = 2;
const NEXT_FILTER: u32 = u32::MAX;

/// Makes a namespace lose this and nothing else by chance, whatever it lost before, as `tc -batch` takes it.
pub(crate) fn commands(losses: &Losses) -> String {
    let mut commands = "qdisc replace dev eth0 clsact\nfilter del dev eth0 ingress\n".to_owned();
    for (number, (sender, percent)) in losses.iter().enumerate() {
        let (sender, pref) = (u32::from(*sender), number + 1);
        // Numbers from here on are dropped.
        let passes = u64::from(100 - (*percent).min(100)) * (1 << 32) / 100;
        let Ok(passes) = u32::try_from(passes) else { continue };
        commands += &format!(
            "filter add dev eth0 ingress protocol ip pref {pref} bpf da bytecode \"7,32 0 0 {SENDER_OFFSET},21 0 3 {sender},\
             32 0 0 {RANDOM_OFFSET},53 0 1 {passes},6 0 0 {SHOT},6 0 0 {NEXT_FILTER},6 0 0 {NEXT_FILTER}\"\n"
        );
    }
    commands
}

/// How many packets were dropped, by what [`COUNT`] prints: a line for each discipline and its numbers on the next one.
pub(super) fn dropped(text: &str) -> Option<u64> {
    let mut lines = text.lines().skip_while(|line| !line.starts_with("qdisc clsact "));
    lines.next()?;
    let (_, rest) = lines.next()?.split_once("(dropped ")?;
    rest.split_once(',')?.0.parse().ok()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn each_sender_has_a_filter_that_passes_its_share() {
        let losses = Losses::from([(Ipv4Addr::new(10, 77, 0, 1), 25), (Ipv4Addr::new(10, 77, 0, 3), 100)]);
        let commands = commands(&losses);
        let lines: Vec<_> = commands.lines().collect();
        assert_eq!(lines[..2], ["qdisc replace dev eth0 clsact", "filter del dev eth0 ingress"]);
        assert!(lines[2].contains("pref 1 ") && lines[2].contains(",21 0 3 172818433,"), "{}", lines[2]);
        // Three quarters of all numbers.
        assert!(lines[2].contains(",53 0 1 3221225472,6 0 0 2,"), "{}", lines[2]);
        assert!(lines[3].contains("pref 2 ") && lines[3].contains(",53 0 1 0,6 0 0 2,"), "{}", lines[3]);
        assert_eq!(lines.len(), 4);
    }

    #[test]
    fn who_loses_nothing_has_no_filter() {
        assert_eq!(commands(&Losses::from([(Ipv4Addr::LOCALHOST, 0)])).lines().count(), 2);
    }

    #[test]
    fn drops_are_read_as_the_tool_shows_them() {
        let text = "qdisc noqueue 0: root refcnt 2 \n Sent 0 bytes 0 pkt (dropped 5, overlimits 0 requeues 0) \n \
                    backlog 0b 0p requeues 0\nqdisc clsact ffff: parent ffff:fff1 \n Sent 900 bytes 12 pkt (dropped 417, \
                    overlimits 0 requeues 0) \n backlog 0b 0p requeues 0\n";
        assert_eq!(dropped(text), Some(417));
        assert_eq!(dropped("qdisc noqueue 0: root refcnt 2 \n Sent 0 bytes 0 pkt (dropped 5, "), None);
    }
}
