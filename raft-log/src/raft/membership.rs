//! A group's members as bytes, in log records and in peer messages; drawn in `docs/formats/segment.md`.

use std::collections::{BTreeMap, BTreeSet};

use bytes::{BufMut, Bytes, BytesMut};
use openraft::{EmptyNode, Membership};

use crate::fields::{FieldError, FieldReader};

const VERSION: u8 = 1;

pub(crate) type Members = Membership<u64, EmptyNode>;

fn count(len: usize) -> u32 {
    u32::try_from(len).expect("a group has a handful of members")
}

/// Version, then each voter set of the (joint) configuration, then every member, voters and learners.
pub(crate) fn encode_membership(membership: &Members) -> Bytes {
    let mut bytes = BytesMut::new();
    bytes.put_u8(VERSION);
    let sets = membership.get_joint_config();
    bytes.put_u32_le(count(sets.len()));
    for set in sets {
        bytes.put_u32_le(count(set.len()));
        set.iter().for_each(|node| bytes.put_u64_le(*node));
    }
    let nodes: Vec<u64> = membership.nodes().map(|(node, _)| *node).collect();
    bytes.put_u32_le(count(nodes.len()));
    nodes.iter().for_each(|node| bytes.put_u64_le(*node));
    bytes.freeze()
}

pub(crate) fn decode_membership(bytes: Bytes) -> Result<Members, FieldError> {
    let mut reader = FieldReader::new(bytes);
    let version = reader.u8()?;
    if version != VERSION {
        return Err(FieldError::Unknown { name: "membership version", value: version.into() });
    }
    let mut sets = Vec::new();
    for _ in 0..reader.u32()? {
        sets.push(read_nodes(&mut reader)?);
    }
    let nodes: BTreeMap<u64, EmptyNode> =
        read_nodes(&mut reader)?.into_iter().map(|node| (node, EmptyNode::default())).collect();
    reader.finish()?;
    if sets.is_empty() && nodes.is_empty() {
        return Ok(Members::default());
    }
    let set_count = sets.len() as u64;
    Members::new(sets, nodes).map_err(|_| FieldError::Unknown { name: "voter sets", value: set_count })
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
        ) {
            let nodes: BTreeMap<u64, EmptyNode> =
                sets.iter().flatten().chain(&learners).map(|node| (*node, EmptyNode::default())).collect();
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
