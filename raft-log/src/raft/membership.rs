//! A group's members as bytes, in log records and in peer messages; drawn in `docs/formats/segment.md`.

use std::collections::{BTreeMap, BTreeSet};

use bytes::{BufMut, Bytes, BytesMut};
use openraft::Membership;

use crate::fields::{FieldError, FieldReader};
use crate::member::{CONTACT_BYTES_MAX, Member};
use crate::{Incarnation, NodeId};

/// Nothing is known of the members but their numbers: what a group is founded with.
const VERSION_BARE: u8 = 1;
/// Without epochs: what is written as long as the group has had none.
const VERSION_EPOCHLESS: u8 = 2;
const VERSION: u8 = 3;

pub(crate) type Members = Membership<u64, Member>;

/// What is recorded of a member, voter or learner.
pub(crate) fn member_of(members: &Members, node: NodeId) -> Option<&Member> {
    members.get_node(&node.0)
}

fn count(len: usize) -> u32 {
    u32::try_from(len).expect("a group has a handful of members")
}

/// The group's epoch: the one in which its members were taken in.
pub(crate) fn epoch_of(members: &Members) -> u16 {
    members.nodes().map(|(_, member)| member.epoch).max().unwrap_or(0)
}

/// Version, then each voter set of the (joint) configuration, then every member, voters and learners.
pub(crate) fn encode_membership(membership: &Members) -> Bytes {
    let mut bytes = BytesMut::new();
    let is_bare = membership.nodes().all(|(_, member)| *member == Member::default());
    let version = match epoch_of(membership) {
        _ if is_bare => VERSION_BARE,
        0 => VERSION_EPOCHLESS,
        _ => VERSION,
    };
    bytes.put_u8(version);
    let sets = membership.get_joint_config();
    bytes.put_u32_le(count(sets.len()));
    for set in sets {
        bytes.put_u32_le(count(set.len()));
        set.iter().for_each(|node| bytes.put_u64_le(*node));
    }
    bytes.put_u32_le(count(membership.nodes().count()));
    for (node, member) in membership.nodes() {
        bytes.put_u64_le(*node);
        if !is_bare {
            bytes.put_u64_le(member.incarnation.0);
            bytes.put_u8(member.is_voter_wanted.into());
            bytes.put_u32_le(count(member.contact.len()));
            bytes.put_slice(member.contact.as_bytes());
        }
        if version == VERSION {
            bytes.put_u16_le(member.epoch);
        }
    }
    bytes.freeze()
}

pub(crate) fn decode_membership(bytes: Bytes) -> Result<Members, FieldError> {
    let mut reader = FieldReader::new(bytes);
    let version = reader.u8()?;
    if !(VERSION_BARE..=VERSION).contains(&version) {
        return Err(FieldError::Unknown { name: "membership version", value: version.into() });
    }
    let mut sets = Vec::new();
    for _ in 0..reader.u32()? {
        sets.push(read_nodes(&mut reader)?);
    }
    let mut nodes = BTreeMap::new();
    for _ in 0..reader.u32()? {
        let node = reader.u64()?;
        let mut member = if version == VERSION_BARE { Member::default() } else { read_member(&mut reader)? };
        if version == VERSION {
            member.epoch = reader.u16()?;
        }
        nodes.insert(node, member);
    }
    reader.finish()?;
    if sets.is_empty() && nodes.is_empty() {
        return Ok(Members::default());
    }
    let set_count = sets.len() as u64;
    Members::new(sets, nodes).map_err(|_| FieldError::Unknown { name: "voter sets", value: set_count })
}

fn read_member(reader: &mut FieldReader) -> Result<Member, FieldError> {
    let incarnation = Incarnation(reader.u64()?);
    let is_voter_wanted = reader.flag("voter wanted")?;
    let len = reader.u32()? as usize;
    let unknown = || FieldError::Unknown { name: "contact", value: len as u64 };
    if len > CONTACT_BYTES_MAX {
        return Err(unknown());
    }
    let contact = String::from_utf8(reader.take(len)?.to_vec()).map_err(|_| unknown())?;
    Ok(Member { incarnation, is_voter_wanted, contact, epoch: 0 })
}

fn read_nodes(reader: &mut FieldReader) -> Result<BTreeSet<u64>, FieldError> {
    let mut nodes = BTreeSet::new();
    for _ in 0..reader.u32()? {
        nodes.insert(reader.u64()?);
    }
    Ok(nodes)
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    proptest! {
        #[test]
        fn members_read_back_as_written(
            sets in prop::collection::vec(prop::collection::btree_set(0..9_u64, 1..5), 1..3),
            learners in prop::collection::btree_set(10..19_u64, 0..4),
            is_bare: bool,
            contact in ".{0,20}",
            epoch in 0..3_u16,
        ) {
            let member = |node: u64| match is_bare {
                true => Member::default(),
                false => Member {
                    incarnation: Incarnation(node << 40),
                    is_voter_wanted: node.is_multiple_of(2),
                    epoch,
                    contact: contact.clone(),
                },
            };
            let nodes: BTreeMap<u64, Member> =
                sets.iter().flatten().chain(&learners).map(|node| (*node, member(*node))).collect();
            let membership = Members::new(sets, nodes).unwrap();
            prop_assert_eq!(decode_membership(encode_membership(&membership)), Ok(membership));
        }

        #[test]
        fn arbitrary_bytes_never_panic(bytes in prop::collection::vec(any::<u8>(), 0..60)) {
            let _ = decode_membership(bytes.into());
        }
    }

    #[test]
    fn no_members_at_all_read_back() {
        assert_eq!(decode_membership(encode_membership(&Members::default())), Ok(Members::default()));
    }
}
